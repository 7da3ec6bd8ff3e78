//! The Datadog intake: series, sketches, events and service checks.

mod columns;
mod encode;
mod form;
mod parts;
mod presence;
mod series;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::Method;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use weir_aggregate::{Batch, Expansion};

pub use encode::{DatadogEncoder, RequestKind, parse_route, route};
use form::{Form, Forms};
use presence::Presence;

use crate::StartError;
use crate::compress::Compressor;
use crate::delivery::{
    BoxFuture, Clock, Delivery, Endpoint, Order, Outcome, OutputEnvironment, Parts, Payload, Transport,
};
use crate::http::{self, Client, HeaderError, RequestError, Response};
use crate::preview;
use crate::probe::{Destination, Route};
use crate::settings::{DatadogSettings, Secret, Start};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const KEY: HeaderName = HeaderName::from_static("dd-api-key");
/// The version of the protobuf definitions that payloads follow.
const PAYLOAD_VERSION: &str = "5.0.215";
/// URL that checks a key.
const VALIDATION_PATH: &str = "/api/v1/validate";
/// Interval between checks of a key.
const VALIDATION_INTERVAL: Duration = Duration::from_secs(3600);

/// Starts the output on the current tokio runtime. Fails with a sentence that names the setting or the path.
pub fn start(
    name: &str,
    settings: &DatadogSettings,
    expansion: Arc<Expansion>,
    environment: &OutputEnvironment,
) -> Result<Delivery, StartError> {
    let client = http::client(&settings.delivery, &format!("weir/{VERSION}"))?;
    let mut endpoints: Vec<Endpoint> = Vec::new();
    let base = settings.base_url();
    let forms = Forms::default();
    for (url, key, setting) in intakes(settings, &base) {
        let base = url.trim_end_matches('/');
        let directory = http::directory(base, key.expose().trim());
        if endpoints.iter().any(|known| known.directory == directory) {
            continue;
        }
        let header = http::secret_header(key.expose().trim()).map_err(|_| HeaderError::Key(setting))?;
        let transport = Intake {
            base: base.to_owned(),
            client: client.clone(),
            key: header,
            form: Arc::new(Form::of(settings, base, &forms)),
            arbitrary_tag_values: settings.arbitrary_tag_values,
            timeout: settings.delivery.timeout,
            clock: environment.clock.clone(),
            key_state: Mutex::new(KeyState::Unknown),
        };
        let label = format!("{} key {}", http::shown_url(base), key.redacted());
        endpoints.push(Endpoint {
            label,
            directory,
            family: Some(http::family(base)),
            transport: Arc::new(transport),
        });
    }
    let host_tags = environment.host_tags.to_vec();
    let presence = Presence::new(settings, environment.clock.clone(), host_tags);
    let encoder = DatadogEncoder::new(settings, expansion)
        .with_presence(presence)
        .with_forms(forms, settings);
    // The intake takes points in any order, so the newest go first.
    let started = Delivery::start(
        name,
        &settings.delivery,
        Order::NewestFirst,
        Box::new(encoder),
        endpoints,
        environment,
    );
    Ok(started?)
}

/// Every URL with every key of it, and the setting that names the key.
fn intakes<'a>(
    settings: &'a DatadogSettings,
    base: &'a str,
) -> impl Iterator<Item = (&'a str, &'a Secret, &'static str)> {
    let more = settings.additional_endpoints.iter().flat_map(|(url, keys)| {
        keys.iter()
            .map(move |key| (url.as_str(), key, "additional_endpoints"))
    });
    std::iter::once((base, &settings.api_key, "api_key")).chain(more)
}

impl Start for DatadogSettings {
    fn preview(&self, batch: &Batch, expansion: &Arc<Expansion>) -> Vec<String> {
        let encoder = DatadogEncoder::new(self, expansion.clone());
        preview::of_parts(&preview::payloads(encoder, batch), parts::Elements::of)
    }

    fn start(
        &self,
        name: &str,
        expansion: &Arc<Expansion>,
        environment: &OutputEnvironment,
    ) -> Result<Delivery, StartError> {
        start(name, self, expansion.clone(), environment)
    }

    fn destinations(&self) -> Result<Vec<Destination>, StartError> {
        let destination = |(url, key, setting): (&str, &Secret, &'static str)| {
            let base = url.trim_end_matches('/');
            let value = http::secret_header(key.expose().trim()).map_err(|_| HeaderError::Key(setting))?;
            Ok(Destination {
                label: format!("{} key {}", http::shown_url(base), key.redacted()),
                route: Route::Http {
                    url: format!("{base}{VALIDATION_PATH}"),
                    headers: HeaderMap::from_iter([(KEY, value)]),
                    delivery: Box::new(self.delivery.clone()),
                    is_http2: false,
                },
            })
        };
        intakes(self, &self.base_url()).map(destination).collect()
    }
}

/// One base URL with one key.
struct Intake {
    base: String,
    client: Client,
    key: HeaderValue,
    form: Arc<Form>,
    arbitrary_tag_values: bool,
    timeout: Duration,
    clock: Clock,
    key_state: Mutex<KeyState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyState {
    Unknown,
    Valid,
    Invalid,
}

impl Intake {
    async fn request(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: bytes::Bytes,
    ) -> Result<Response, RequestError> {
        let url = format!("{}{path}", self.base);
        http::send(&self.client, method, &url, headers, body, self.clock.unix()).await
    }

    fn set_key_state(&self, state: KeyState) {
        let mut current = self.key_state.lock().unwrap_or_else(PoisonError::into_inner);
        if *current != state && state == KeyState::Invalid {
            tracing::warn!(
                endpoint = http::shown_url(&self.base),
                "the intake says that the API key is not valid"
            );
        }
        *current = state;
    }

    fn headers(&self, kind: RequestKind, compression: crate::settings::Compression) -> HeaderMap {
        let mut headers = self.common_headers();
        let content_type = if kind.is_protobuf() {
            "application/x-protobuf"
        } else {
            "application/json"
        };
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        if kind.is_protobuf() {
            headers.insert("dd-agent-payload", HeaderValue::from_static(PAYLOAD_VERSION));
        }
        if let Some(encoding) = Compressor::content_encoding(compression) {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding));
        }
        if self.arbitrary_tag_values {
            headers.insert("allow-arbitrary-tag-value", HeaderValue::from_static("true"));
        }
        headers
    }

    fn common_headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(KEY, self.key.clone());
        headers.insert("dd-agent-version", HeaderValue::from_static(VERSION));
        headers
    }
}

impl Intake {
    /// Sends a payload in the form that it has.
    async fn post(&self, payload: &Payload) -> Result<Response, Outcome> {
        let Some((kind, compression)) = parse_route(payload.route) else {
            return Err(Outcome::Rejected {
                error: "the disk queue holds a payload of a newer version".into(),
            });
        };
        let mut headers = self.headers(kind, compression);
        headers.extend([http::idempotency_key(payload)]);
        let answer = self
            .request(Method::POST, kind.path(), headers, payload.body.clone())
            .await
            .map_err(|error| error.retry())?;
        match answer.status {
            200..300 => self.set_key_state(KeyState::Valid),
            403 => self.set_key_state(KeyState::Invalid),
            _ => {}
        }
        Ok(answer)
    }

    /// Sends a payload of columns as v2. If only a part of it is delivered, the next attempt sends the rest.
    async fn post_as_v2(&self, payload: Payload) -> Outcome {
        let form = self.form.clone();
        let of_blocking = payload.clone();
        let rewritten = tokio::task::spawn_blocking(move || form.rewritten(&of_blocking)).await;
        let Ok(Some(parts)) = rewritten else {
            return Outcome::Rejected {
                error: "a payload of columns that cannot be read".into(),
            };
        };
        let digest = payload.digest();
        let first = self.form.delivered(digest);
        for (at, part) in parts.iter().enumerate().skip(first) {
            let outcome = match self.post(part).await {
                Ok(answer) => outcome(RequestKind::SeriesV2, &answer),
                Err(outcome) => outcome,
            };
            if outcome != Outcome::Delivered {
                return outcome;
            }
            self.form.set_delivered(digest, at + 1);
        }
        self.form.set_delivered(digest, 0);
        Outcome::Delivered
    }
}

impl Transport for Intake {
    fn send(&self, payload: Payload) -> BoxFuture<'_, Outcome> {
        Box::pin(async move {
            let kind = parse_route(payload.route).map(|(kind, _)| kind);
            let is_columns = kind == Some(RequestKind::SeriesV3);
            if is_columns && !self.form.takes_columns() {
                return self.post_as_v2(payload).await;
            }
            match (self.post(&payload).await, kind) {
                (Ok(answer), _)
                    if is_columns
                        && matches!(answer.status, 404 | 415)
                        && self.form.refuse_columns(&self.base, answer.status) =>
                {
                    self.post_as_v2(payload).await
                }
                (Ok(answer), Some(kind)) => outcome(kind, &answer),
                (Ok(answer), None) => answer.outcome(),
                (Err(outcome), _) => outcome,
            }
        })
    }

    fn parts(&self, payload: &Payload) -> Option<Box<dyn Parts>> {
        Some(Box::new(parts::Elements::of(payload)?))
    }

    /// Asks about the key at the start and every hour.
    fn background(&self, clock: Clock) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            loop {
                let next = clock.now() + VALIDATION_INTERVAL;
                let request = self.request(
                    Method::GET,
                    VALIDATION_PATH,
                    self.common_headers(),
                    bytes::Bytes::new(),
                );
                if let Ok(Ok(answer)) = tokio::time::timeout(self.timeout, request).await {
                    match answer.status {
                        200..300 => self.set_key_state(KeyState::Valid),
                        403 => self.set_key_state(KeyState::Invalid),
                        // A relay or a test intake need not know the path.
                        _ => {}
                    }
                }
                clock.sleep_until(next).await;
            }
        })
    }

    fn details(&self) -> BTreeMap<&'static str, String> {
        let state = *self.key_state.lock().unwrap_or_else(PoisonError::into_inner);
        let text = match state {
            KeyState::Unknown => "not confirmed yet",
            KeyState::Valid => "valid",
            KeyState::Invalid => "not valid",
        };
        let series = self.form.shown().map(|form| ("series", form.to_owned()));
        BTreeMap::from_iter([("key", text.to_owned())].into_iter().chain(series))
    }
}

fn outcome(kind: RequestKind, answer: &Response) -> Outcome {
    let outcome = match answer.status {
        // The proxy's, not the intake's.
        407 => Outcome::Denied {
            error: answer.text(
                "refused: the proxy does not accept the user or password; payloads wait for other ones",
            ),
        },
        400 | 401 | 403 | 413 | 408 | 429 => answer.outcome(),
        // As the Datadog Agent does it: the intake refuses for good with the codes above alone.
        400..500 => answer.retry("failed"),
        _ => answer.outcome(),
    };
    outcome.at(kind.path())
}
