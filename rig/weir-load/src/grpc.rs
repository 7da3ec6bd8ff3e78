//! A minimal gRPC client: unary calls, one at a time, over one HTTP/2 connection without TLS.
//!
//! HTTP/2 is hyper's, on a single-threaded runtime that runs only during a call.

use crate::profile::Payload;
use crate::requests::{PostResult, Requests};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::io;
use std::net::TcpStream;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// The method for a payload, if there is one.
pub fn method(payload: Payload) -> Option<&'static str> {
    match payload {
        Payload::OtlpLogs => Some("/opentelemetry.proto.collector.logs.v1.LogsService/Export"),
        Payload::OtlpMetrics => Some("/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"),
        Payload::OtlpTraces => Some("/opentelemetry.proto.collector.trace.v1.TraceService/Export"),
        _ => None,
    }
}

/// The calls of one connection.
pub struct Calls {
    runtime: Runtime,
    sender: SendRequest<Full<Bytes>>,
    /// The request without its body.
    head: Request<()>,
}

impl Calls {
    /// Performs the HTTP/2 handshake. `headers` are metadata, as `Name: value`.
    pub fn new(payload: Payload, host: &str, stream: &TcpStream, headers: &[String]) -> io::Result<Calls> {
        let path = method(payload).ok_or_else(|| io::Error::other("no gRPC method takes this payload"))?;
        let mut head = Request::post(format!("http://{host}{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("user-agent", "weir-load");
        for header in headers {
            let (name, value) = header.split_once(':').unwrap_or_default();
            head = head.header(name, value.trim());
        }
        let head = head.body(()).map_err(io::Error::other)?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let stream = stream.try_clone()?;
        let sender = runtime.block_on(async {
            let stream = TokioIo::new(tokio::net::TcpStream::from_std(stream)?);
            let (sender, connection) = http2::handshake(TokioExecutor::new(), stream)
                .await
                .map_err(io::Error::other)?;
            // The current call gets the error that ends the connection.
            tokio::spawn(connection);
            Ok::<_, io::Error>(sender)
        })?;
        Ok(Calls {
            runtime,
            sender,
            head,
        })
    }
}

impl Requests for Calls {
    fn post(&mut self, body: &[u8], _records: u32, patience: Duration) -> io::Result<PostResult> {
        // The prefix: uncompressed, and the length.
        let mut message = Vec::with_capacity(body.len() + 5);
        message.push(0);
        message.extend_from_slice(&(body.len() as u32).to_be_bytes());
        message.extend_from_slice(body);
        let (head, ()) = self.head.clone().into_parts();
        let request = Request::from_parts(head, Full::new(Bytes::from(message)));
        let sender = &mut self.sender;
        let call = async {
            sender.ready().await.map_err(broken)?;
            let (head, body) = sender.send_request(request).await.map_err(broken)?.into_parts();
            let body = body.collect().await.map_err(broken)?;
            let trailers = body.trailers().cloned().unwrap_or_default();
            Ok(answer(&Response::from_parts(head, ()), &trailers))
        };
        self.runtime.block_on(async {
            tokio::time::timeout(patience, call)
                .await
                .unwrap_or_else(|_| Err(io::Error::other(format!("no answer within {patience:?}"))))
        })
    }
}

/// The connection ended, or the server cancelled the call.
fn broken(error: hyper::Error) -> io::Error {
    let mut cause: &dyn std::error::Error = &error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    match cause.downcast_ref::<io::Error>() {
        Some(lost) => lost.kind().into(),
        None if error.is_closed() || error.is_canceled() => io::ErrorKind::ConnectionReset.into(),
        None => io::Error::other(format!("no gRPC server, or one that gave up: {cause}")),
    }
}

/// The meaning of the status. A call that fails at once has it in the headers.
fn answer(head: &Response<()>, trailers: &HeaderMap) -> PostResult {
    let of = |name: &str| {
        let found = trailers.get(name).or_else(|| head.headers().get(name));
        found.and_then(|value| value.to_str().ok()).unwrap_or_default()
    };
    match of("grpc-status") {
        "0" => PostResult::Taken,
        // Unavailable, or exhausted with a time to retry.
        "14" => PostResult::Busy,
        "8" if !of("grpc-status-details-bin").is_empty() => PostResult::Busy,
        "" if matches!(head.status().as_u16(), 429 | 503) => PostResult::Busy,
        "" => PostResult::Rejected(format!(
            "HTTP status {} and no gRPC status",
            head.status().as_u16()
        )),
        status => PostResult::Rejected(
            format!("gRPC status {status} {}", of("grpc-message"))
                .trim_end()
                .to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_in_trailers_or_headers_counts_and_a_missing_one_is_an_error() {
        let fields = |pairs: &[(&'static str, &'static str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in pairs {
                map.insert(*name, value.parse().unwrap());
            }
            map
        };
        let head = |status: u16, pairs: &[(&'static str, &'static str)]| {
            let mut head = Response::builder().status(status).body(()).unwrap();
            *head.headers_mut() = fields(pairs);
            head
        };
        let none = fields(&[]);
        assert_eq!(
            answer(&head(200, &[]), &fields(&[("grpc-status", "0")])),
            PostResult::Taken
        );
        assert_eq!(
            answer(&head(200, &[("grpc-status", "14")]), &none),
            PostResult::Busy
        );
        assert_eq!(answer(&head(503, &[]), &none), PostResult::Busy);
        let details = [("grpc-status", "8"), ("grpc-status-details-bin", "x")];
        assert_eq!(answer(&head(200, &details), &none), PostResult::Busy);
        let exhausted = [("grpc-status", "8"), ("grpc-message", "larger than max")];
        for (head, said) in [
            (head(200, &exhausted), "gRPC status 8 larger than max"),
            (head(200, &[]), "HTTP status 200 and no gRPC status"),
            (head(404, &[]), "HTTP status 404 and no gRPC status"),
            (head(200, &[("grpc-status", "12")]), "gRPC status 12"),
        ] {
            assert_eq!(answer(&head, &none), PostResult::Rejected(said.into()));
        }
    }
}
