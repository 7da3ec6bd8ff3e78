//! `weir explain --columns`: the effect of a request with columns at the running agent.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use clap::ArgMatches;
use serde_json::{Value, json};
use weir_columns::decode::{Decoded, Endpoint, Refusal};
use weir_counters::Counter as _;
use weir_ingest::SeriesRejection;
use weir_units::counted;

use super::agent::{fetch, read};
use super::recent::path;
use weir_admin::tap::columns::{fault, line, message};
use weir_admin::tap::unix_seconds;
use weir_process::columns::body::{self, BodyError, Coding};
use weir_status::bad_bytes::text;
use weir_status::explain::Explanation;
use weir_system::failure::{Failure, FailureKind};

/// Memory for a body.
const BYTES_MAX: usize = 64 << 20;

/// Series that are explained.
const SERIES_MAX: usize = 20;

/// Explains a request with this body.
pub fn explain(address: SocketAddr, file: &Path, arguments: &ArgMatches) -> Result<(), Failure> {
    let body =
        std::fs::read(file).map_err(|error| Failure::runtime(format!("{}: {error}", file.display())))?;
    let is_json = arguments.get_flag("json");
    let (endpoint, decoded) = match decode(&body) {
        Ok(decoded) => decoded,
        Err(error) => {
            match is_json {
                true => super::print(&format!("{}\n", json!({ "rejected": error.to_string() })))?,
                false => super::print(&format!("rejected: {error}\n  nothing of it is added\n"))?,
            }
            return Err(told());
        }
    };
    let sections = sections(arguments);
    let listener = match arguments.get_one::<String>("listener") {
        Some(listener) => listener.clone(),
        None => listener(address)?,
    };
    let pid = arguments.get_one::<i32>("pid").map(i32::to_string);
    let mut all = Vec::new();
    for at in 0..decoded.len().min(SERIES_MAX) {
        let series = decoded.series(at);
        let message = message(&series, &sections);
        let mut parameters = vec![("line", message.as_str()), ("listener", listener.as_str())];
        parameters.extend(pid.as_deref().map(|pid| ("pid", pid)));
        let answer = fetch(address, &path("/api/v1/explain", &parameters))?;
        let mut explanation: Explanation = read(address, &answer)?;
        explanation.line = text(line(&series).as_bytes());
        let reason = fault(&series, unix_seconds()).map(|(_, reason)| reason);
        all.push((explanation, reason));
    }
    match is_json {
        true => super::print(&format!("{}\n", as_json(endpoint, &decoded, &all)))?,
        false => super::print(&page(endpoint, &decoded, &all))?,
    }
    match decoded.dropped_series().len() {
        0 => Ok(()),
        _ => Err(told()),
    }
}

/// The text says it.
fn told() -> Failure {
    Failure {
        kind: FailureKind::Runtime,
        message: String::new(),
    }
}

/// The body as the endpoint that takes it would read it.
fn decode(body: &[u8]) -> Result<(&'static str, Decoded), BodyError> {
    let coding = Coding::found_in(body);
    match body::read(body, coding, Endpoint::Series, BYTES_MAX) {
        Err(BodyError::Columns(Refusal::SketchInSeries(_))) => {
            let decoded = body::read(body, coding, Endpoint::Sketches, BYTES_MAX)?;
            Ok(("/sketches", decoded))
        }
        read => Ok(("/series", read?)),
    }
}

/// The sender that the headers of the request name, as sections of a message.
fn sections(arguments: &ArgMatches) -> String {
    let mut sections = String::new();
    for (letter, name) in [("c", "local-data"), ("e", "external-data")] {
        if let Some(data) = arguments.get_one::<String>(name) {
            let _ = write!(sections, "|{letter}:{data}");
        }
    }
    sections
}

/// The first listener of columns.
fn listener(address: SocketAddr) -> Result<String, Failure> {
    let status: Value = read(address, &fetch(address, "/api/v1/status")?)?;
    let listeners = status["listeners"].as_array();
    let mut addresses = listeners
        .into_iter()
        .flatten()
        .filter_map(|listener| listener["address"].as_str());
    let found = addresses.find(|address| address.starts_with("http"));
    found.map(str::to_owned).ok_or_else(|| {
        Failure::runtime(format!(
            "the agent at {address} takes no columns: http and http_uds are not set"
        ))
    })
}

type Explained = (Explanation, Option<&'static str>);

fn page(endpoint: &str, decoded: &Decoded, all: &[Explained]) -> String {
    let dropped: u64 = dropped(decoded).map(|(_, series)| series).sum();
    let mut page = format!(
        "POST {endpoint}: {} series with {}; {dropped} series {} dropped\n",
        decoded.len(),
        counted(decoded.points() as u64, "points"),
        if dropped == 1 { "is" } else { "are" }
    );
    for series in decoded.dropped_series() {
        let reason = SeriesRejection::from(series.fault);
        let name = text(series.name.as_bytes());
        let _ = writeln!(page, "  series {} {name:?}: {}", series.place, reason.as_str());
        let _ = writeln!(page, "    {}", reason.info().meaning());
    }
    for (explanation, reason) in all {
        let _ = write!(page, "\n{}", explanation.render());
        if let Some(reason) = reason {
            let _ = writeln!(page, "\na point of it is dropped: {reason}");
        }
    }
    if decoded.len() > all.len() {
        let _ = writeln!(page, "\n{} more series", decoded.len() - all.len());
    }
    page
}

/// Reasons for which series were dropped, with their number.
fn dropped(decoded: &Decoded) -> impl Iterator<Item = (SeriesRejection, u64)> {
    let faults = weir_columns::decode::SeriesFault::ALL.into_iter();
    faults.map(|fault| (SeriesRejection::from(fault), decoded.dropped(fault).series))
}

fn as_json(endpoint: &str, decoded: &Decoded, all: &[Explained]) -> Value {
    let dropped = decoded.dropped_series().map(|series| {
        let reason = SeriesRejection::from(series.fault).as_str();
        json!({ "place": series.place, "name": series.name, "reason": reason })
    });
    let series = all.iter().map(|(explanation, reason)| {
        let mut series = serde_json::to_value(explanation).unwrap_or_default();
        series["point_dropped"] = json!(reason);
        series
    });
    json!({
        "endpoint": endpoint,
        "series": decoded.len(),
        "points": decoded.points(),
        "dropped": dropped.collect::<Vec<_>>(),
        "explained": series.collect::<Vec<_>>(),
    })
}
