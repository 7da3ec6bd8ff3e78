//! Receivers of lines over HTTP.

use std::collections::BTreeMap;

use reqwest::Method;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue};
use xxhash_rust::xxh3::xxh3_128;

use super::InfluxCompression;
use super::encode::parse_route;
use super::names::series_end;
use crate::claims::{Notes, shown};
use crate::compress::{compressed, decompressed};
use crate::delivery::{BoxFuture, Clock, Keep, Outcome, Parts, Payload, Transport};
use crate::http::{self, Client, Response};

pub struct Receiver {
    pub url: String,
    pub headers: HeaderMap,
    pub client: Client,
    pub clock: Clock,
    pub notes: Notes,
}

impl Transport for Receiver {
    fn send(&self, payload: Payload) -> BoxFuture<'_, Outcome> {
        Box::pin(async move {
            let Some((precision, compression)) = parse_route(payload.route) else {
                return Outcome::Rejected {
                    error: "the disk queue holds a payload of a newer version".into(),
                };
            };
            let mut headers = self.headers.clone();
            headers.insert(
                CONTENT_TYPE,
                HeaderValue::from_static("text/plain; charset=utf-8"),
            );
            if compression == InfluxCompression::Gzip {
                headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            }
            headers.extend([http::idempotency_key(&payload)]);
            let separator = if self.url.contains('?') { '&' } else { '?' };
            let url = format!("{}{separator}precision={}", self.url, precision.as_str());
            let body = payload.body.clone();
            let now = self.clock.unix();
            match http::send(&self.client, Method::POST, &url, headers, body, now).await {
                Ok(answer) => outcome(&payload, &answer),
                Err(error) => error.retry(),
            }
        })
    }

    fn parts(&self, payload: &Payload) -> Option<Box<dyn Parts>> {
        let (_, compression) = parse_route(payload.route)?;
        let lines = decompressed(compression.codec(), &payload.body)?;
        Some(Box::new(Lines { compression, lines }))
    }

    fn details(&self) -> BTreeMap<&'static str, String> {
        shown(&self.notes)
    }
}

fn outcome(payload: &Payload, answer: &Response) -> Outcome {
    match answer.status {
        400 | 422 => match dropped(&String::from_utf8_lossy(&answer.body)) {
            // All others were written.
            Some(points) if points < payload.count => Outcome::Partly {
                rejected: points,
                error: answer.text("refused in part"),
            },
            _ => answer.outcome(),
        },
        // The database or bucket can still be made.
        404 => answer.retry("there is no such database, bucket or path"),
        _ => answer.outcome(),
    }
}

/// Number of points of a request that InfluxDB reports as not written: `partial write: ... dropped=2`.
fn dropped(message: &str) -> Option<u32> {
    let (_, rest) = message.split_once("partial write:")?;
    let (_, number) = rest.rsplit_once("dropped=")?;
    let end = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
    number[..end].parse().ok()
}

/// A payload taken apart into its lines: each is one series.
struct Lines {
    compression: InfluxCompression,
    lines: Vec<u8>,
}

impl Parts for Lines {
    fn pick(&self, keep: &mut Keep<'_>) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        for line in self.lines.split_inclusive(|byte| *byte == b'\n') {
            let series = &line[..series_end(line)?];
            if keep(xxh3_128(series), &|| String::from_utf8_lossy(series).into_owned()) {
                out.extend_from_slice(line);
            }
        }
        Some(compressed(self.compression.codec(), out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_with_the_number_of_dropped_points() {
        for (message, points) in [
            (
                r#"{"error":"partial write: field type conflict: input field \"value\" on measurement \"a\" is type float, already exists as type integer dropped=2"}"#,
                Some(2),
            ),
            (
                r#"{"code":"unprocessable entity","message":"failure writing points to database: partial write: points beyond retention policy dropped=17"}"#,
                Some(17),
            ),
            (r#"{"error":"unable to parse 'a b': invalid field format"}"#, None),
            ("partial write: dropped=many", None),
        ] {
            assert_eq!(dropped(message), points, "{message}");
        }
    }
}
