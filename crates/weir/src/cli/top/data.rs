//! The requests of `weir top`, on a separate thread, so that keys work even if the agent does not answer.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use super::ScreenEvent;
use crate::cli::agent::{AgentResponse, fetch, read, request};
use crate::cli::recent::{Books, Metric, Metrics, Points, path};
use weir_status::contexts::ContextReport;
use weir_status::status::Status;
use weir_system::failure::Failure;

const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum names in the list.
const NAMES_MAX: usize = 500;
/// Seconds of the small charts, as an API parameter.
const BOOKS: &str = "-120";

/// The part of the screen's state that determines the requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScreenRequest {
    /// The list of metrics; `None` if another list is shown.
    pub metrics: Option<WantedMetrics>,
    pub chart: Option<WantedChart>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct WantedMetrics {
    pub pattern: String,
    /// The API's name of the order. `None`: most samples first, from the report of contexts.
    pub sort: Option<&'static str>,
    /// Names on the screen; only these get a small chart.
    pub visible: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct WantedChart {
    pub metric: String,
    pub kind: String,
    pub function: Option<String>,
    pub by: Option<String>,
    /// For example `-15m`; `None`: everything stored.
    pub from: Option<&'static str>,
}

/// Why the agent has no answer, in its own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentError(pub String);

/// The agent's answers in one second.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub status: Status,
    pub contexts: ContextReport,
    pub books: Books,
    pub process: Books,
    /// Absent if the list is not shown or the last minutes are disabled.
    pub metrics: Option<Metrics>,
    /// The filter that `metrics` answers.
    pub pattern: String,
    pub details: HashMap<String, Metric>,
    /// Or the error.
    pub points: Option<Result<Points, AgentError>>,
}

/// Sends requests every second, and at once when the requests change. Ends with the screen.
pub fn poll(address: SocketAddr, requests: Receiver<ScreenRequest>, events: Sender<ScreenEvent>) {
    let mut wanted = ScreenRequest::default();
    loop {
        let begun = Instant::now();
        let answered = snapshot(address, &wanted);
        if events.send(ScreenEvent::Answered(Box::new(answered))).is_err() {
            return;
        }
        match requests.recv_timeout(INTERVAL.saturating_sub(begun.elapsed())) {
            Ok(newer) => wanted = requests.try_iter().last().unwrap_or(newer),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn snapshot(address: SocketAddr, wanted: &ScreenRequest) -> Result<Snapshot, Failure> {
    let body = fetch(address, "/api/v1/status")?;
    let mut snapshot = Snapshot {
        status: read(address, &body)?,
        ..Snapshot::default()
    };
    // There is no report before the first flush.
    if let AgentResponse::Body(body) = request(address, "/api/v1/contexts?top=100")? {
        snapshot.contexts = read(address, &body)?;
    }
    snapshot.books = books(address, "weir_*received*_total")?;
    snapshot.process = books(address, "process_*")?;
    if let Some(metrics) = &wanted.metrics {
        let visible: Vec<&str> = metrics.visible.iter().map(String::as_str).collect();
        snapshot.details = details(address, &visible)?;
        if let Some(sort) = metrics.sort {
            snapshot.metrics = names(address, &metrics.pattern, sort)?;
            snapshot.pattern.clone_from(&metrics.pattern);
        }
    }
    if let Some(chart) = &wanted.chart {
        snapshot.details.extend(details(address, &[&chart.metric])?);
        snapshot.points = Some(points(address, chart)?);
    }
    Ok(snapshot)
}

/// Empty if the last minutes are disabled.
fn books(address: SocketAddr, pattern: &str) -> Result<Books, Failure> {
    let path = path(
        "/api/v1/books",
        &[("match", pattern), ("from", BOOKS), ("step", "1s")],
    );
    match request(address, &path)? {
        AgentResponse::Body(body) => read(address, &body),
        AgentResponse::Refused { .. } => Ok(Books::default()),
    }
}

fn names(address: SocketAddr, pattern: &str, sort: &str) -> Result<Option<Metrics>, Failure> {
    let limit = NAMES_MAX.to_string();
    let parameters = [
        ("match", pattern),
        ("sort", sort),
        ("limit", &limit),
        ("details", "0"),
    ];
    match request(address, &path("/api/v1/metrics", &parameters))? {
        AgentResponse::Body(body) => read(address, &body).map(Some),
        AgentResponse::Refused { .. } => Ok(None),
    }
}

fn details(address: SocketAddr, names: &[&str]) -> Result<HashMap<String, Metric>, Failure> {
    if names.is_empty() {
        return Ok(HashMap::new());
    }
    let parameters: Vec<_> = names.iter().map(|name| ("name", *name)).collect();
    let AgentResponse::Body(body) = request(address, &path("/api/v1/metrics", &parameters))? else {
        return Ok(HashMap::new());
    };
    let found: Metrics = read(address, &body)?;
    let by_name = found
        .metrics
        .into_iter()
        .map(|metric| (metric.name.clone(), metric));
    Ok(by_name.collect())
}

fn points(address: SocketAddr, chart: &WantedChart) -> Result<Result<Points, AgentError>, Failure> {
    let mut parameters = vec![("metric", chart.metric.as_str())];
    let optional = [
        ("kind", Some(chart.kind.as_str()).filter(|kind| !kind.is_empty())),
        ("fn", chart.function.as_deref()),
        ("by", chart.by.as_deref()),
        ("from", chart.from),
    ];
    parameters.extend(
        optional
            .iter()
            .filter_map(|(name, value)| Some((*name, (*value)?))),
    );
    match request(address, &path("/api/v1/query", &parameters))? {
        AgentResponse::Body(body) => read(address, &body).map(Ok),
        AgentResponse::Refused { reason, .. } => Ok(Err(AgentError(reason))),
    }
}
