//! OpenTelemetry metrics (OTLP) over HTTP and gRPC: sums, gauges, exponential histograms and summaries, delta or cumulative.

mod cumulative;
mod encode;
mod grpc;
mod parts;
mod request;
mod settings;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use reqwest::Method;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue};
use weir_aggregate::{Batch, Expansion};

pub use encode::{Facts, OtlpEncoder};
pub(crate) use settings::TYPE;
pub use settings::{OtlpCompression, OtlpHistograms, OtlpSettings, Protocol, Temporality};

use crate::StartError;
use crate::delivery::{
    BoxFuture, Clock, Delivery, Endpoint, Order, Outcome, OutputEnvironment, Parts, Payload, Transport,
};
use crate::http::{self, Client, Http2, Response};
use crate::preview;
use crate::probe::{Destination, Route};
use crate::protobuf::{Content, for_each_field};
use crate::settings::Start;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Destination of requests.
fn url(settings: &OtlpSettings) -> String {
    let path = match settings.protocol {
        Protocol::Http => "/v1/metrics",
        Protocol::Grpc => grpc::PATH,
    };
    format!("{}{path}", settings.url.trim_end_matches('/'))
}

impl Start for OtlpSettings {
    fn preview(&self, batch: &Batch, expansion: &Arc<Expansion>) -> Vec<String> {
        let (weights, clock) = (expansion.weights(), Clock::system());
        let encoder = OtlpEncoder::new(self, weights, u64::MAX, clock, Arc::default());
        let is_gzip = self.compression == OtlpCompression::Gzip;
        preview::of_parts(&preview::payloads(encoder, batch), |payload| {
            parts::Points::of(payload, is_gzip)
        })
    }

    fn adds_up(&self) -> bool {
        self.temporality == Temporality::Cumulative
    }

    fn destinations(&self) -> Result<Vec<Destination>, StartError> {
        Ok(vec![Destination {
            label: http::shown_url(&self.url),
            route: Route::Http {
                url: url(self),
                headers: http::configured_headers(&self.authorization)?,
                delivery: Box::new(self.delivery.clone()),
                is_http2: self.protocol == Protocol::Grpc,
            },
        }])
    }

    fn start(
        &self,
        name: &str,
        expansion: &Arc<Expansion>,
        environment: &OutputEnvironment,
    ) -> Result<Delivery, StartError> {
        let agent = format!("weir/{VERSION}");
        let client = match self.protocol {
            Protocol::Http => Protocols::Http(http::client(&self.delivery, &agent)?),
            Protocol::Grpc => Protocols::Grpc(Box::new(Http2::new(&self.delivery, &agent)?)),
        };
        let facts = Arc::new(Facts::default());
        let clock = &environment.clock;
        let encoder = OtlpEncoder::new(
            self,
            expansion.weights(),
            environment.state_bytes_max,
            clock.clone(),
            facts.clone(),
        );
        let base = self.url.trim_end_matches('/');
        let collector = Collector {
            url: url(self),
            headers: http::configured_headers(&self.authorization)?,
            client,
            clock: clock.clone(),
            facts: (self.temporality == Temporality::Cumulative).then_some(facts),
        };
        let endpoint = Endpoint {
            label: http::shown_url(&self.url),
            directory: http::directory(base, ""),
            family: None,
            transport: Arc::new(collector),
        };
        // Receivers that turn deltas into sums drop points older than their newest.
        let order = Order::TimeOrder;
        let started = Delivery::start(
            name,
            &self.delivery,
            order,
            Box::new(encoder),
            vec![endpoint],
            environment,
        );
        Ok(started?)
    }
}

enum Protocols {
    Http(Client),
    Grpc(Box<Http2>),
}

struct Collector {
    url: String,
    headers: HeaderMap,
    client: Protocols,
    clock: Clock,
    /// Facts about the state, if there is one.
    facts: Option<Arc<Facts>>,
}

impl Transport for Collector {
    fn send(&self, payload: Payload) -> BoxFuture<'_, Outcome> {
        Box::pin(async move {
            let is_gzip = match payload.route {
                0 => true,
                1 => false,
                _ => {
                    return Outcome::Rejected {
                        error: "the disk queue holds a payload of a newer version".into(),
                    };
                }
            };
            let mut headers = self.headers.clone();
            headers.extend([http::idempotency_key(&payload)]);
            let client = match &self.client {
                Protocols::Grpc(http2) => {
                    return grpc::send(http2, &self.url, headers, is_gzip, &payload).await;
                }
                Protocols::Http(client) => client,
            };
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
            if is_gzip {
                headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            }
            let body = payload.body.clone();
            let now = self.clock.unix();
            match http::send(client, Method::POST, &self.url, headers, body, now).await {
                Ok(answer) => outcome(&payload, &answer),
                Err(error) => error.retry(),
            }
        })
    }

    fn parts(&self, payload: &Payload) -> Option<Box<dyn Parts>> {
        Some(Box::new(parts::Points::of(payload, payload.route == 0)?))
    }

    fn details(&self) -> BTreeMap<&'static str, String> {
        let Some(facts) = &self.facts else {
            return BTreeMap::new();
        };
        BTreeMap::from([
            ("series", facts.series.load(Ordering::Relaxed).to_string()),
            ("state_bytes", facts.bytes.load(Ordering::Relaxed).to_string()),
        ])
    }
}

/// OTLP says which errors of client and server may be repeated: 429 and 502 to 504.
fn outcome(payload: &Payload, answer: &Response) -> Outcome {
    match answer.status {
        200..300 => taken(payload, &answer.body),
        // Not repeated by that rule, and Prometheus answers so for the sake of a single label.
        500 => Outcome::Invalid {
            error: answer.text("refused"),
        },
        408 | 501 | 505..600 => Outcome::Rejected {
            error: answer.text("refused"),
        },
        _ => answer.outcome(),
    }
}

/// Reads an `ExportMetricsServiceResponse`: a success may be one in part.
fn taken(payload: &Payload, body: &[u8]) -> Outcome {
    let (mut rejected, mut error) = (0i64, String::new());
    // An unreadable or truncated answer still means success.
    let _ = for_each_field(body, |field, content| {
        if let (1, Content::Bytes(partial)) = (field, content) {
            let _ = for_each_field(partial, |field, content| {
                match (field, content) {
                    (1, Content::Integer(count)) => rejected = count as i64,
                    (2, Content::Bytes(message)) => error = http::one_line(&String::from_utf8_lossy(message)),
                    _ => {}
                }
                Some(())
            });
        }
        Some(())
    });
    if rejected <= 0 {
        if !error.is_empty() {
            tracing::warn!(error, "the collector accepted everything, with a warning");
        }
        return Outcome::Delivered;
    }
    Outcome::Partly {
        rejected: u32::try_from(rejected).unwrap_or(u32::MAX).min(payload.count),
        error: format!("the collector refused {rejected} points: {error}"),
    }
}
