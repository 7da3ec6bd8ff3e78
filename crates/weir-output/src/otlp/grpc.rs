//! gRPC as far as one unary call needs it: a frame in a POST over HTTP/2, and a status in the trailers.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD_INDIFFERENT;
use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::BodyExt;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE};
use reqwest::{Body, Method};

use super::taken;
use crate::delivery::{Outcome, Payload};
use crate::http::DENIED;
use crate::http::{Http2, RequestError};
use crate::protobuf::{Content, for_each_field};

pub const PATH: &str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";

/// More of an answer than this is not read.
const ANSWER_MAX: usize = 64 << 10;

pub async fn send(
    http2: &Http2,
    url: &str,
    mut headers: HeaderMap,
    is_gzip: bool,
    payload: &Payload,
) -> Outcome {
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(TE, HeaderValue::from_static("trailers"));
    if is_gzip {
        headers.insert("grpc-encoding", HeaderValue::from_static("gzip"));
    }
    // Answers are small; one that is compressed would have to be understood.
    headers.insert("grpc-accept-encoding", HeaderValue::from_static("identity"));
    let call = match http2.call() {
        Ok(call) => call,
        Err(error) => {
            return Outcome::Retry {
                error: error.to_string(),
                after: None,
            };
        }
    };
    let request = call.client.request(Method::POST, url);
    let request = request.headers(headers).body(frame(is_gzip, &payload.body));
    let answer = call
        .client
        .apart(async move { GrpcResponse::read(request.send().await?).await });
    let answer = answer.await;
    call.done();
    match answer {
        Ok(answer) => answer.outcome(payload),
        Err(error) => error.retry(),
    }
}

/// A message behind its head: whether it is compressed, and its length.
fn frame(is_gzip: bool, message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(message.len() + 5);
    frame.put_u8(u8::from(is_gzip));
    frame.put_u32(message.len() as u32);
    frame.put_slice(message);
    frame.freeze()
}

struct GrpcResponse {
    http_status: u16,
    /// `None` where the server is none of gRPC.
    status: Option<u16>,
    message: String,
    retry_after: Option<Duration>,
    body: Vec<u8>,
}

impl GrpcResponse {
    async fn read(response: reqwest::Response) -> Result<GrpcResponse, RequestError> {
        let http_status = response.status().as_u16();
        let headers = response.headers().clone();
        let mut body = Body::from(response);
        let (mut bytes, mut trailers) = (Vec::new(), None);
        while let Some(frame) = body.frame().await {
            match frame?.into_data() {
                Ok(data) if bytes.len() < ANSWER_MAX => bytes.extend_from_slice(&data),
                Ok(_) => {}
                Err(frame) => trailers = frame.into_trailers().ok(),
            }
        }
        // A call that fails at once has its status in the headers.
        let of = |name: &str| {
            let found = trailers.as_ref().and_then(|trailers| trailers.get(name));
            found
                .or_else(|| headers.get(name))
                .and_then(|value| value.to_str().ok())
        };
        let details = of("grpc-status-details-bin").and_then(base64).unwrap_or_default();
        Ok(GrpcResponse {
            http_status,
            status: of("grpc-status").and_then(|status| status.parse().ok()),
            message: crate::http::one_line(&percent_decoded(of("grpc-message").unwrap_or_default())),
            retry_after: retry_delay(&details),
            body: bytes,
        })
    }

    /// OTLP says which codes may be repeated: these, and no others.
    fn outcome(&self, payload: &Payload) -> Outcome {
        let Some(status) = self.status else {
            let error = format!("no gRPC status in the answer, HTTP status {}", self.http_status);
            return match self.http_status {
                401 | 403 | 407 => Outcome::Denied {
                    error: format!("{DENIED} ({error})"),
                },
                429 | 502..=504 => Outcome::Retry { error, after: None },
                400..600 => Outcome::Rejected { error },
                // The stream ended before its trailers, or a redirect, or a status that nobody knows: as over HTTP.
                _ => Outcome::Retry { error, after: None },
            };
        };
        let error = format!("{}: {}", name(status), self.message);
        let after = self.retry_after;
        match status {
            0 => taken(payload, self.body.get(5..).unwrap_or_default()),
            // Cancelled, deadline exceeded, aborted, out of range, unavailable, data loss.
            1 | 4 | 10 | 11 | 14 | 15 => Outcome::Retry { error, after },
            // Exhausted for good, unless the server says when to come back.
            8 if after.is_some() => Outcome::Retry { error, after },
            // Permission denied, unauthenticated.
            7 | 16 => Outcome::Denied {
                error: format!("{DENIED} ({error})"),
            },
            // Unknown, invalid argument, internal: it may be a single point.
            2 | 3 | 13 => Outcome::Invalid { error },
            _ => Outcome::Rejected { error },
        }
    }
}

fn name(status: u16) -> String {
    const NAMES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    let name = NAMES.get(usize::from(status));
    name.map_or_else(|| format!("gRPC status {status}"), |name| (*name).to_owned())
}

/// The delay of the `google.rpc.RetryInfo` in a `google.rpc.Status`.
fn retry_delay(status: &[u8]) -> Option<Duration> {
    let mut delay = None;
    for_each_field(status, |field, content| {
        let (3, Content::Bytes(any)) = (field, content) else {
            return Some(());
        };
        let (mut is_retry_info, mut value) = (false, &[][..]);
        for_each_field(any, |field, content| {
            match (field, content) {
                (1, Content::Bytes(url)) => is_retry_info = url.ends_with(b"/google.rpc.RetryInfo"),
                (2, Content::Bytes(bytes)) => value = bytes,
                _ => {}
            }
            Some(())
        })?;
        if is_retry_info {
            delay = Some(Duration::ZERO);
            for_each_field(value, |field, content| {
                if let (1, Content::Bytes(duration)) = (field, content) {
                    delay = duration_of(duration);
                }
                Some(())
            })?;
        }
        Some(())
    })?;
    delay
}

/// A `google.protobuf.Duration`; one that is negative is none.
fn duration_of(bytes: &[u8]) -> Option<Duration> {
    let (mut seconds, mut nanos) = (0i64, 0i64);
    for_each_field(bytes, |field, content| {
        match (field, content) {
            (1, Content::Integer(value)) => seconds = value as i64,
            (2, Content::Integer(value)) => nanos = value as i64,
            _ => {}
        }
        Some(())
    })?;
    let nanos = u32::try_from(nanos).ok().filter(|nanos| *nanos < 1_000_000_000)?;
    Some(Duration::new(u64::try_from(seconds).ok()?, nanos))
}

/// Base64 with or without padding, as in gRPC headers.
fn base64(text: &str) -> Option<Vec<u8>> {
    STANDARD_NO_PAD_INDIFFERENT.decode(text).ok()
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = (*first == b'%')
            .then(|| std::str::from_utf8(tail.get(..2)?).ok())
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_details() {
        // code 8, message "x", RetryInfo of 1.5 s.
        let mut duration = Vec::new();
        crate::protobuf::integer(&mut duration, 1, 1);
        crate::protobuf::integer(&mut duration, 2, 500_000_000);
        let mut info = Vec::new();
        crate::protobuf::bytes(&mut info, 1, &duration);
        let mut status = Vec::new();
        crate::protobuf::integer(&mut status, 1, 8);
        crate::protobuf::string(&mut status, 2, "x");
        crate::protobuf::message(&mut status, 3, |out| {
            crate::protobuf::string(out, 1, "type.googleapis.com/google.rpc.RetryInfo");
            crate::protobuf::bytes(out, 2, &info);
        });
        assert_eq!(retry_delay(&status), Some(Duration::from_millis(1500)));
        assert_eq!(retry_delay(b""), None);
        assert_eq!(retry_delay(b"\xff\xff"), None);
    }

    /// An answer that is none of gRPC, by its HTTP status: as over HTTP/1.1.
    #[test]
    fn answers_without_a_grpc_status() {
        let payload = Payload {
            id: 1,
            route: 0,
            class: crate::delivery::Class::Points,
            count: 1,
            created: 0,
            body: Bytes::new(),
        };
        let outcome = |http_status| {
            let response = GrpcResponse {
                http_status,
                status: None,
                message: String::new(),
                retry_after: None,
                body: Vec::new(),
            };
            response.outcome(&payload)
        };
        for status in [200, 299, 300, 302, 307, 308, 399, 429, 502, 503, 504, 600, 999] {
            assert!(matches!(outcome(status), Outcome::Retry { .. }), "{status}");
        }
        for status in [401, 403, 407] {
            assert!(matches!(outcome(status), Outcome::Denied { .. }), "{status}");
        }
        for status in [400, 404, 408, 428, 430, 499, 500, 501, 505, 599] {
            assert!(matches!(outcome(status), Outcome::Rejected { .. }), "{status}");
        }
    }

    #[test]
    fn texts_in_headers() {
        assert_eq!(base64("aGVsbG8").unwrap(), b"hello");
        assert_eq!(base64("aGVsbG8=").unwrap(), b"hello");
        assert_eq!(base64("a b"), None);
        assert_eq!(percent_decoded("50%25 of%20it%"), "50% of it%");
    }

    #[test]
    fn a_frame_has_its_length_in_front() {
        assert_eq!(&frame(true, b"abc")[..], b"\x01\0\0\0\x03abc");
    }
}
