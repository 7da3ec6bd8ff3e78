//! The server itself: connections, routes, answers.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Frame, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use super::access::{self, Callers};
use super::api;
use super::caller;
use super::connections::{Connection, ConnectionLimits, Connections, Slot, TimeoutStream, TooManyRequests};
use super::page;
use super::query::Query;
use super::sockets::{AdminBindError, AdminSockets};
use super::taps;
use super::{AdminSource, ScrapeRequest};
use crate::history::Recent;
use crate::profile::{self, HeapView};
use crate::streams::{Cut, Pieces};
use weir_status::contexts;
use weir_status::explain::{ExplainError, ExplainRequest};
use weir_status::losses::{StatusWithLosses, losses};

/// Default rows of `/api/v1/contexts`.
const TOP_DEFAULT: usize = 20;
const TOP_MAX: usize = weir_context::SUMMARY_ROWS;

/// Default seconds of a CPU profile.
const PROFILE_SECONDS_DEFAULT: u64 = 30;

/// A stream of events while a reader is connected.
pub(super) const LIVE: &str = "/api/v1/live";

/// Requests that change something.
pub(super) const RELOAD: &str = "/api/v1/reload";

const INDEX: &str = "weir\n\n\
/metrics                          application metrics and weir's own, for Prometheus\n\
/api/v1/status                    books, rates, contexts, outputs as JSON\n\
/api/v1/contexts?top=20           metrics, tag keys and origins with most contexts and samples\n\
/api/v1/explain?line=a:1%7Cc      the fate of one message, with reasons; pid=N names its sender, listener= where it arrives\n\
/api/v1/metrics?match=&kind=      metrics of the last minutes by name, with their tag keys and a sparkline\n\
/api/v1/query?metric=&by=&fn=     points of the last minutes as columns; where=k:v, from=-15m, to, step\n\
/api/v1/tags?metric=              keys and values of a metric's tags\n\
/api/v1/books?match=&from=-5m     the agent's own books per second\n\
/api/v1/try?rules=                the effect of rules on the series of the last minutes\n\
/api/v1/losses                    every loss, refusal and degradation since the start, with its remedy\n\
/api/v1/meanings                  the meaning of each weir_ series, and the remedy when it moves\n\
/api/v1/live?metric=              server-sent events: new points of a query with each flush, and the books each second\n\
/api/v1/tail?match=&where=&rate=  server-sent events: messages as they arrive, with their verdict\n\
/api/v1/capture?for=30s&match=    packets as they arrive, as a capture file\n\
/api/v1/reload                    POST: reloads the configuration, as SIGHUP does;\n\
                                  curl -X POST -H 'X-Weir-Request: 1'\n\
/debug/vars                       status, memory and process as JSON\n\
/debug/pprof/profile?seconds=30   CPU profile for go tool pprof\n\
/debug/pprof/heap                 heap profile for go tool pprof: what is held, what was allocated\n\
/debug/pprof/allocs               the same, what was allocated first\n\
/healthz                          200 while the process lives\n\
/ready                            200 when packets are received\n";

/// A bound admin address.
pub struct AdminServer {
    sockets: AdminSockets,
    gate: Gate,
}

/// Whether connections are accepted, and the open requests.
#[derive(Clone)]
pub struct Gate {
    is_open: watch::Sender<bool>,
    /// Set when serving starts.
    connections: Arc<OnceLock<Connections>>,
}

impl Gate {
    fn new() -> Gate {
        Gate {
            is_open: watch::Sender::new(true),
            connections: Arc::default(),
        }
    }

    /// Stops accepting connections, because another process does.
    pub fn close(&self) {
        self.is_open.send_replace(false);
    }

    pub fn open(&self) {
        self.is_open.send_replace(true);
    }

    /// Waits until open requests are answered, at most `patience`. Not for async tasks.
    pub fn wait_until_answered(&self, patience: Duration) {
        let deadline = std::time::Instant::now() + patience;
        let under_way = || self.connections.get().map_or(0, Connections::requests);
        while under_way() > 0 && std::time::Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    async fn opened(&self) {
        drop(self.is_open.subscribe().wait_for(|open| *open).await);
    }

    async fn closed(&self) {
        drop(self.is_open.subscribe().wait_for(|open| !*open).await);
    }
}

impl AdminServer {
    /// As [`AdminSockets::bind`].
    pub async fn bind(
        addresses: &[SocketAddr],
        passed: impl FnMut(SocketAddr) -> Option<std::net::TcpListener>,
    ) -> Result<Option<Self>, AdminBindError> {
        let sockets = AdminSockets::bind(addresses, passed).await?;
        let gate = Gate::new();
        Ok(sockets.map(|sockets| Self { sockets, gate }))
    }

    /// The sockets and their gate, to be handed over.
    pub fn share(&self) -> io::Result<(Vec<OwnedFd>, Gate)> {
        Ok((self.sockets.share()?, self.gate.clone()))
    }

    /// The sockets, which know their addresses.
    pub fn sockets(&self) -> &AdminSockets {
        &self.sockets
    }

    /// Answers until the future is dropped.
    pub async fn serve(self, source: Arc<dyn AdminSource>, callers: Callers, limits: ConnectionLimits) {
        if let Some(warning) = callers.access.warning(self.sockets.first()) {
            tracing::warn!("{warning}");
        }
        let connections = Connections::new(limits);
        let _ = self.gate.connections.set(connections.clone());
        let callers = Arc::new(callers);
        loop {
            self.gate.opened().await;
            let accepted = tokio::select! {
                accepted = self.sockets.accept() => accepted,
                () = self.gate.closed() => continue,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of descriptors, or the peer has left: neither ends the server.
                    tracing::debug!("admin: a connection could not be accepted: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let connection = connections.admit(peer.ip());
            let is_local = access::is_local(peer, stream.local_addr().ok());
            let talk = talk(
                stream,
                connection,
                limits,
                source.clone(),
                callers.clone(),
                is_local,
            );
            tokio::spawn(async move {
                if let Some(stream) = talk.await {
                    // Before HTTP/1.1 an answer ends where the connection does, so a cut needs a reset.
                    drop(stream.set_zero_linger());
                }
            });
            // Many simultaneous connections must not evict each other before any of them was read.
            tokio::task::yield_now().await;
        }
    }
}

/// Serves one connection until it ends or is evicted. Returns the stream if an answer on it is not whole.
async fn talk<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    connection: Arc<Connection>,
    limits: ConnectionLimits,
    source: Arc<dyn AdminSource>,
    callers: Arc<Callers>,
    is_local: bool,
) -> Option<S> {
    let answer = service_fn(|request| {
        let (source, callers, connection) = (source.clone(), callers.clone(), connection.clone());
        async move {
            Ok::<_, Infallible>(match callers.permit(is_local, &request).await {
                Ok(()) => answer(&*source, &connection, request).await,
                Err(refused) => refused.answer_to(request.uri().path()),
            })
        }
    });
    let mut served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(16 * 1024)
        .serve_connection(
            TokioIo::new(TimeoutStream::new(stream, connection.clone())),
            answer,
        );
    tokio::select! {
        ended = tokio::time::timeout(limits.connection, &mut served) => {
            let Ok(Err(error)) = ended else { return None };
            tracing::debug!("admin: a connection failed: {error}");
            // Other errors are the peer's, which may still read a refusal.
            error.is_user().then(|| served.into_parts().io.into_inner().into_inner())
        }
        () = connection.evicted() => {
            tracing::debug!("admin: a waiting connection was closed in favour of a new one");
            None
        }
    }
}

/// Serves one connection of any kind, as for a local client. For the fuzz targets.
#[doc(hidden)]
pub async fn answer_on(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    source: Arc<dyn AdminSource>,
    callers: Callers,
    limits: ConnectionLimits,
) {
    let connection = Connections::new(limits).admit(Ipv4Addr::LOCALHOST.into());
    drop(talk(stream, connection, limits, source, Arc::new(callers), true).await);
}

type HttpResponse = Response<Body>;

/// Refuses a request, or takes a slot and answers.
async fn answer(
    source: &dyn AdminSource,
    connection: &Arc<Connection>,
    request: Request<Incoming>,
) -> HttpResponse {
    if let Some(answer) = wrong_method(&request) {
        return answer;
    }
    if let Err(refused) = check(&request) {
        return refused.answer();
    }
    match request.uri().path() {
        // Takes no slot, because its answer decides whether the process is killed.
        "/healthz" => text(StatusCode::OK, "ok\n"),
        "/ready" => ready(source),
        _ => match connection.begin() {
            Ok(slot) => {
                let is_stream = [LIVE, taps::TAIL, taps::CAPTURE].contains(&request.uri().path());
                let mut answer = costly_answer(source, request).await;
                // A stream would keep its slot while it is open.
                answer.body_mut().slot = (!is_stream).then_some(slot);
                answer
            }
            Err(reason) => busy(reason),
        },
    }
}

/// Refuses requests that a page of another site may have caused.
fn check(request: &Request<Incoming>) -> Result<(), HttpError> {
    let path = request.uri().path();
    if path == RELOAD {
        caller::check_change(request.headers())
    } else if path.starts_with("/debug/pprof") || path.starts_with("/api/v1/") {
        // An answer costs time and memory, and a stream a slot, even if the page cannot read it.
        caller::check_site(request.headers())
    } else {
        Ok(())
    }
}

/// The answer to a wrong method: the allowed methods of the path.
fn wrong_method(request: &Request<Incoming>) -> Option<HttpResponse> {
    let allowed = if request.uri().path() == RELOAD {
        "POST"
    } else {
        "GET, HEAD"
    };
    if allowed.split(", ").any(|method| request.method() == method) {
        return None;
    }
    let message = format!("understood here: {allowed}\n");
    let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, message);
    answer
        .headers_mut()
        .insert(header::ALLOW, HeaderValue::from_static(allowed));
    Some(answer)
}

fn ready(source: &dyn AdminSource) -> HttpResponse {
    match source.readiness() {
        Ok(()) => text(StatusCode::OK, "ready\n"),
        Err(reason) => text(StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")),
    }
}

fn busy(reason: TooManyRequests) -> HttpResponse {
    let message = format!("{reason}; try again\n");
    let mut answer = text(StatusCode::SERVICE_UNAVAILABLE, message);
    answer
        .headers_mut()
        .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

async fn costly_answer(source: &dyn AdminSource, request: Request<Incoming>) -> HttpResponse {
    let is_head = request.method() == Method::HEAD;
    let query = Query(request.uri().query().unwrap_or_default());
    let path = request.uri().path().to_owned();
    let result = match path.as_str() {
        "/" if !page::is_wanted(request.headers()) => Ok(text(StatusCode::OK, INDEX)),
        RELOAD => reload(source).await,
        "/metrics" => Ok(metrics(source, &request).await),
        "/api/v1/status" => match query.number("losses", 0, 0, 1) {
            Ok(1) => json_of(&StatusWithLosses::of(source.status().await)),
            Ok(_) => json_of(&source.status().await),
            Err(refused) => Err(refused),
        },
        "/api/v1/contexts" => match query.number("top", TOP_DEFAULT as u64, 1, TOP_MAX as u64) {
            Ok(top) => match source.contexts(top as usize).await {
                Some(report) => json_of(&report),
                None => Err(HttpError(
                    StatusCode::SERVICE_UNAVAILABLE,
                    contexts::before_first_flush(&source.status().await),
                )),
            },
            Err(refused) => Err(refused),
        },
        "/api/v1/losses" => json_of(&losses(&source.status().await)),
        "/api/v1/meanings" => api::meanings().map(json_bytes),
        "/api/v1/explain" => match explain_request(&query) {
            Ok(request) => match source.explain(request).await {
                Ok(explanation) => json_of(&explanation),
                Err(unexplained) => Err(refused_explanation(&unexplained)),
            },
            Err(refused) => Err(refused),
        },
        taps::TAIL | taps::CAPTURE if is_head => Ok(text(StatusCode::OK, "")),
        taps::TAIL => taps::tail(source.taps(), query).map(events),
        taps::CAPTURE => taps::capture(source.taps(), query).map(capture_file),
        "/debug/vars" => json_of(&variables(source).await),
        "/debug/pprof/profile" => {
            match query.number("seconds", PROFILE_SECONDS_DEFAULT, 1, profile::SECONDS_MAX) {
                // A HEAD request must not run a profile.
                Ok(_) if is_head => Ok(binary("profile", Vec::new())),
                Ok(seconds) => cpu_profile(Duration::from_secs(seconds)).await,
                Err(refused) => Err(refused),
            }
        }
        "/debug/pprof/heap" => heap_profile("heap", HeapView::InUse).await,
        "/debug/pprof/allocs" => heap_profile("allocs", HeapView::Allocated).await,
        "/debug/pprof" | "/debug/pprof/" => Ok(text(StatusCode::OK, "profile?seconds=30\nheap\nallocs\n")),
        path => match page::file(path, request.headers()) {
            Some(file) => Ok(file_answer(file)),
            None => recent(source, path, query).await.unwrap_or_else(|| {
                let message = no_such_profile(path).unwrap_or("not found; / lists all paths");
                Err(HttpError(StatusCode::NOT_FOUND, message.to_owned()))
            }),
        },
    };
    result.unwrap_or_else(|refused| refused.answer_to(&path))
}

fn file_answer(file: page::File) -> HttpResponse {
    let mut answer = with_type(file.content_type, Body::whole(file.bytes.into()));
    let headers = answer.headers_mut();
    if let Some(coding) = file.content_encoding {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(coding));
        headers.insert(header::VARY, HeaderValue::from_static("accept, accept-encoding"));
    }
    headers.extend(page::headers());
    answer
}

/// A query to the history. `None` for another path.
async fn recent(
    source: &dyn AdminSource,
    path: &str,
    query: Query<'_>,
) -> Option<Result<HttpResponse, HttpError>> {
    if path != LIVE && !api::PATHS.contains(&path) {
        return None;
    }
    let Some(recent) = source.recent() else {
        let message = "the last minutes are not stored; set `history` to a size above 0";
        return Some(Err(HttpError(StatusCode::NOT_FOUND, message.to_owned())));
    };
    if path == LIVE {
        return Some(live(query, recent));
    }
    let mut request = match api::request(path, query, &recent)? {
        Ok(request) => request,
        Err(refused) => return Some(Err(refused)),
    };
    if let Some(samples) = request.samples_wanted()
        && let Some(report) = source.contexts(usize::MAX).await
    {
        let rows = report.metrics_by_samples.into_iter();
        *samples = rows.map(|row| (row.metric, row.samples_per_second)).collect();
    }
    let answer = tokio::task::spawn_blocking(move || api::answer(&request, &recent)).await;
    let answer = answer.map_err(failed).and_then(|answer| answer);
    Some(answer.map(json_bytes))
}

fn live(query: Query<'_>, recent: Arc<Recent>) -> Result<HttpResponse, HttpError> {
    let live = api::live_request(query, &recent)?;
    let permit = recent
        .streams()
        .open()
        .map_err(|reason| HttpError(StatusCode::SERVICE_UNAVAILABLE, reason.to_string()))?;
    Ok(events(api::live(live, recent, permit)))
}

fn events(events: Pieces) -> HttpResponse {
    with_type("text/event-stream", Body::from(Content::Pieces(events)))
}

fn capture_file(pieces: Pieces) -> HttpResponse {
    let mut answer = with_type("application/octet-stream", Body::from(Content::Pieces(pieces)));
    answer.headers_mut().insert(
        header::CONTENT_DISPOSITION,
        HeaderValue::from_static("attachment; filename=\"capture.dog\""),
    );
    answer
}

/// The result of a reload as JSON. 422 if an error left everything unchanged.
async fn reload(source: &dyn AdminSource) -> Result<HttpResponse, HttpError> {
    let reloaded = source.reload().await.ok_or_else(|| {
        HttpError(
            StatusCode::SERVICE_UNAVAILABLE,
            "the agent is starting or ending".to_owned(),
        )
    })?;
    let mut answer = json_of(&reloaded)?;
    if !reloaded.errors.is_empty() {
        *answer.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
    }
    Ok(answer)
}

/// Status and reason of a refusal.
#[derive(Debug)]
pub struct HttpError(pub StatusCode, pub String);

impl HttpError {
    fn answer(self) -> HttpResponse {
        let Self(status, message) = self;
        access::with_challenge(text(status, format!("{message}\n")))
    }

    /// The form of errors under `/api/v1`.
    pub fn json(&self) -> Value {
        let code = self
            .0
            .canonical_reason()
            .unwrap_or("error")
            .to_lowercase()
            .replace(' ', "_");
        json!({"error": {"code": code, "message": self.1}})
    }

    fn answer_to(self, path: &str) -> HttpResponse {
        if !path.starts_with("/api/v1/") {
            return self.answer();
        }
        let mut answer = with_type(
            "application/json",
            Body::whole(format!("{}\n", self.json()).into()),
        );
        *answer.status_mut() = self.0;
        access::with_challenge(answer)
    }
}

pub(super) fn failed(error: impl std::fmt::Display) -> HttpError {
    HttpError(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

fn explain_request(query: &Query<'_>) -> Result<ExplainRequest, HttpError> {
    let Some(line) = query.text("line")? else {
        return Err(HttpError(
            StatusCode::BAD_REQUEST,
            "line is missing: the message to explain, such as line=a:1%7Cc%7C%23k:v".to_owned(),
        ));
    };
    let pid = match query.number("pid", 0, 1, i32::MAX as u64)? {
        0 => None,
        pid => Some(pid as i32),
    };
    let listener = query.text("listener")?;
    Ok(ExplainRequest { line, pid, listener })
}

fn refused_explanation(unexplained: &ExplainError) -> HttpError {
    let status = match unexplained {
        ExplainError::ReceivesNone => StatusCode::NOT_FOUND,
        ExplainError::NoSuchListener { .. } | ExplainError::ReadDifferently { .. } => StatusCode::BAD_REQUEST,
        ExplainError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    HttpError(status, unexplained.to_string())
}

async fn metrics(source: &dyn AdminSource, request: &Request<Incoming>) -> HttpResponse {
    let header = |name| {
        let values = request.headers().get_all(name).iter();
        values
            .filter_map(|value| value.to_str().ok())
            .collect::<Vec<_>>()
            .join(",")
    };
    let gzip = header(header::ACCEPT_ENCODING)
        .split(',')
        .any(|coding| coding.trim().starts_with("gzip"));
    let Some(exposition) = source
        .scrape(ScrapeRequest {
            accept: header(header::ACCEPT),
            gzip,
        })
        .await
    else {
        return text(
            StatusCode::NOT_FOUND,
            "the prometheus output is off; outputs.prometheus.enabled switches it on\n",
        );
    };
    let mut answer = Response::new(Body::from(Content::Pieces(exposition.body)));
    match HeaderValue::from_str(&exposition.content_type) {
        Ok(value) => drop(answer.headers_mut().insert(header::CONTENT_TYPE, value)),
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
    if let Some(coding) = exposition.content_encoding {
        answer
            .headers_mut()
            .insert(header::CONTENT_ENCODING, HeaderValue::from_static(coding));
    }
    answer
}

async fn cpu_profile(duration: Duration) -> Result<HttpResponse, HttpError> {
    match profile::cpu(duration).await.map_err(failed)? {
        Some(bytes) => Ok(binary("profile", bytes)),
        None => Err(HttpError(
            StatusCode::CONFLICT,
            "another CPU profile is running".to_owned(),
        )),
    }
}

/// The alternative to a profile that only Go programs have.
fn no_such_profile(path: &str) -> Option<&'static str> {
    match path.strip_prefix("/debug/pprof/")? {
        "trace" => Some(
            "there is no execution trace: no Go runtime schedules weir. /debug/pprof/profile?seconds=30 shows where CPU time goes, \
             weir_receive_gap_seconds and weir_hand_over_waits_total (/metrics) how long receiving and flushes were delayed, and \
             `perf trace -s -p PID` how long each thread waits in which system call",
        ),
        "block" | "mutex" => Some(
            "waiting is not profiled: no lock is taken for a packet. weir_hand_over_waits_total and weir_receive_gap_seconds (/metrics) \
             show whether threads of weir delay each other, /debug/pprof/profile?seconds=30 where CPU time goes, and \
             `perf trace -s -p PID` how long each thread waits in which system call",
        ),
        "goroutine" | "threadcreate" => Some(
            "there are no goroutines: /debug/vars has the number of threads, and `top -H -p PID` shows each by its name",
        ),
        _ => None,
    }
}

async fn heap_profile(name: &'static str, view: HeapView) -> Result<HttpResponse, HttpError> {
    let bytes = tokio::task::spawn_blocking(move || profile::heap(view))
        .await
        .map_err(failed)?
        .map_err(failed)?;
    Ok(binary(name, bytes))
}

/// All variables in one object, as expvar.
async fn variables(source: &dyn AdminSource) -> Value {
    let mut variables = Map::new();
    // Without arguments, which may contain a key.
    variables.insert(
        "cmdline".to_owned(),
        json!(std::env::args().take(1).collect::<Vec<_>>()),
    );
    variables.insert("memstats".to_owned(), weir_system::process::memory());
    variables.insert("process".to_owned(), weir_system::process::facts());
    let status = serde_json::to_value(source.status().await).unwrap_or_default();
    variables.insert("weir".to_owned(), status);
    Value::Object(variables)
}

fn json_of(value: &impl serde::Serialize) -> Result<HttpResponse, HttpError> {
    let mut bytes = serde_json::to_vec(value).map_err(failed)?;
    bytes.push(b'\n');
    Ok(json_bytes(bytes))
}

fn json_bytes(bytes: Vec<u8>) -> HttpResponse {
    with_type("application/json", Body::whole(bytes.into()))
}

fn text(status: StatusCode, text: impl Into<String>) -> HttpResponse {
    let mut answer = with_type("text/plain; charset=utf-8", Body::whole(text.into().into()));
    *answer.status_mut() = status;
    answer
}

fn binary(name: &'static str, bytes: Vec<u8>) -> HttpResponse {
    let mut answer = with_type("application/octet-stream", Body::whole(bytes.into()));
    if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")) {
        answer.headers_mut().insert(header::CONTENT_DISPOSITION, value);
    }
    answer
}

fn with_type(content_type: &'static str, body: Body) -> HttpResponse {
    let mut answer = Response::new(body);
    answer
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer.headers_mut().insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    answer
}

/// An answer's body, and its slot until all of it is written.
struct Body {
    content: Content,
    slot: Option<Slot>,
}

enum Content {
    Whole(Option<Bytes>),
    Pieces(Pieces),
}

impl From<Content> for Body {
    fn from(content: Content) -> Self {
        Self { content, slot: None }
    }
}

impl Body {
    fn whole(bytes: Bytes) -> Self {
        Content::Whole((!bytes.is_empty()).then_some(bytes)).into()
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match &mut self.get_mut().content {
            Content::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Content::Pieces(pieces) => pieces
                .poll_next(context)
                .map(|piece| piece.map(|piece| piece.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.content, Content::Whole(None))
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        match &self.content {
            Content::Whole(bytes) => {
                hyper::body::SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Content::Pieces(_) => hyper::body::SizeHint::default(),
        }
    }
}
