//! Prometheus remote write, 1.0 and 2.0: cumulative series, native histograms, staleness markers, in the order of time.

mod encode;
mod parts;
mod request;
mod settings;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use reqwest::Method;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue};
use weir_aggregate::{Batch, Expansion, Weights};

pub use encode::{Facts, RemoteWriteEncoder};
pub(crate) use settings::TYPE;
pub use settings::{RemoteWriteSettings, RemoteWriteVersion};

use crate::StartError;
use crate::delivery::{
    BoxFuture, Clock, Delivery, Endpoint, Order, Outcome, OutputEnvironment, Parts, Payload, Transport,
};
use crate::http::{self, Client, Response};
use crate::preview;
use crate::probe::{Destination, Route};
use crate::settings::Start;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Starts the output on the current tokio runtime. Fails with a sentence that names the setting or the path.
pub fn start(
    name: &str,
    settings: &RemoteWriteSettings,
    weights: Weights,
    environment: &OutputEnvironment,
) -> Result<Delivery, StartError> {
    let client = http::client(&settings.delivery, &format!("weir/{VERSION}"))?;
    let facts = Arc::new(Facts::default());
    let clock = &environment.clock;
    let encoder = RemoteWriteEncoder::new(
        settings,
        weights,
        environment.state_bytes_max,
        clock.clone(),
        facts.clone(),
    );
    let receiver = Receiver {
        url: settings.url.clone(),
        headers: http::configured_headers(&settings.authorization)?,
        client,
        clock: clock.clone(),
        facts,
    };
    let endpoint = Endpoint {
        label: http::shown_url(&settings.url),
        directory: http::directory(&settings.url, ""),
        family: None,
        transport: Arc::new(receiver),
    };
    let started = Delivery::start(
        name,
        &settings.delivery,
        Order::TimeOrder,
        Box::new(encoder),
        vec![endpoint],
        environment,
    );
    Ok(started?)
}

impl Start for RemoteWriteSettings {
    fn preview(&self, batch: &Batch, expansion: &Arc<Expansion>) -> Vec<String> {
        let (weights, clock) = (expansion.weights(), Clock::system());
        let encoder = RemoteWriteEncoder::new(self, weights, u64::MAX, clock, Arc::default());
        let open = |payload: &Payload| parts::RequestSeries::of(self.version, payload);
        preview::of_parts(&preview::payloads(encoder, batch), open)
    }

    fn adds_up(&self) -> bool {
        true
    }

    fn start(
        &self,
        name: &str,
        expansion: &Arc<Expansion>,
        environment: &OutputEnvironment,
    ) -> Result<Delivery, StartError> {
        start(name, self, expansion.weights(), environment)
    }

    fn destinations(&self) -> Result<Vec<Destination>, StartError> {
        Ok(vec![Destination {
            label: http::shown_url(&self.url),
            route: Route::Http {
                url: self.url.clone(),
                headers: http::configured_headers(&self.authorization)?,
                delivery: Box::new(self.delivery.clone()),
                is_http2: false,
            },
        }])
    }
}

struct Receiver {
    url: String,
    headers: HeaderMap,
    client: Client,
    clock: Clock,
    facts: Arc<Facts>,
}

impl Transport for Receiver {
    fn send(&self, payload: Payload) -> BoxFuture<'_, Outcome> {
        Box::pin(async move {
            let (version, content_type, number) = match payload.route {
                0 => (RemoteWriteVersion::V1, "application/x-protobuf", "0.1.0"),
                1 => (
                    RemoteWriteVersion::V2,
                    "application/x-protobuf;proto=io.prometheus.write.v2.Request",
                    "2.0.0",
                ),
                _ => {
                    return Outcome::Rejected {
                        error: "the disk queue holds a payload of a newer version".into(),
                    };
                }
            };
            let mut headers = self.headers.clone();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("snappy"));
            headers.insert(
                "x-prometheus-remote-write-version",
                HeaderValue::from_static(number),
            );
            headers.extend([http::idempotency_key(&payload)]);
            let body = payload.body.clone();
            let sent = http::send(
                &self.client,
                Method::POST,
                &self.url,
                headers,
                body,
                self.clock.unix(),
            );
            match sent.await {
                Ok(answer) => outcome(version, &payload, &answer),
                Err(error) => error.retry(),
            }
        })
    }

    fn parts(&self, payload: &Payload) -> Option<Box<dyn Parts>> {
        let version = match payload.route {
            0 => RemoteWriteVersion::V1,
            _ => RemoteWriteVersion::V2,
        };
        Some(Box::new(parts::RequestSeries::of(version, payload)?))
    }

    fn details(&self) -> BTreeMap<&'static str, String> {
        let facts = &self.facts;
        BTreeMap::from([
            ("series", facts.series.load(Ordering::Relaxed).to_string()),
            ("state_bytes", facts.bytes.load(Ordering::Relaxed).to_string()),
            (
                "renamed_metrics",
                facts.renamed.load(Ordering::Relaxed).to_string(),
            ),
            ("merged_points", facts.merged.load(Ordering::Relaxed).to_string()),
        ])
    }
}

fn outcome(version: RemoteWriteVersion, payload: &Payload, answer: &Response) -> Outcome {
    let status = answer.status;
    let text = |what: &str| answer.text(what);
    match status {
        200..300 if version == RemoteWriteVersion::V1 => Outcome::Delivered,
        200..300 => match missing(payload, answer) {
            Some(Missing { points: 0, .. }) => Outcome::Delivered,
            Some(Missing { points, samples }) => Outcome::Partly {
                rejected: points,
                error: format!("the receiver did not write {samples} samples of a request"),
            },
            None => Outcome::Rejected {
                error: text("without saying what was written: the receiver does not speak version 2.0"),
            },
        },
        401 | 403 | 407 | 408 | 429 => answer.outcome(),
        415 => Outcome::Rejected {
            error: text("refused: the receiver does not speak this version of remote write"),
        },
        400..500 => match missing(payload, answer) {
            // Version 2.0 reports requests that were written in part.
            Some(Missing { points, .. }) if version == RemoteWriteVersion::V2 && points < payload.count => {
                Outcome::Partly {
                    rejected: points,
                    error: text("refused in part"),
                }
            }
            // Out of order, or twice: it may be one series.
            _ if status == 409 => Outcome::Invalid {
                error: text("refused"),
            },
            _ => answer.outcome(),
        },
        // Prometheus before 3.0 answers so for good; waiting for it would stop everything else.
        500 if answer.message.contains("native histograms") => Outcome::Rejected {
            error: text("refused; the setting `distributions: summary` sends none"),
        },
        _ => answer.outcome(),
    }
}

/// The part of a 2.0 request that a receiver did not write.
struct Missing {
    samples: u64,
    /// The same share of the points, at least one.
    points: u32,
}

/// `None` if the receiver does not say.
fn missing(payload: &Payload, answer: &Response) -> Option<Missing> {
    let count = |name: &str| {
        answer
            .headers
            .get(name)?
            .to_str()
            .ok()?
            .trim()
            .parse::<u64>()
            .ok()
    };
    let samples = count("x-prometheus-remote-write-samples-written");
    let histograms = count("x-prometheus-remote-write-histograms-written");
    let written = match (samples, histograms) {
        (None, None) => return None,
        (samples, histograms) => samples.unwrap_or(0) + histograms.unwrap_or(0),
    };
    let (samples, histograms) = request::written(&payload.body)?;
    let sent = samples + histograms;
    let samples = sent.saturating_sub(written);
    if samples == 0 {
        return Some(Missing { samples, points: 0 });
    }
    let points = (u128::from(payload.count) * u128::from(samples)).div_ceil(u128::from(sent));
    Some(Missing {
        samples,
        points: (points as u32).max(1),
    })
}
