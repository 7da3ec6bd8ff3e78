//! `/api/v1`: the last minutes, for the page, the terminal and scripts. Read-only JSON; `docs/api.md` is its reference.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, LazyLock};

use hyper::StatusCode;
use serde::Serialize;
use weir_counters::{CounterInfo, NumberKind, Significance};
use weir_history::{
    Function, History, Metric, MetricSort, MetricsRequest, Query, QueryError, QueryResult, SeriesColumn,
    SeriesColumns, SeriesKind, TagKey, matches,
};

use super::query::{self, bad};
use super::server::{HttpError, failed};
use crate::history::{HistoryUpdate, Recent};
use crate::streams::{self, Permit, Pieces};
use weir_status::series::declared;

const METRICS_DEFAULT: u64 = 100;
const METRICS_MAX: u64 = 10_000;
/// The default window of `books`.
const BOOKS_SECONDS: i64 = 300;
/// Events that may wait for a stream's reader. A slower reader is disconnected.
const EVENTS_MAX: usize = 16;

/// The paths that the history answers.
pub const PATHS: [&str; 5] = [
    "/api/v1/metrics",
    "/api/v1/query",
    "/api/v1/tags",
    "/api/v1/books",
    super::preview::PATH,
];

/// The queries to the history.
#[derive(Debug)]
pub enum Request {
    Metrics(MetricsRequest),
    Query(Query),
    Tags(String),
    Books(BooksRequest),
    /// Rules in the form of a configuration.
    Preview(String),
}

impl Request {
    /// The place for samples per second by name, if the answer has them.
    pub fn samples_wanted(&mut self) -> Option<&mut HashMap<String, f64>> {
        match self {
            Request::Metrics(request) if request.details || request.sort == MetricSort::Samples => {
                Some(&mut request.samples)
            }
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
pub struct BooksRequest {
    wanted: WantedBooks,
    from: i64,
    to: i64,
    step: Option<u32>,
}

/// The choice among the agent's own series. Without any all are wanted.
#[derive(Clone, Debug, Default)]
struct WantedBooks {
    patterns: Vec<String>,
    losses: bool,
}

/// Stands for no series.
const NO_BOOKS: &str = "-";

impl WantedBooks {
    fn of(query: query::Query<'_>, name: &str) -> Result<WantedBooks, HttpError> {
        // Refuses text that is no UTF-8.
        query.text(name)?;
        Ok(WantedBooks {
            patterns: query.list(name),
            losses: query.number("losses", 0, 0, 1)? == 1,
        })
    }

    fn has(&self, name: &str) -> bool {
        let is_named = |pattern: &String| pattern != NO_BOOKS && matches(pattern, name);
        (self.patterns.is_empty() && !self.losses)
            || self.patterns.iter().any(is_named)
            || self.losses && is_loss(name)
    }

    fn is_empty(&self) -> bool {
        !self.losses && !self.patterns.is_empty() && self.patterns.iter().all(|pattern| pattern == NO_BOOKS)
    }
}

/// Whether an increase of this series is a loss, refusal or degradation.
fn is_loss(name: &str) -> bool {
    static NAMES: LazyLock<HashSet<&str>> = LazyLock::new(|| {
        let all = declared().into_iter().map(|declared| declared.info);
        all.filter(|info| is_sign(info))
            .map(|info| info.series.name)
            .collect()
    });
    NAMES.contains(name)
}

fn is_sign(info: &CounterInfo) -> bool {
    matches!(info.significance, Significance::Problem(_)) && info.series.kind == NumberKind::Counter
}

/// Matching metrics, and the stored time range.
#[derive(Debug, Serialize)]
struct Metrics {
    /// Unix seconds of the oldest and of the newest stored bucket.
    held_from: i64,
    held_to: i64,
    /// Matching metrics, including those before `offset` and beyond `limit`.
    total: usize,
    /// Numbers of matching metrics of each kind, also of kinds that `kind` leaves out.
    kinds: BTreeMap<SeriesKind, usize>,
    offset: usize,
    metrics: Vec<Metric>,
}

#[derive(Debug, Serialize)]
struct Tags {
    metric: String,
    tags: Vec<TagKey>,
}

/// The meaning of a series of the agent, and the remedy when it moves.
#[derive(Debug, Serialize)]
struct Meaning {
    name: &'static str,
    /// Name and value of the identifying label.
    label: Option<(&'static str, &'static str)>,
    unit: &'static str,
    meaning: &'static str,
    /// Whether it reports a loss, refusal or degradation.
    sign: bool,
    advice: &'static str,
}

impl Meaning {
    fn of(info: &CounterInfo) -> Meaning {
        let (Significance::Problem(advice) | Significance::Normal(advice)) = info.significance;
        Meaning {
            name: info.series.name,
            label: info.series.label,
            unit: info.series.unit,
            meaning: info.meaning(),
            sign: is_sign(info),
            advice,
        }
    }
}

/// Every series of the agent itself.
pub fn meanings() -> Result<Vec<u8>, HttpError> {
    json(
        &declared()
            .iter()
            .map(|declared| Meaning::of(declared.info))
            .collect::<Vec<_>>(),
    )
}

/// The request of a path; `None` for other paths.
pub fn request(path: &str, query: query::Query<'_>, recent: &Recent) -> Option<Result<Request, HttpError>> {
    Some(match path {
        "/api/v1/metrics" => metrics_request(query).map(Request::Metrics),
        "/api/v1/query" => points_request(query, recent).map(Request::Query),
        "/api/v1/tags" => metric_of(query).map(Request::Tags),
        "/api/v1/books" => books_request(query, recent).map(Request::Books),
        super::preview::PATH => rules_of(query).map(Request::Preview),
        _ => return None,
    })
}

fn metrics_request(query: query::Query<'_>) -> Result<MetricsRequest, HttpError> {
    let sort = match query.text("sort")?.as_deref() {
        None | Some("name") => MetricSort::Name,
        Some("contexts") => MetricSort::Contexts,
        Some("growth") => MetricSort::Growth,
        Some("seen") => MetricSort::Seen,
        Some("samples") => MetricSort::Samples,
        Some(other) => {
            return Err(bad(format!(
                "sort: {other:?} is none of name, contexts, growth, seen, samples"
            )));
        }
    };
    let kinds = query.list("kind");
    Ok(MetricsRequest {
        pattern: query.text("match")?.unwrap_or_default(),
        names: query.all("name"),
        kinds: kinds
            .iter()
            .map(|kind| kind_named(kind))
            .collect::<Result<_, _>>()?,
        samples: HashMap::new(),
        sort,
        offset: query.number("offset", 0, 0, u32::MAX.into())? as usize,
        limit: query.number("limit", METRICS_DEFAULT, 1, METRICS_MAX)? as usize,
        details: query.number("details", 1, 0, 1)? == 1,
    })
}

fn rules_of(query: query::Query<'_>) -> Result<String, HttpError> {
    let rules = query.text("rules")?.filter(|rules| !rules.trim().is_empty());
    rules.ok_or_else(|| bad("rules is missing: rules as the configuration has them, percent-encoded"))
}

fn metric_of(query: query::Query<'_>) -> Result<String, HttpError> {
    let metric = query.text("metric")?.filter(|metric| !metric.is_empty());
    metric.ok_or_else(|| bad("metric is missing: the name of a metric, such as metric=page.views"))
}

fn points_request(query: query::Query<'_>, recent: &Recent) -> Result<Query, HttpError> {
    let now = end_of(&recent.points());
    let tag = |text: &str| match text.split_once(':') {
        Some((key, value)) => (key.to_owned(), value.to_owned()),
        None => (text.to_owned(), String::new()),
    };
    let filters = query.all("where");
    let (without, tags): (Vec<&String>, Vec<&String>) =
        filters.iter().partition(|filter| filter.starts_with('!'));
    let function = query.text("fn")?;
    let function = function.map(|function| function.parse::<Function>()).transpose();
    Ok(Query {
        metric: metric_of(query)?,
        kind: kind_of(query)?,
        tags: tags.into_iter().map(|filter| tag(filter)).collect(),
        without: without.into_iter().map(|filter| tag(&filter[1..])).collect(),
        by: query.list("by"),
        function: function.map_err(|error| bad(error.to_string()))?,
        from: query.time("from", now)?,
        to: query.time("to", now)?,
        step: step_of(query)?,
    })
}

fn kind_of(query: query::Query<'_>) -> Result<Option<SeriesKind>, HttpError> {
    let text = query.text("kind")?;
    text.map(|text| kind_named(&text)).transpose()
}

fn kind_named(text: &str) -> Result<SeriesKind, HttpError> {
    let kinds = [
        SeriesKind::Counter,
        SeriesKind::Rate,
        SeriesKind::Gauge,
        SeriesKind::Set,
        SeriesKind::Distribution,
        SeriesKind::Histogram,
    ];
    let kind = kinds
        .into_iter()
        .find(|kind| format!("{kind:?}").eq_ignore_ascii_case(text));
    let wrong = || {
        bad(format!(
            "kind: {text:?} is none of counter, rate, gauge, set, distribution, histogram"
        ))
    };
    kind.ok_or_else(wrong)
}

fn step_of(query: query::Query<'_>) -> Result<Option<u32>, HttpError> {
    let Some(text) = query.text("step")? else {
        return Ok(None);
    };
    let step = weir_units::parse_duration_or_seconds(&text)
        .ok()
        .map(|step| step.as_secs());
    let step = step
        .filter(|step| (1..=86_400).contains(step))
        .map(|step| step as u32);
    step.map(Some)
        .ok_or_else(|| bad("step must be a duration from 1s to 24h, such as 30s"))
}

fn books_request(query: query::Query<'_>, recent: &Recent) -> Result<BooksRequest, HttpError> {
    let now = end_of(&recent.books());
    Ok(BooksRequest {
        wanted: WantedBooks::of(query, "match")?,
        from: query.time("from", now)?.unwrap_or(now - BOOKS_SECONDS),
        to: query.time("to", now)?.unwrap_or(now),
        step: step_of(query)?,
    })
}

/// The first second after the newest bucket.
fn end_of(history: &History) -> i64 {
    history
        .newest()
        .map_or(0, |(time, width)| time + i64::from(width))
}

/// Answers from the history. Takes up to a tenth of a second: not for async tasks.
pub fn answer(request: &Request, recent: &Recent) -> Result<Vec<u8>, HttpError> {
    match request {
        Request::Metrics(request) => {
            let history = recent.points();
            let figures = history.figures();
            let found = history.metrics(request);
            json(&Metrics {
                held_from: figures.from,
                held_to: figures.to,
                total: found.total,
                kinds: found.kinds,
                offset: request.offset,
                metrics: found.metrics,
            })
        }
        Request::Query(query) => json(&points(query, recent)?),
        Request::Tags(metric) => json(&Tags {
            tags: recent.points().tags(metric).map_err(refused)?,
            metric: metric.clone(),
        }),
        Request::Books(request) => json(&books(request, recent)?),
        Request::Preview(rules) => json(&super::preview::answer(rules, recent)?),
    }
}

fn points(query: &Query, recent: &Recent) -> Result<QueryResult, HttpError> {
    recent.points().query(query).map_err(refused)
}

fn books(request: &BooksRequest, recent: &Recent) -> Result<SeriesColumns, HttpError> {
    let books = recent.books();
    books
        .series(
            |name| request.wanted.has(name),
            request.from,
            request.to,
            request.step,
        )
        .map_err(refused)
}

fn refused(error: QueryError) -> HttpError {
    let status = match error {
        QueryError::Unknown(_) => StatusCode::NOT_FOUND,
        _ => StatusCode::BAD_REQUEST,
    };
    HttpError(status, error.to_string())
}

fn json(value: &impl Serialize) -> Result<Vec<u8>, HttpError> {
    let mut bytes = serde_json::to_vec(value).map_err(failed)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// The content of a stream of events.
#[derive(Clone, Debug)]
pub struct Live {
    /// The query whose new points each flush sends.
    query: Option<Query>,
    /// The books of each second.
    books: WantedBooks,
}

pub fn live_request(query: query::Query<'_>, recent: &Recent) -> Result<Live, HttpError> {
    let points = match query.text("metric")? {
        Some(_) => Some(points_request(query, recent)?),
        None => None,
    };
    Ok(Live {
        query: points,
        books: WantedBooks::of(query, "books")?,
    })
}

/// Starts a stream of events. It ends when its reader disconnects or is too slow.
pub fn live(live: Live, recent: Arc<Recent>, permit: Permit) -> Pieces {
    let (sender, events) = streams::pieces(EVENTS_MAX);
    tokio::spawn(async move {
        let _permit = permit;
        let mut updates = recent.updates();
        let mut before = updates.borrow_and_update().clone();
        // Sent at once, so that a browser knows that the stream is open.
        let mut text = b": weir\n\n".to_vec();
        while text.is_empty() || sender.try_send(text.into()).is_ok() {
            tokio::select! {
                changed = updates.changed() => if changed.is_err() { return sender.finish() },
                () = sender.closed() => return,
            }
            let now = updates.borrow_and_update().clone();
            text = Vec::new();
            if now.bucket != before.bucket {
                text.extend(live.flush_event(&recent, now.bucket).await);
            }
            if now.second != before.second && !live.books.is_empty() {
                text.extend(live.books_event(&now));
            }
            before = now;
        }
    });
    events
}

impl Live {
    async fn flush_event(&self, recent: &Arc<Recent>, bucket: i64) -> Vec<u8> {
        let Some(query) = self.query.clone() else {
            // A request without parameters gets an error that names them.
            return event("flush", Ok(format!("{{\"bucket\":{bucket}}}\n").into_bytes()));
        };
        let recent = recent.clone();
        let answer = tokio::task::spawn_blocking(move || {
            let width = recent.points().newest().map_or(1, |(_, width)| width);
            let query = Query {
                from: Some(bucket),
                to: Some(bucket + i64::from(width)),
                step: query.step.or(Some(width)),
                ..query
            };
            points(&query, &recent).and_then(|answer| json(&answer))
        });
        event("points", answer.await.map_err(failed).and_then(|answer| answer))
    }

    fn books_event(&self, update: &HistoryUpdate) -> Vec<u8> {
        let changes = update.changes.iter();
        let books = ChangedBooks {
            step: 1,
            times: [update.second],
            series: changes.filter(|series| self.books.has(&series.name)).collect(),
        };
        event("books", json(&books))
    }
}

/// [`SeriesColumns`] of one second.
#[derive(Serialize)]
struct ChangedBooks<'a> {
    step: u32,
    times: [i64; 1],
    series: Vec<&'a SeriesColumn>,
}

/// One server-sent event; JSON has no line breaks within.
fn event(name: &str, data: Result<Vec<u8>, HttpError>) -> Vec<u8> {
    let (name, data) = match data {
        Ok(data) => (name, data),
        // Not `error`, which a browser's EventSource reserves.
        Err(refused) => ("refused", refused.json().to_string().into_bytes()),
    };
    let mut text = format!("event: {name}\ndata: ").into_bytes();
    text.extend_from_slice(data.trim_ascii_end());
    text.extend_from_slice(b"\n\n");
    text
}

#[cfg(test)]
#[path = "api_tests.rs"]
mod tests;
