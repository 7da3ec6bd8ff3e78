//! `weir graph`: metrics of the last minutes as a chart in the terminal, or as a table.

use std::fmt::Write as _;
use std::net::SocketAddr;

use clap::{Arg, ArgAction, ArgMatches, Command};
use weir_history::Function;

use super::agent::{self, AgentResponse, admin_address, fetch, read, request};
use super::chart;
use super::formula::{self, Formula, LETTERS};
use super::recent::{Metrics, Points, path};
use super::style::Style;
use super::switch;
use super::table::shown;
use weir_system::failure::Failure;

/// Rows of a chart, including its axis.
const HEIGHT: u16 = 16;
/// Columns without a terminal.
const WIDTH: u16 = 100;
/// Suggestions for a misspelled name.
const SUGGESTIONS: usize = 3;
/// Maximum names to compare with.
const NAMES_MAX: &str = "10000";

pub fn command() -> Command {
    Command::new("graph")
        .about("Show the last minutes of metrics as a chart")
        .after_help("Example: weir graph page.load --by page --fn p99 --last 15m\nExample: weir graph page.errors page.views --formula a/b")
        .arg(
            Arg::new("metric")
                .value_name("METRIC")
                .required(true)
                .num_args(1..=LETTERS.len())
                .help("Names of one to six metrics, as in `weir top`"),
        )
        .arg(
            Arg::new("formula")
                .long("formula")
                .value_name("FORMULA")
                .conflicts_with("json")
                .help("Draw a/b, a-b, a+b or a*b of two metrics: a is the first, b the second"),
        )
        .arg(
            Arg::new("by")
                .long("by")
                .value_name("KEY")
                .action(ArgAction::Append)
                .help("A line for each value of this tag; may be given several times"),
        )
        .arg(
            Arg::new("where")
                .long("where")
                .value_name("KEY:VALUE")
                .action(ArgAction::Append)
                .help("Only series with this tag; may be given several times"),
        )
        .arg(Arg::new("fn").long("fn").value_name("FUNCTION").help(
            "rate, sum, avg, min, max, count, last, or a quantile such as p99 [default: depends on the kind]",
        ))
        .arg(
            Arg::new("last")
                .long("last")
                .value_name("TIME")
                .help("The time to look back, such as 15m [default: the agent's whole history]"),
        )
        .arg(switch("csv", "Print CSV: Unix seconds, and a column for each line").conflicts_with("json"))
        .arg(switch("json", "Print the agent's JSON instead, a line for each metric"))
        .args(agent::arguments())
}

pub fn graph(arguments: &ArgMatches) -> Result<(), Failure> {
    let text = |name: &str| arguments.get_one::<String>(name).map_or("", String::as_str);
    let all = |name: &str| arguments.get_many::<String>(name).unwrap_or_default();
    let json = arguments.get_flag("json");
    let metrics: Vec<&str> = all("metric").map(String::as_str).collect();
    let formula = match arguments.get_one::<String>("formula") {
        Some(written) => Some(parsed_formula(written, &metrics)?),
        None => None,
    };
    let from = match text("last") {
        "" => String::new(),
        last => window(last)?,
    };
    let mut parameters = Vec::new();
    parameters.extend(all("by").map(|key| ("by", key.as_str())));
    parameters.extend(all("where").map(|tag| ("where", tag.as_str())));
    if let Some(name) = arguments.get_one::<String>("fn") {
        check_function(name, json)?;
        parameters.push(("fn", name));
    }
    if !from.is_empty() {
        parameters.push(("from", &from));
    }
    let address = admin_address(arguments)?;
    let answers = metrics.iter().map(|metric| query(address, metric, &parameters));
    let answers: Vec<String> = answers.collect::<Result<_, _>>()?;
    if json {
        let lines = answers.iter().map(|answer| format!("{}\n", answer.trim_end()));
        return super::print(&lines.collect::<String>());
    }
    let all = answers.iter().map(|answer| read::<Points>(address, answer));
    let all: Vec<Points> = all.collect::<Result<_, _>>()?;
    let (title, points) = match (formula, all.as_slice()) {
        (Some(formula), all) => {
            let points = formula.of(all);
            (chart::title(&points), points)
        }
        (None, [one]) => (chart::title(one), one.clone()),
        (None, all) => (formula::title(all), formula::together(all)),
    };
    if arguments.get_flag("csv") {
        return super::print(&csv(&points));
    }
    if let Some(empty) = all.iter().find(|points| points.series == 0) {
        let message = format!("no series of {} has these tags", shown(&empty.metric));
        return Err(Failure::runtime(message));
    }
    super::print(&chart::text(
        &title,
        &points,
        columns(),
        HEIGHT,
        Style::of_stdout(),
    ))
}

fn parsed_formula(written: &str, metrics: &[&str]) -> Result<Formula, Failure> {
    let named = metrics.iter().zip(LETTERS);
    let named: Vec<String> = named
        .map(|(metric, letter)| format!("{} is {letter}", shown(metric)))
        .collect();
    let wrong = || {
        Failure::usage(format!(
            "flag --formula: {written:?} is not a formula of two of the metrics, such as a/b, with / - + or *; {}",
            named.join(", ")
        ))
    };
    Formula::parse(written, metrics.len()).ok_or_else(wrong)
}

/// Converts `15m` to `-900`.
fn window(last: &str) -> Result<String, Failure> {
    let found = weir_units::parse_duration_or_seconds(last).ok();
    let seconds = found.map(|last| last.as_secs()).filter(|seconds| *seconds > 0);
    let wrong = || {
        Failure::usage(format!(
            "flag --last: {last:?} is not a time of at least 1s, such as 15m or 1h"
        ))
    };
    Ok(format!("-{}", seconds.ok_or_else(wrong)?))
}

fn check_function(name: &str, json: bool) -> Result<(), Failure> {
    let function: Function = name
        .parse()
        .map_err(|error: weir_history::QueryError| Failure::usage(format!("flag --fn: {error}")))?;
    if function == Function::Heatmap && !json {
        let message = "flag --fn: a heat map is not a line: --json prints it, and the page at the agent's admin address draws it";
        return Err(Failure::usage(message));
    }
    Ok(())
}

fn query(address: SocketAddr, metric: &str, parameters: &[(&str, &str)]) -> Result<String, Failure> {
    let parameters = [&[("metric", metric)], parameters].concat();
    let asked = path("/api/v1/query", &parameters);
    match request(address, &asked)? {
        AgentResponse::Body(body) => Ok(body),
        AgentResponse::Refused { code, reason } => {
            let like = match code {
                404 => suggestions(address, metric),
                _ => Some(String::new()),
            };
            // Its first bucket has ended since.
            let Some(like) = like else {
                return fetch(address, &asked);
            };
            Err(Failure::runtime(format!(
                "the agent at {address} says: {reason}{like}"
            )))
        }
    }
}

/// Similar names; `None`: there is such a metric.
fn suggestions(address: SocketAddr, metric: &str) -> Option<String> {
    let path = path("/api/v1/metrics", &[("limit", NAMES_MAX), ("details", "0")]);
    let Ok(known) = fetch(address, &path).and_then(|body| read::<Metrics>(address, &body)) else {
        return Some(String::new());
    };
    if known.metrics.is_empty() {
        return Some("; nothing has arrived yet, or no bucket has ended".to_owned());
    }
    if known.metrics.iter().any(|known| known.name == metric) {
        return None;
    }
    let names = known.metrics.iter().map(|metric| metric.name.as_str());
    let like = nearest(metric, names);
    if like.is_empty() {
        return Some(format!("; `weir top` lists the {} that are", known.total));
    }
    let like: Vec<String> = like.into_iter().map(shown).collect();
    Some(format!("; did you mean {}?", like.join(", ")))
}

/// The most similar first; names that contain the typed text before names with a similar spelling.
fn nearest<'n>(typed: &str, names: impl Iterator<Item = &'n str>) -> Vec<&'n str> {
    let typed = typed.to_lowercase();
    let mut rated: Vec<(f64, &str)> = names
        .map(|name| {
            let lower = name.to_lowercase();
            let likeness = strsim::jaro_winkler(&typed, &lower);
            let holds = lower.contains(&typed) || typed.contains(&lower);
            (if holds { likeness + 1.0 } else { likeness }, name)
        })
        .filter(|(likeness, _)| *likeness > 0.8)
        .collect();
    rated.sort_by(|(a, left), (b, right)| b.total_cmp(a).then_with(|| left.cmp(right)));
    rated.dedup_by(|a, b| a.1 == b.1);
    rated
        .into_iter()
        .take(SUGGESTIONS)
        .map(|(_, name)| name)
        .collect()
}

fn csv(points: &Points) -> String {
    let mut text = String::from("time");
    for group in &points.groups {
        let _ = write!(text, ",{}", quoted(&group.title()));
    }
    text.push('\n');
    for (at, time) in points.times.iter().enumerate() {
        let _ = write!(text, "{time}");
        for group in &points.groups {
            text.push(',');
            if let Some(Some(value)) = group.values.get(at) {
                let _ = write!(text, "{value}");
            }
        }
        text.push('\n');
    }
    text
}

fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

fn columns() -> u16 {
    let size = ratatui::crossterm::terminal::size();
    size.map_or(WIDTH, |(columns, _)| columns).clamp(20, 300)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::recent::Group;

    #[test]
    fn a_misspelt_name_gets_the_nearest_as_suggestion() {
        let names = ["page.views", "page.viewers", "queue.length", "db.query.time"];
        let near = |typed: &str| nearest(typed, names.into_iter());
        assert_eq!(near("page.view"), ["page.views", "page.viewers"]);
        assert_eq!(near("pgae.views")[0], "page.views");
        assert_eq!(near("query"), ["db.query.time"]);
        assert!(near("zzz").is_empty());
    }

    #[test]
    fn windows_are_times_before_now() {
        assert_eq!(window("15m").unwrap(), "-900");
        for wrong in ["15x", "0s", "-5m", "10ms"] {
            assert!(window(wrong).unwrap_err().message.contains("15m"), "{wrong}");
        }
    }

    #[test]
    fn a_table_has_a_column_for_each_group_and_nothing_where_there_is_no_point() {
        let group = |value: &str, values: &[Option<f64>]| Group {
            tags: vec![("k".to_owned(), Some(value.to_owned()))],
            values: values.to_vec(),
            ..Group::default()
        };
        let points = Points {
            times: vec![10, 20],
            groups: vec![
                group("a", &[Some(1.5), None]),
                group("b,\"c\"", &[None, Some(2.0)]),
            ],
            ..Points::default()
        };
        assert_eq!(csv(&points), "time,k:a,\"k:b,\"\"c\"\"\"\n10,1.5,\n20,,2\n");
    }
}
