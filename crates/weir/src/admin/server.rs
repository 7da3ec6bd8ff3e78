//! The server itself: connections, routes, answers.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Frame, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};

use super::explain::ExplainRequest;
use super::{AdminSource, ExpositionBody, ScrapeRequest};
use crate::profile;

/// Connections beyond this wait to be accepted.
const CONNECTIONS_MAX: usize = 32;

/// A connection that sends no complete request head for this long is closed.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// No connection lives longer, whatever its peer does; the longest profile fits in.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(profile::SECONDS_MAX + 300);

/// Rows of `/api/v1/contexts`.
const TOP_DEFAULT: usize = 20;
const TOP_MAX: usize = weir_context::SUMMARY_ROWS;

/// Seconds of a CPU profile that does not say.
const PROFILE_SECONDS_DEFAULT: u64 = 30;

const INDEX: &str = "weir\n\n\
/metrics                          application metrics and weir's own, for Prometheus\n\
/api/v1/status                    books, rates, contexts, outputs as JSON\n\
/api/v1/contexts?top=20           metrics, tag keys and origins with most contexts and samples\n\
/api/v1/explain?line=a:1%7Cc      what becomes of one message, and why; pid=N names its sender\n\
/api/v1/reload                    POST: reads the configuration again, as SIGHUP does\n\
/debug/vars                       status, memory and process as JSON\n\
/debug/pprof/profile?seconds=30   CPU profile for go tool pprof\n\
/debug/pprof/heap                 heap profile for go tool pprof\n\
/healthz                          200 while the process lives\n\
/ready                            200 when packets are received\n";

/// A bound admin address.
#[derive(Debug)]
pub struct AdminServer {
    listener: TcpListener,
    address: SocketAddr,
}

impl AdminServer {
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }

    /// Where it listens, the port the kernel chose included.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until the future is dropped.
    pub async fn serve(self, source: Arc<dyn AdminSource>) {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let Ok(place) = places.clone().acquire_owned().await else {
                return;
            };
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of descriptors, or a peer that left again: neither ends the server.
                    tracing::debug!("admin: a connection could not be accepted: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let source = source.clone();
            tokio::spawn(async move {
                let answer = service_fn(move |request| {
                    let source = source.clone();
                    async move { Ok::<_, Infallible>(answer(&*source, request).await) }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEAD_TIMEOUT)
                    .max_buf_size(16 * 1024)
                    .serve_connection(TokioIo::new(stream), answer);
                if let Ok(Err(error)) = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await {
                    tracing::debug!("admin: a connection ended badly: {error}");
                }
                drop(place);
            });
        }
    }
}

type Answer = Response<Body>;

async fn answer(source: &dyn AdminSource, request: Request<Incoming>) -> Answer {
    let is_head = request.method() == Method::HEAD;
    if request.uri().path() == "/api/v1/reload" {
        return reload(source, &request).await;
    }
    if !is_head && request.method() != Method::GET {
        let mut answer = text(
            StatusCode::METHOD_NOT_ALLOWED,
            "only GET and HEAD are understood here\n",
        );
        answer
            .headers_mut()
            .insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return answer;
    }
    let query = Query(request.uri().query().unwrap_or_default());
    let result = match request.uri().path() {
        "/" => Ok(text(StatusCode::OK, INDEX)),
        "/healthz" => Ok(text(StatusCode::OK, "ok\n")),
        "/ready" => Ok(match source.readiness() {
            Ok(()) => text(StatusCode::OK, "ready\n"),
            Err(reason) => text(StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")),
        }),
        "/metrics" => Ok(metrics(source, &request).await),
        "/api/v1/status" => json_of(&source.status().await),
        "/api/v1/contexts" => match query.number("top", TOP_DEFAULT as u64, 1, TOP_MAX as u64) {
            Ok(top) => match source.contexts(top as usize).await {
                Some(report) => json_of(&report),
                None => Err(Refused(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "contexts are counted with each flush, and there has been none yet".to_owned(),
                )),
            },
            Err(refused) => Err(refused),
        },
        "/api/v1/explain" => match explain_request(&query) {
            Ok(request) => json_of(&source.explain(request).await),
            Err(refused) => Err(refused),
        },
        "/debug/vars" => json_of(&variables(source).await),
        "/debug/pprof/profile" => {
            match query.number("seconds", PROFILE_SECONDS_DEFAULT, 1, profile::SECONDS_MAX) {
                // A HEAD must not cost half a minute.
                Ok(_) if is_head => Ok(binary("profile", Vec::new())),
                Ok(seconds) => cpu_profile(Duration::from_secs(seconds)).await,
                Err(refused) => Err(refused),
            }
        }
        "/debug/pprof/heap" => heap_profile().await,
        "/debug/pprof" | "/debug/pprof/" => Ok(text(StatusCode::OK, "profile?seconds=30\nheap\n")),
        _ => Err(Refused(
            StatusCode::NOT_FOUND,
            "there is nothing here; / lists what there is".to_owned(),
        )),
    };
    result.unwrap_or_else(|Refused(status, message)| text(status, format!("{message}\n")))
}

/// What came of a reload, as JSON; 422 when a fault left everything as it was.
async fn reload(source: &dyn AdminSource, request: &Request<Incoming>) -> Answer {
    if request.method() != Method::POST {
        let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "only POST is understood here\n");
        answer
            .headers_mut()
            .insert(header::ALLOW, HeaderValue::from_static("POST"));
        return answer;
    }
    let Some(reloaded) = source.reload().await else {
        return text(
            StatusCode::SERVICE_UNAVAILABLE,
            "the agent is starting or ending\n",
        );
    };
    let status = if reloaded.errors.is_empty() {
        StatusCode::OK
    } else {
        StatusCode::UNPROCESSABLE_ENTITY
    };
    match json_of(&reloaded) {
        Ok(mut answer) => {
            *answer.status_mut() = status;
            answer
        }
        Err(Refused(status, message)) => text(status, format!("{message}\n")),
    }
}

/// Status and reason of an answer that is not what was asked for.
struct Refused(StatusCode, String);

fn failed(error: impl std::fmt::Display) -> Refused {
    Refused(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

fn explain_request(query: &Query<'_>) -> Result<ExplainRequest, Refused> {
    let Some(line) = query.text("line")? else {
        return Err(Refused(
            StatusCode::BAD_REQUEST,
            "line is missing: the message to explain, such as line=a:1%7Cc%7C%23k:v".to_owned(),
        ));
    };
    let pid = match query.number("pid", 0, 1, i32::MAX as u64)? {
        0 => None,
        pid => Some(pid as i32),
    };
    Ok(ExplainRequest { line, pid })
}

struct Query<'a>(&'a str);

impl Query<'_> {
    /// A value with its `%XX` and `+` undone.
    fn text(&self, name: &str) -> Result<Option<String>, Refused> {
        let mut pairs = self.0.split('&').filter_map(|pair| pair.split_once('='));
        let Some((_, text)) = pairs.rfind(|(key, _)| *key == name) else {
            return Ok(None);
        };
        let refuse = || {
            Refused(
                StatusCode::BAD_REQUEST,
                format!("{name} is not percent-encoded UTF-8"),
            )
        };
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text.bytes();
        while let Some(byte) = rest.next() {
            bytes.push(match byte {
                b'+' => b' ',
                b'%' => {
                    let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                    let (high, low) = (digit(rest.next()), digit(rest.next()));
                    let (high, low) = high.zip(low).ok_or_else(refuse)?;
                    (high * 16 + low) as u8
                }
                byte => byte,
            });
        }
        String::from_utf8(bytes).map(Some).map_err(|_| refuse())
    }

    fn number(&self, name: &str, default: u64, min: u64, max: u64) -> Result<u64, Refused> {
        // A name alone is a number that is missing.
        let mut pairs = self
            .0
            .split('&')
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let Some((_, text)) = pairs.rfind(|(key, _)| *key == name) else {
            return Ok(default);
        };
        text.parse()
            .ok()
            .filter(|value| (min..=max).contains(value))
            .ok_or_else(|| {
                Refused(
                    StatusCode::BAD_REQUEST,
                    format!("{name} must be a whole number from {min} to {max}"),
                )
            })
    }
}

async fn metrics(source: &dyn AdminSource, request: &Request<Incoming>) -> Answer {
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
    let body = match exposition.body {
        ExpositionBody::Whole(bytes) => Body::whole(bytes),
        ExpositionBody::Pieces(pieces) => Body::Pieces(pieces),
    };
    let mut answer = Response::new(body);
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

async fn cpu_profile(duration: Duration) -> Result<Answer, Refused> {
    match profile::cpu(duration).await.map_err(failed)? {
        Some(bytes) => Ok(binary("profile", bytes)),
        None => Err(Refused(
            StatusCode::CONFLICT,
            "a CPU profile is being taken already".to_owned(),
        )),
    }
}

async fn heap_profile() -> Result<Answer, Refused> {
    let bytes = tokio::task::spawn_blocking(profile::heap)
        .await
        .map_err(failed)?
        .map_err(failed)?;
    Ok(binary("heap", bytes))
}

/// What expvar shows elsewhere: everything, as one object.
async fn variables(source: &dyn AdminSource) -> Value {
    let mut variables = Map::new();
    // The program alone: its arguments may hold a key.
    variables.insert(
        "cmdline".to_owned(),
        json!(std::env::args().take(1).collect::<Vec<_>>()),
    );
    variables.insert("memstats".to_owned(), crate::process::memory());
    variables.insert("process".to_owned(), crate::process::facts());
    let status = serde_json::to_value(source.status().await).unwrap_or_default();
    variables.insert("weir".to_owned(), status);
    Value::Object(variables)
}

fn json_of(value: &impl serde::Serialize) -> Result<Answer, Refused> {
    let mut bytes = serde_json::to_vec(value).map_err(failed)?;
    bytes.push(b'\n');
    Ok(with_type("application/json", Body::whole(bytes.into())))
}

fn text(status: StatusCode, text: impl Into<String>) -> Answer {
    let mut answer = with_type("text/plain; charset=utf-8", Body::whole(text.into().into()));
    *answer.status_mut() = status;
    answer
}

fn binary(name: &'static str, bytes: Vec<u8>) -> Answer {
    let mut answer = with_type("application/octet-stream", Body::whole(bytes.into()));
    if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")) {
        answer.headers_mut().insert(header::CONTENT_DISPOSITION, value);
    }
    answer
}

fn with_type(content_type: &'static str, body: Body) -> Answer {
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

enum Body {
    Whole(Option<Bytes>),
    Pieces(mpsc::Receiver<Bytes>),
}

impl Body {
    fn whole(bytes: Bytes) -> Self {
        Self::Whole((!bytes.is_empty()).then_some(bytes))
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Pieces(pieces) => pieces
                .poll_recv(context)
                .map(|piece| piece.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        match self {
            Self::Whole(bytes) => {
                hyper::body::SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Self::Pieces(_) => hyper::body::SizeHint::default(),
        }
    }
}
