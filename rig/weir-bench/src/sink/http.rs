//! The HTTP side of the sinks: receives requests, decompresses bodies, applies faults and passes records on; and the small admin interface
//! under `/_sink/`.

use super::fault::{Close, Fault};
use super::record::Record;
use super::{Reject, Shared, datadog, otlp, prometheus};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::io::Read;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpListener;
use weir_rig_base::clock;

/// The kind of an HTTP listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    Datadog,
    RemoteWrite,
    OtlpHttp,
    OtlpGrpc,
    /// Accepts and records anything.
    Http,
}

/// Longer requests are not read completely.
const BODY_BYTES_MAX: usize = 128 << 20;

type Answer = Response<BoxBody<Bytes, Infallible>>;
/// The connection is to be dropped.
type Dropped = Box<dyn std::error::Error + Send + Sync>;

/// Serves one listener until the runtime ends.
pub async fn serve(shared: Arc<Shared>, sink: &'static str, service: Service, listener: TcpListener) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely: open ones must close first.
                eprintln!("weir-bench sink: {sink}: accept: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let mut server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            // Small, so that the other end soon notices a slow reader.
            server.http1().max_buf_size(16 << 10);
            let handler =
                hyper::service::service_fn(|request| handle(Arc::clone(&shared), sink, service, request));
            // A connection ends because of the peer or of a requested fault.
            let _ = server.serve_connection(TokioIo::new(stream), handler).await;
        });
    }
}

async fn handle(
    shared: Arc<Shared>,
    sink: &'static str,
    service: Service,
    request: Request<Incoming>,
) -> Result<Answer, Dropped> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    if let Some(verb) = path.strip_prefix("/_sink/") {
        let body = read(body, None).await.map_err(|reject| reject.reason)?;
        return Ok(admin(&shared, &parts.method, verb, &body));
    }
    let fault = shared.faults.lock().expect("no holder panics").take(&path);
    let outcome = match read(body, fault.slow_read).await {
        Ok(body) => {
            tokio::time::sleep(fault.delay).await;
            Ok(body)
        }
        Err(reject) => Err(reject),
    };
    let compressed = outcome.as_ref().map_or(0, Bytes::len);
    let mut taken = RequestResult::default();
    let decoded = match outcome {
        // A payload answered with an error was not accepted, as at a real receiver.
        Ok(_) if fault.status.is_some_and(|status| !(200..300).contains(&status)) => Ok(()),
        Ok(_) if fault.grpc_status.is_some_and(|status| status != 0) => Ok(()),
        Ok(_) if fault.hang => Ok(()),
        Ok(body) => take(&shared, sink, service, &parts, &body, &mut taken),
        Err(reject) => Err(reject),
    };
    let status = match (&decoded, fault.status) {
        (Err(reject), _) => reject.status,
        (Ok(()), Some(status)) => status,
        (Ok(()), None) => taken.status,
    };
    shared.record_request(
        sink,
        json!({
            "sink": sink,
            "received_ns": clock::unix_ns(),
            "method": parts.method.as_str(),
            "path": path,
            "query": parts.uri.query(),
            "status": status,
            "fault": fault.to_string(),
            "bytes": compressed,
            "uncompressed": taken.uncompressed,
            "records": taken.records,
            "reason": decoded.as_ref().err().map(|reject| reject.reason.as_str()),
            "headers": visible(&parts.headers),
        }),
        compressed,
        taken.uncompressed,
        decoded.as_ref().err(),
    );
    if fault.hang {
        std::future::pending::<()>().await;
    }
    if fault.close == Close::Before {
        return Err("closed on request".into());
    }
    Ok(answer(service, &fault, status, taken, decoded.err()))
}

/// The result of a request.
struct RequestResult {
    status: u16,
    uncompressed: usize,
    records: usize,
    headers: Vec<(HeaderName, String)>,
    body: &'static str,
}

impl Default for RequestResult {
    fn default() -> RequestResult {
        RequestResult {
            status: 200,
            uncompressed: 0,
            records: 0,
            headers: Vec::new(),
            body: "",
        }
    }
}

fn header_text(headers: &HeaderMap, name: impl header::AsHeaderName) -> &str {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

fn take(
    shared: &Shared,
    sink: &'static str,
    service: Service,
    parts: &hyper::http::request::Parts,
    body: &[u8],
    taken: &mut RequestResult,
) -> Result<(), Reject> {
    let request = WholeRequest { parts, body };
    let records = match service {
        Service::Datadog => request.datadog(&shared.options.api_keys, taken)?,
        Service::RemoteWrite => request.remote_write(taken)?,
        Service::OtlpHttp => request.otlp_http(taken)?,
        Service::OtlpGrpc => request.otlp_grpc(taken)?,
        Service::Http => Vec::new(),
    };
    taken.records = records.len();
    shared.accept(sink, records);
    Ok(())
}

/// A request with its complete body.
struct WholeRequest<'a> {
    parts: &'a hyper::http::request::Parts,
    body: &'a [u8],
}

impl<'a> WholeRequest<'a> {
    fn path(&self) -> &'a str {
        self.parts.uri.path()
    }

    fn header(&self, name: impl header::AsHeaderName) -> &'a str {
        header_text(&self.parts.headers, name)
    }

    fn content_type(&self) -> &'a str {
        self.header(header::CONTENT_TYPE)
    }

    fn expect_post(&self) -> Result<(), Reject> {
        if self.parts.method == Method::POST {
            return Ok(());
        }
        let what = format!("{} {}: POST was expected", self.parts.method, self.path());
        Err(Reject::new(405, what))
    }

    /// The body without its compression.
    fn plain(&self, at_most: usize, taken: &mut RequestResult) -> Result<Vec<u8>, Reject> {
        let body = uncompress(self.body, self.header(header::CONTENT_ENCODING), at_most)?;
        taken.uncompressed = body.len();
        Ok(body)
    }

    fn datadog(&self, api_keys: &[String], taken: &mut RequestResult) -> Result<Vec<Record>, Reject> {
        let path = self.path();
        let key = match self.header("dd-api-key") {
            // As older senders do, and the real intake still accepts it.
            "" => query_value(self.parts.uri.query(), "api_key"),
            key => key,
        };
        let allowed = api_keys.is_empty() || api_keys.iter().any(|own| own == key);
        if key.is_empty() || !allowed {
            return Err(Reject::new(403, "no API key, or one that is not allowed"));
        }
        if path == "/api/v1/validate" {
            taken.body = r#"{"valid":true}"#;
            return Ok(Vec::new());
        }
        let limits =
            datadog::limits(path).ok_or_else(|| Reject::new(404, format!("the intake has no {path}")))?;
        self.expect_post()?;
        let compressed = self.body.len();
        if compressed > limits.compressed {
            let what = format!("{compressed} bytes compressed, {} allowed", limits.compressed);
            return Err(Reject::new(413, what));
        }
        let body = self.plain(limits.uncompressed, taken)?;
        taken.status = 202;
        taken.body = r#"{"errors":[]}"#;
        datadog::decode(path, self.content_type(), &body)
    }

    fn remote_write(&self, taken: &mut RequestResult) -> Result<Vec<Record>, Reject> {
        self.expect_post()?;
        let (encoding, content_type) = (self.header(header::CONTENT_ENCODING), self.content_type());
        if encoding != "snappy" {
            let what = format!("Content-Encoding {encoding:?}; snappy was expected");
            return Err(Reject::new(415, what));
        }
        if !datadog::is(content_type, "application/x-protobuf") {
            return Err(Reject::new(415, format!("Content-Type {content_type:?}")));
        }
        let version = self.header("x-prometheus-remote-write-version");
        let version_2 = content_type.contains("io.prometheus.write.v2.Request");
        if !version.starts_with(if version_2 { "2." } else { "0.1." }) {
            let what = format!("X-Prometheus-Remote-Write-Version {version:?}");
            return Err(Reject::new(400, what));
        }
        let body = unsnap(self.body)?;
        taken.uncompressed = body.len();
        taken.status = 204;
        let (records, written) = prometheus::remote_write(&body, version_2)?;
        if version_2 {
            for (name, count) in [
                ("x-prometheus-remote-write-samples-written", written.samples),
                ("x-prometheus-remote-write-histograms-written", written.histograms),
                ("x-prometheus-remote-write-exemplars-written", 0),
            ] {
                let name = HeaderName::from_static(name);
                taken.headers.push((name, count.to_string()));
            }
        }
        Ok(records)
    }

    fn otlp_http(&self, taken: &mut RequestResult) -> Result<Vec<Record>, Reject> {
        self.expect_post()?;
        let content_type = self.content_type();
        if !datadog::is(content_type, "application/x-protobuf") {
            let what = format!("Content-Type {content_type:?}; protobuf was expected");
            return Err(Reject::new(415, what));
        }
        let body = self.plain(BODY_BYTES_MAX, taken)?;
        match self.path() {
            "/v1/metrics" => otlp::metrics(&body),
            "/v1/logs" => otlp::logs(&body),
            "/v1/traces" => otlp::traces(&body),
            path => {
                let what = format!("no {path} here; /v1/metrics, /v1/logs and /v1/traces are");
                Err(Reject::new(404, what))
            }
        }
    }

    fn otlp_grpc(&self, taken: &mut RequestResult) -> Result<Vec<Record>, Reject> {
        self.expect_post()?;
        let content_type = self.content_type();
        if !content_type.starts_with("application/grpc") {
            let what = format!("Content-Type {content_type:?}; application/grpc was expected");
            return Err(Reject::new(415, what));
        }
        let decode = match self.path() {
            "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export" => otlp::metrics,
            "/opentelemetry.proto.collector.logs.v1.LogsService/Export" => otlp::logs,
            "/opentelemetry.proto.collector.trace.v1.TraceService/Export" => otlp::traces,
            path => return Err(Reject::new(404, format!("no method {path}"))),
        };
        let mut records = Vec::new();
        let mut rest = self.body;
        while let Some((head, after)) = rest.split_first_chunk::<5>() {
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
            let message = after
                .get(..length)
                .ok_or_else(|| Reject::new(400, "a gRPC message cut short"))?;
            rest = &after[length..];
            let encoding = match head[0] {
                0 => "",
                _ => self.header("grpc-encoding"),
            };
            let message = uncompress(message, encoding, BODY_BYTES_MAX)?;
            taken.uncompressed += message.len();
            records.extend(decode(&message)?);
        }
        match rest {
            [] => Ok(records),
            _ => Err(Reject::new(400, "a gRPC frame cut short")),
        }
    }
}

fn unsnap(body: &[u8]) -> Result<Vec<u8>, Reject> {
    let length = snap::raw::decompress_len(body).unwrap_or(usize::MAX);
    if length > BODY_BYTES_MAX {
        return Err(Reject::new(413, "uncompressed body too large, or not snappy"));
    }
    snap::raw::Decoder::new()
        .decompress_vec(body)
        .map_err(|error| Reject::new(400, format!("not a snappy block: {error}")))
}

fn uncompress(body: &[u8], encoding: &str, at_most: usize) -> Result<Vec<u8>, Reject> {
    let mut bytes = Vec::new();
    let limit = at_most as u64 + 1;
    let outcome = match encoding {
        "" | "identity" => body.take(limit).read_to_end(&mut bytes),
        "zstd" => zstd::stream::read::Decoder::new(body)
            .and_then(|decoder| decoder.take(limit).read_to_end(&mut bytes)),
        // The zlib format, as the name means; raw deflate is refused.
        "deflate" => flate2::read::ZlibDecoder::new(body)
            .take(limit)
            .read_to_end(&mut bytes),
        "gzip" => flate2::read::MultiGzDecoder::new(body)
            .take(limit)
            .read_to_end(&mut bytes),
        _ => {
            return Err(Reject::new(
                415,
                format!("Content-Encoding {encoding:?}; known are zstd, deflate, gzip, identity"),
            ));
        }
    };
    outcome.map_err(|error| Reject::new(400, format!("not {encoding}: {error}")))?;
    if bytes.len() > at_most {
        return Err(Reject::new(
            413,
            format!("more than {at_most} bytes uncompressed"),
        ));
    }
    Ok(bytes)
}

/// Reads a body, slowly if asked.
async fn read(mut body: Incoming, bytes_per_second: Option<u64>) -> Result<Bytes, Reject> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Reject::new(400, format!("the body ended early: {error}")))?;
        if let Some(data) = frame.data_ref() {
            bytes.extend_from_slice(data);
            if bytes.len() > BODY_BYTES_MAX {
                return Err(Reject::new(413, format!("more than {BODY_BYTES_MAX} bytes")));
            }
            if let Some(rate) = bytes_per_second {
                tokio::time::sleep(Duration::from_secs_f64(data.len() as f64 / rate as f64)).await;
            }
        }
    }
    Ok(bytes.into())
}

/// The value of a query parameter, or empty. Not decoded: keys are letters and digits.
fn query_value<'a>(query: Option<&'a str>, name: &str) -> &'a str {
    let mut pairs = query
        .unwrap_or_default()
        .split('&')
        .filter_map(|p| p.split_once('='));
    pairs.find(|(key, _)| *key == name).map_or("", |(_, value)| value)
}

/// All headers, with keys shortened to their end.
fn visible(headers: &HeaderMap) -> BTreeMap<String, String> {
    headers
        .iter()
        .map(|(name, value)| {
            let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
            let secret = name.as_str() == "dd-api-key" || *name == header::AUTHORIZATION;
            let shown = if secret {
                let end: String = text
                    .chars()
                    .skip(text.chars().count().saturating_sub(4))
                    .collect();
                format!("***{end}")
            } else {
                text
            };
            (name.as_str().to_owned(), shown)
        })
        .collect()
}

fn answer(
    service: Service,
    fault: &Fault,
    status: u16,
    taken: RequestResult,
    reject: Option<Reject>,
) -> Answer {
    let mut response = Response::builder();
    let text = match &reject {
        Some(reject) => reject.reason.clone(),
        None if (200..300).contains(&status) => taken.body.to_owned(),
        None => "fault on request".to_owned(),
    };
    for (name, value) in &taken.headers {
        response = response.header(name, value);
    }
    if let Some(after) = &fault.retry_after {
        response = response.header(header::RETRY_AFTER, after);
    }
    if service == Service::OtlpGrpc {
        // An HTTP status becomes gRPC's nearest, unless the fault applies below gRPC.
        if fault.status.is_none() {
            let code = match &reject {
                None => fault.grpc_status.unwrap_or(0),
                Some(reject) if reject.status == 404 => 12,
                Some(_) => 3,
            };
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from(code));
            if code != 0 {
                let text: String = text
                    .chars()
                    .filter(|c| c.is_ascii_graphic() || *c == ' ')
                    .collect();
                trailers.insert("grpc-message", HeaderValue::from_str(&text).expect("printable"));
            }
            // An empty response message.
            let message = if code == 0 {
                Bytes::from_static(&[0; 5])
            } else {
                Bytes::new()
            };
            let body = Full::new(message).with_trailers(std::future::ready(Some(Ok(trailers))));
            return response
                .header(header::CONTENT_TYPE, "application/grpc")
                .body(body.boxed())
                .expect("valid parts");
        }
    }
    response = response.status(StatusCode::from_u16(status).unwrap_or(StatusCode::OK));
    if taken.body.starts_with('{') && reject.is_none() {
        response = response.header(header::CONTENT_TYPE, "application/json");
    }
    if fault.close == Close::After {
        response = response.header(header::CONNECTION, "close");
    }
    let bytes = Bytes::from(text);
    let body = match fault.slow_write {
        None => Full::new(bytes).boxed(),
        Some(rate) => Slow {
            rest: bytes,
            wait: Box::pin(tokio::time::sleep(Duration::ZERO)),
            every: Duration::from_secs_f64(1.0 / rate as f64),
        }
        .boxed(),
    };
    response.body(body).expect("valid parts")
}

/// A body that comes one byte at a time.
struct Slow {
    rest: Bytes,
    wait: Pin<Box<tokio::time::Sleep>>,
    every: Duration,
}

impl Body for Slow {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        std::task::ready!(self.wait.as_mut().poll(context));
        let next = tokio::time::Instant::now() + self.every;
        self.wait.as_mut().reset(next);
        let byte = self.rest.split_to(1);
        Poll::Ready(Some(Ok(Frame::data(byte))))
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        hyper::body::SizeHint::with_exact(self.rest.len() as u64)
    }
}

/// `/_sink/...`: the queries of scripts while the sink runs.
fn admin(shared: &Shared, method: &Method, verb: &str, body: &[u8]) -> Answer {
    let text = |status: u16, kind: &str, text: String| {
        Response::builder()
            .status(status)
            .header(header::CONTENT_TYPE, kind)
            .body(Full::new(Bytes::from(text)).boxed())
            .expect("valid parts")
    };
    let mut faults = shared.faults.lock().expect("no holder panics");
    match (method, verb) {
        (&Method::GET, "stats") => text(200, "application/json", shared.stats().to_string() + "\n"),
        (&Method::GET, "points") => text(200, "application/jsonl", shared.kept(|inner| &inner.kept_records)),
        (&Method::GET, "requests") => text(
            200,
            "application/jsonl",
            shared.kept(|inner| &inner.kept_requests),
        ),
        (&Method::POST, "reset") => {
            shared.reset();
            text(200, "text/plain", String::new())
        }
        (&Method::GET, "faults") => text(200, "text/plain", faults.to_string()),
        (&Method::DELETE, "faults") => {
            faults.clear();
            text(200, "text/plain", String::new())
        }
        (&Method::POST, "faults") => {
            let rules = String::from_utf8_lossy(body);
            match rules.lines().map(str::parse).collect::<Result<Vec<Fault>, _>>() {
                Ok(rules) => {
                    rules.into_iter().for_each(|rule| faults.add(rule));
                    text(200, "text/plain", faults.to_string())
                }
                Err(error) => text(400, "text/plain", format!("{error}\n")),
            }
        }
        _ => text(
            404,
            "text/plain",
            "known: GET stats, points, requests, faults; POST faults, reset; DELETE faults\n".into(),
        ),
    }
}
