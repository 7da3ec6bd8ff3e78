//! One request: what is checked, in which order, and the answer.

use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use weir_columns::decode::{Decoded, Endpoint};
use weir_ingest::{ColumnFate, ColumnPayload, Command};
use weir_listener::Monotonic;

use super::body::{self, BodyError, Coding};
use super::{ColumnListener, Columns, HttpCounter, Stage, number};
use weir_admin::caller::Hosts;
use weir_admin::tap::columns::SeenRequest;
use weir_admin::tap::message::MessageOutcome;
use weir_status::bad_bytes::text as text_of;
use weir_system::logging::printable;

pub type Answer = Response<Full<Bytes>>;

/// Time for a client to send its payload.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for a worker to add a payload; after it the client sends it again, or not.
const WORKER_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for a checkpoint that has a payload; after it the client asks again.
const SAVED_TIMEOUT: Duration = Duration::from_secs(5);

/// Memory that is set aside for a payload, per byte that was sent. More is taken if that is not enough.
const FACTOR_PLAIN: usize = 8;
const FACTOR_COMPRESSED: usize = 48;
const BYTES_LEAST: usize = 256 << 10;

/// Bytes of a header that names the sender.
const SENDER_BYTES_MAX: usize = 1024;

/// Sender of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// `None`: a Unix socket.
    pub address: Option<IpAddr>,
    /// 0: not known.
    pub pid: i32,
}

/// A request that is answered with 200.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Added {
    Now,
    /// Its number was added before.
    Before,
}

impl Added {
    fn counter(self) -> HttpCounter {
        match self {
            Added::Now => HttpCounter::Added,
            Added::Before => HttpCounter::Duplicate,
        }
    }

    fn answer(self) -> Answer {
        let mut answer = text(StatusCode::OK, String::new());
        if self == Added::Before {
            let yes = HeaderValue::from_static("1");
            answer.headers_mut().insert("x-weir-duplicate", yes);
        }
        answer
    }
}

/// A request that is not answered with 200.
struct Refused {
    status: StatusCode,
    reason: String,
    counter: HttpCounter,
    /// The value of `Allow` or `Accept-Encoding`.
    header: Option<(header::HeaderName, &'static str)>,
}

impl Refused {
    fn new(status: StatusCode, counter: HttpCounter, reason: impl Into<String>) -> Refused {
        Refused {
            status,
            reason: reason.into(),
            counter,
            header: None,
        }
    }

    fn invalid(reason: impl Into<String>) -> Refused {
        Refused::new(StatusCode::BAD_REQUEST, HttpCounter::Invalid, reason)
    }

    fn busy(reason: impl Into<String>) -> Refused {
        Refused {
            header: Some((header::RETRY_AFTER, "1")),
            ..Refused::new(StatusCode::SERVICE_UNAVAILABLE, HttpCounter::Busy, reason)
        }
    }

    /// Nothing of the request was added, and the next process takes it.
    fn passing() -> Refused {
        Refused::busy("another process takes over; try again")
    }

    fn too_large(reason: impl Into<String>) -> Refused {
        Refused::new(StatusCode::PAYLOAD_TOO_LARGE, HttpCounter::TooLarge, reason)
    }

    fn with(mut self, name: header::HeaderName, value: &'static str) -> Refused {
        self.header = Some((name, value));
        self
    }

    fn answer(self) -> Answer {
        let mut answer = text(self.status, format!("{}\n", self.reason));
        if let Some((name, value)) = self.header {
            answer.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        answer
    }
}

fn text(status: StatusCode, text: String) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(text)));
    *answer.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(header::CONTENT_TYPE, plain);
    answer
}

/// Answers a request, and counts the answer.
pub async fn answer(
    columns: &Columns,
    listener: &ColumnListener,
    hosts: &Hosts,
    peer: Peer,
    request: Request<Incoming>,
) -> Answer {
    let _under_way = columns.under_way(listener.number);
    let mut seen = seen(columns, listener, peer, &request);
    let added = match fate(columns, listener, hosts, peer, request, seen.as_mut()).await {
        Ok(fate) => answered(columns, listener, fate).await,
        Err(refused) => Err(refused),
    };
    if let Some(mut seen) = seen {
        seen.refused = outcome(&added);
        columns.taps.give(seen);
    }
    let (counter, answer) = match added {
        Ok(added) => (added.counter(), added.answer()),
        Err(refused) => {
            tracing::debug!("{}: {} {}", listener.address, refused.status, refused.reason);
            (refused.counter, refused.answer())
        }
    };
    columns.count(listener.number, counter, 1);
    answer
}

/// The fate of a request: a worker decides it. When another process has taken over, none adds anything more.
async fn fate(
    columns: &Columns,
    listener: &ColumnListener,
    hosts: &Hosts,
    peer: Peer,
    request: Request<Incoming>,
    seen: Option<&mut SeenRequest>,
) -> Result<ColumnFate, Refused> {
    let mut adding = pin!(add(columns, listener, hosts, peer, request, seen));
    tokio::select! {
        fate = &mut adding => return fate,
        () = columns.passed() => {}
    }
    // Workers had told all fates before it took over, perhaps after the last look.
    tokio::select! {
        biased;
        fate = adding => fate,
        () = std::future::ready(()) => Err(Refused::passing()),
    }
}

/// A request for readers of the tail, if there are any.
fn seen(
    columns: &Columns,
    listener: &ColumnListener,
    peer: Peer,
    request: &Request<Incoming>,
) -> Option<SeenRequest> {
    let length = announced(request);
    let seen = columns
        .taps
        .begin(listener.number, length.unwrap_or(0).saturating_mul(FACTOR_PLAIN))?;
    let (method, path) = (request.method().as_str(), request.uri().path());
    let length = length.map_or_else(String::new, |length| format!(", {length} bytes"));
    Some(SeenRequest {
        pid: peer.pid,
        address: peer.address,
        what: format!("{method} {}{length}", text_of(path.as_bytes())),
        ..seen
    })
}

/// Why a request was not added, for readers of the tail.
fn outcome(added: &Result<Added, Refused>) -> Option<(MessageOutcome, String)> {
    match added {
        Ok(Added::Now) => None,
        Ok(Added::Before) => Some((MessageOutcome::Refused, "duplicate".to_owned())),
        Err(refused) => {
            let outcome = match refused.counter {
                HttpCounter::Refused | HttpCounter::Busy => MessageOutcome::Refused,
                _ => MessageOutcome::Rejected,
            };
            Some((outcome, refused.reason.clone()))
        }
    }
}

async fn add(
    columns: &Columns,
    listener: &ColumnListener,
    hosts: &Hosts,
    peer: Peer,
    request: Request<Incoming>,
    mut seen: Option<&mut SeenRequest>,
) -> Result<ColumnFate, Refused> {
    check_caller(listener, hosts, &request)?;
    let endpoint = endpoint(&request)?;
    let headers = request.headers();
    check_type(headers)?;
    let coding = Coding::of(headers.get(header::CONTENT_ENCODING)).ok_or_else(|| {
        Refused::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            HttpCounter::Unsupported,
            "Content-Encoding: zstd, gzip, deflate and identity are understood",
        )
        .with(header::ACCEPT_ENCODING, "zstd, gzip, deflate")
    })?;
    let local_data = sender(headers, "x-dsd-ld")?;
    let external_data = sender(headers, "x-dsd-ed")?;
    let number = number::of(headers).map_err(|error| Refused::invalid(error.to_string()))?;
    let slot = columns
        .requests
        .clone()
        .try_acquire_owned()
        .map_err(|_| Refused::busy("too many requests are under way; try again"))?;
    if columns.stage() != Stage::Serving {
        return Err(Refused::passing());
    }
    let received = Monotonic::now();
    let (sent, held) = read_body(columns, request).await?;
    columns.count(listener.number, HttpCounter::Bytes, sent.len() as u64);
    if let (Some(rates), Some(address)) = (&listener.rates, peer.address)
        && !rates.open(Monotonic::now()).admits(address, sent.len())
    {
        return Err(Refused::busy("the sender is above its rate; try again later"));
    }
    let bytes = sent.len();
    let (decoded, held) = decode(columns, sent, coding, endpoint, held).await?;
    if let Some(seen) = seen.as_deref_mut() {
        seen.read(&decoded);
    }
    let (told, fate) = oneshot::channel();
    let payload = ColumnPayload {
        columns: decoded,
        listener: listener.number,
        pid: peer.pid,
        local_data,
        external_data,
        number,
        bytes,
        received: received.0,
        done: Box::new(move |fate| {
            // Its memory is free again before the client may send more.
            drop(held);
            // The client may have left.
            let _ = told.send(fate);
        }),
    };
    columns
        .worker(number.as_ref())
        .send(Command::Columns(Box::new(payload)));
    let fate = tokio::time::timeout(WORKER_TIMEOUT, fate).await;
    // The rest is waiting, which delays no hand-over: the next process has the points.
    drop(slot);
    let Ok(fate) = fate else {
        return Err(Refused::busy("the agent is behind; try again"));
    };
    let fate = fate.unwrap_or(ColumnFate::Ended);
    if let (Some(seen), ColumnFate::Applied { limited } | ColumnFate::Added { limited, .. }) = (seen, fate) {
        seen.limited = limited;
    }
    Ok(fate)
}

/// The answer to a request by its fate.
async fn answered(columns: &Columns, listener: &ColumnListener, fate: ColumnFate) -> Result<Added, Refused> {
    match fate {
        ColumnFate::Applied { .. } => Ok(Added::Now),
        ColumnFate::Added { worker, payload, .. } => {
            saved(columns, listener, worker, payload).await?;
            Ok(Added::Now)
        }
        ColumnFate::Duplicate { worker, payload } => {
            saved(columns, listener, worker, payload).await?;
            Ok(Added::Before)
        }
        ColumnFate::TooFar => Err(Refused::invalid(number::too_far())),
        ColumnFate::Refused(reason) => Err(Refused::new(
            StatusCode::FORBIDDEN,
            HttpCounter::Refused,
            format!("allowed_origins refuses this sender: {}", reason.as_str()),
        )),
        ColumnFate::RateLimited => Err(Refused::busy("the container is above its rate; try again later")),
        // A client falls back to messages.
        ColumnFate::NotAggregated => Err(Refused::new(
            StatusCode::NOT_FOUND,
            HttpCounter::Refused,
            "this agent only relays messages",
        )),
        ColumnFate::Ended => Err(Refused::busy("the agent ends; try again")),
    }
}

/// Waits until a kill does not lose a payload any more, or another process has it.
async fn saved(
    columns: &Columns,
    listener: &ColumnListener,
    worker: u16,
    payload: u64,
) -> Result<(), Refused> {
    let saved = async {
        tokio::select! {
            biased;
            is_saved = columns.saved.wait(usize::from(worker), payload) => is_saved,
            () = columns.passed() => true,
        }
    };
    match tokio::time::timeout(SAVED_TIMEOUT, saved).await {
        Ok(true) => Ok(()),
        Ok(false) => {
            columns.count(listener.number, HttpCounter::Unsaved, 1);
            Ok(())
        }
        Err(_) => Err(Refused::busy(
            "the points are added, and not saved yet; send them again",
        )),
    }
}

/// Refuses requests that a browser sends: each of its POST requests says where it comes from.
fn check_caller(
    listener: &ColumnListener,
    hosts: &Hosts,
    request: &Request<Incoming>,
) -> Result<(), Refused> {
    let refuse = |reason: String| Refused::new(StatusCode::FORBIDDEN, HttpCounter::Refused, reason);
    for name in ["origin", "sec-fetch-site", "sec-fetch-mode"] {
        if let Some(value) = request.headers().get(name) {
            let value = printable(value.as_bytes());
            return Err(refuse(format!("{name}: {value}: web pages may not send metrics")));
        }
    }
    match listener.is_loopback {
        // A name that leads to this machine may be that of a page.
        true => hosts.check(request).map_err(|error| refuse(error.1)),
        false => Ok(()),
    }
}

fn endpoint(request: &Request<Incoming>) -> Result<Endpoint, Refused> {
    let endpoint = match request.uri().path() {
        "/series" => Endpoint::Series,
        "/sketches" => Endpoint::Sketches,
        _ => {
            let reason = "not found; POST /series and POST /sketches take columns (docs/columns.md)";
            return Err(Refused::new(StatusCode::NOT_FOUND, HttpCounter::Other, reason));
        }
    };
    match *request.method() {
        Method::POST => Ok(endpoint),
        _ => Err(Refused::new(
            StatusCode::METHOD_NOT_ALLOWED,
            HttpCounter::Other,
            "understood here: POST",
        )
        .with(header::ALLOW, "POST")),
    }
}

/// The format, if it is named, is protobuf.
fn check_type(headers: &HeaderMap) -> Result<(), Refused> {
    const UNDERSTOOD: [&str; 4] = [
        "application/x-protobuf",
        "application/protobuf",
        "application/vnd.google.protobuf",
        "application/octet-stream",
    ];
    let Some(named) = headers.get(header::CONTENT_TYPE) else {
        return Ok(());
    };
    let named = named.to_str().unwrap_or_default();
    let named = named.split(';').next().unwrap_or_default().trim();
    match UNDERSTOOD.iter().any(|known| known.eq_ignore_ascii_case(named)) {
        true => Ok(()),
        false => Err(Refused::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            HttpCounter::Unsupported,
            "Content-Type: application/x-protobuf is understood",
        )),
    }
}

/// A header by which a sender names itself.
fn sender(headers: &HeaderMap, name: &str) -> Result<Option<Box<str>>, Refused> {
    let Some(value) = headers.get(name) else {
        return Ok(None);
    };
    let value = value
        .to_str()
        .ok()
        .filter(|value| value.len() <= SENDER_BYTES_MAX && !value.contains(['|', '\n']));
    match value {
        Some("") => Ok(None),
        Some(value) => Ok(Some(value.into())),
        None => Err(Refused::invalid(format!(
            "{name}: it is longer than {SENDER_BYTES_MAX} bytes, or has characters that no message may have there"
        ))),
    }
}

/// The length of the payload, if the request says it.
fn announced(request: &Request<Incoming>) -> Option<usize> {
    let length = request.headers().get(header::CONTENT_LENGTH)?;
    length.to_str().ok()?.parse().ok()
}

/// Reads the payload, within its limit and its time. Also returns the memory that is set aside for it.
async fn read_body(
    columns: &Columns,
    request: Request<Incoming>,
) -> Result<(Vec<u8>, OwnedSemaphorePermit), Refused> {
    let most = columns.request_bytes() / 2;
    let too_large = || {
        Refused::too_large(format!(
            "the payload is longer than {most} bytes; send fewer series at once, or give weir more memory"
        ))
    };
    let busy = || Refused::busy("the memory for requests is used up; try again");
    let announced = announced(&request);
    if announced.is_some_and(|length| length > most) {
        return Err(too_large());
    }
    let mut held = columns
        .take_memory(announced.unwrap_or(BYTES_LEAST).min(most))
        .map_err(|_| busy())?;
    let mut sent = Vec::with_capacity(announced.unwrap_or(0));
    let mut body = request.into_body();
    let reading = async {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                Refused::new(StatusCode::BAD_REQUEST, HttpCounter::Other, error.to_string())
            })?;
            let Some(data) = frame.data_ref() else { continue };
            if sent.len() + data.len() > most {
                return Err(too_large());
            }
            let has = held.num_permits() * super::UNIT;
            if sent.len() + data.len() > has {
                let more = (sent.len() + data.len() - has).max(has.min(most - has.min(most)));
                held.merge(columns.take_memory(more).map_err(|_| busy())?);
            }
            sent.extend_from_slice(data);
        }
        Ok(())
    };
    match tokio::time::timeout(BODY_TIMEOUT, reading).await {
        Ok(read) => read?,
        Err(_) => {
            let reason = format!("the payload did not arrive within {} s", BODY_TIMEOUT.as_secs());
            return Err(Refused::new(
                StatusCode::REQUEST_TIMEOUT,
                HttpCounter::Other,
                reason,
            ));
        }
    }
    Ok((sent, held))
}

/// Decodes outside of this thread, which serves other requests and signals. Takes more memory if the payload needs it.
async fn decode(
    columns: &Columns,
    sent: Vec<u8>,
    coding: Coding,
    endpoint: Endpoint,
    mut held: OwnedSemaphorePermit,
) -> Result<(Decoded, OwnedSemaphorePermit), Refused> {
    let most = columns.request_bytes() - sent.len();
    let factor = match coding {
        Coding::Identity => FACTOR_PLAIN,
        _ => FACTOR_COMPRESSED,
    };
    let sent = Bytes::from(sent);
    let mut bytes = most.min((sent.len() * factor).max(BYTES_LEAST));
    loop {
        let wanted = sent.len() + bytes;
        let more = wanted.saturating_sub(held.num_permits() * super::UNIT);
        let more = columns.take_memory(more);
        held.merge(more.map_err(|_| Refused::busy("the memory for requests is used up; try again"))?);
        let body = sent.clone();
        let read = tokio::task::spawn_blocking(move || body::read(&body, coding, endpoint, bytes));
        let read = read.await.map_err(|panic| {
            let reason = format!("the payload could not be decoded: {panic}");
            Refused::new(StatusCode::INTERNAL_SERVER_ERROR, HttpCounter::Other, reason)
        })?;
        match read {
            Ok(decoded) => {
                // The payload as it was sent takes no memory any more.
                let spare = held
                    .num_permits()
                    .saturating_sub(decoded.heap_bytes().div_ceil(super::UNIT));
                drop(held.split(spare));
                return Ok((decoded, held));
            }
            Err(error) if error.is_too_large() && bytes < most => bytes = most.min(bytes * 4),
            Err(error @ BodyError::Columns(_)) if error.is_too_large() => {
                return Err(Refused::too_large(error.to_string()));
            }
            Err(error) => return Err(Refused::invalid(error.to_string())),
        }
    }
}
