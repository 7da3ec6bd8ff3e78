//! A target's report about itself after the load: its books must match the load to the last message.
//!
//! For targets without an output. Otherwise a sink counts the delivered messages.

use super::replicate::Problem;
use super::telemetry;
use serde_json::{Value, json};
use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use weir_rig_base::http;

/// A few queries cost nothing compared with seconds of load.
const PAUSE: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(20);
/// A counter that does not rise for this long has seen all that arrived.
const STANDSTILL: Duration = Duration::from_secs(2);

/// Polls weir's status until all packets of the load are counted, then writes the sink's report.
pub fn fetch(
    url: &str,
    manifest: &Path,
    report: &Path,
    mut watch: impl FnMut() -> Result<(), Problem>,
) -> Result<(), Problem> {
    let totals = totals(manifest)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        watch()?;
        let status = status(url).map_err(|e| Problem::Invalid(format!("{url}: {e}")))?;
        let received = &status["total"]["packets"]["received"];
        if *received == totals["packets"] {
            return Ok(fs::write(report, of_status(&status, &totals).to_string())?);
        }
        if Instant::now() > deadline {
            let what = format!("{} packets sent, {received} received", totals["packets"]);
            return Err(Problem::Invalid(what));
        }
        thread::sleep(PAUSE);
    }
}

/// Reads counters of the target until they reach the number of sent messages, or rise no more, then writes the sink's report. A target that
/// has taken everything from its socket may still have it in a queue of its own.
pub fn count(
    (url, names): (&str, &[String]),
    before: f64,
    manifest: &Path,
    report: &Path,
    mut watch: impl FnMut() -> Result<(), Problem>,
) -> Result<(), Problem> {
    let sent = totals(manifest)?["messages"].as_f64().unwrap_or(0.0);
    let deadline = Instant::now() + PATIENCE;
    let (mut last, mut risen) = (0.0, Instant::now());
    loop {
        watch()?;
        let seen = counted(url, names)? - before;
        if seen > last {
            (last, risen) = (seen, Instant::now());
        }
        if seen >= sent || risen.elapsed() > STANDSTILL || Instant::now() > deadline {
            let report_of = json!({"delivered_messages": seen, "counters": names});
            return Ok(fs::write(report, report_of.to_string())?);
        }
        thread::sleep(PAUSE);
    }
}

/// The target's counters now.
pub fn counted(url: &str, names: &[String]) -> Result<f64, Problem> {
    let seen = telemetry::count(url, names, Duration::from_secs(10));
    let seen = seen.map_err(|e| Problem::Invalid(format!("{url}: {e}")))?;
    // A counter with labels appears with its first message.
    Ok(seen.unwrap_or(0.0))
}

fn totals(manifest: &Path) -> io::Result<Value> {
    let mut manifest: Value = serde_json::from_str(&fs::read_to_string(manifest)?)?;
    Ok(manifest["totals"].take())
}

fn status(url: &str) -> io::Result<Value> {
    let answer = http::get(url, Duration::from_secs(10))?;
    Ok(serde_json::from_slice(&answer.body)?)
}

/// Every packet parsed, every message accepted, every sample aggregated, by the agent's own books.
fn of_status(status: &Value, totals: &Value) -> Value {
    let books = &status["total"];
    let (packets, messages, samples) = (&books["packets"], &books["messages"], &books["samples"]);
    let mut report = compared([
        (&totals["packets"], &packets["parsed"]),
        (&totals["messages"], &messages["accepted"]),
        (&samples["received"], &samples["aggregated"]),
    ]);
    report["delivered_messages"] = messages["accepted"].clone();
    report["books"] = books.clone();
    report
}

/// The report of a target whose last output line has its totals: the floor.
pub fn of_result(stdout: &Path, manifest: &Path) -> io::Result<Value> {
    let totals = totals(manifest)?;
    let text = fs::read_to_string(stdout)?;
    let result: Value = text
        .lines()
        .rev()
        .find_map(|line| serde_json::from_str(line).ok())
        .ok_or_else(|| io::Error::other(format!("{}: the target printed no result", stdout.display())))?;
    let mut report = compared(["packets", "messages", "bytes"].map(|key| (&totals[key], &result[key])));
    report["delivered_messages"] = result["messages"].clone();
    report["books"] = result;
    Ok(report)
}

/// Number of pairs with different numbers.
fn compared<const N: usize>(pairs: [(&Value, &Value); N]) -> Value {
    let differ = |(left, right): &(&Value, &Value)| left != right || !left.is_u64();
    json!({"mismatches": pairs.iter().filter(|pair| differ(pair)).count()})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn books_with_a_loss_are_not_valid() {
        let sent = json!({"packets": 2, "messages": 6});
        let mismatches = |parsed: u64, accepted: u64, aggregated: u64| {
            let status = json!({"total": {"packets": {"parsed": parsed}, "messages": {"accepted": accepted},
                "samples": {"received": 6, "aggregated": aggregated}}});
            of_status(&status, &sent)["mismatches"].as_u64().unwrap()
        };
        assert_eq!(mismatches(2, 6, 6), 0);
        for (parsed, accepted, aggregated) in [(1, 6, 6), (2, 5, 6), (2, 6, 5)] {
            assert_eq!(mismatches(parsed, accepted, aggregated), 1);
        }
        assert_eq!(of_status(&json!({}), &json!({}))["mismatches"], 3);
    }

    /// Answers every request with the next of these bodies, the last one again and again.
    fn answers(bodies: &'static [&'static str]) -> String {
        use std::io::{Read, Write};
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/metrics", server.local_addr().unwrap());
        thread::spawn(move || {
            for (i, stream) in server.incoming().flatten().enumerate() {
                let (mut stream, body) = (stream, bodies[i.min(bodies.len() - 1)]);
                let _ = stream.read(&mut [0; 4096]);
                let size = body.len();
                let _ = write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n{body}"
                );
            }
        });
        url
    }

    #[test]
    fn a_targets_counters_are_read_until_they_have_counted_the_load_or_stand_still() {
        let delivered_since = |before, bodies, names: &[&str]| {
            let dir = tempfile::tempdir().unwrap();
            let (manifest, report) = (dir.path().join("manifest.json"), dir.path().join("sink.json"));
            fs::write(&manifest, r#"{"totals": {"messages": 30}}"#).unwrap();
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            assert!(count((&answers(bodies), &names), before, &manifest, &report, || Ok(())).is_ok());
            let report: Value = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
            report["delivered_messages"].as_f64().unwrap()
        };
        let delivered = |bodies, names: &[&str]| delivered_since(0.0, bodies, names);
        let late = &[
            "",
            "taken{kind=\"a\"} 10\n",
            "taken{kind=\"a\"} 10\ntaken{kind=\"b\"} 15\nother 5\n",
        ];
        assert_eq!(delivered(late, &["taken", "other"]), 30.0);
        assert_eq!(
            delivered(&["{\"in_msgs\": 30, \"x\": {\"y\": 1}}"], &["in_msgs"]),
            30.0
        );
        // A target that ran before has counted already.
        assert_eq!(
            delivered_since(70.0, &["taken 70\n", "taken 100\n"], &["taken"]),
            30.0
        );
        assert_eq!(
            delivered(&["taken 0\n"], &["taken"]),
            0.0,
            "it refuses everything"
        );
    }

    #[test]
    fn the_last_line_of_a_target_is_compared_with_the_load() {
        let dir = tempfile::tempdir().unwrap();
        let (stdout, manifest) = (dir.path().join("out"), dir.path().join("manifest.json"));
        fs::write(
            &manifest,
            r#"{"totals": {"packets": 1, "messages": 2, "bytes": 3}}"#,
        )
        .unwrap();
        fs::write(
            &stdout,
            "{\"listening\":\"x\"}\n{\"packets\":1,\"messages\":2,\"bytes\":4}\n",
        )
        .unwrap();
        let report = of_result(&stdout, &manifest).unwrap();
        assert_eq!(
            (&report["mismatches"], &report["delivered_messages"]),
            (&json!(1), &json!(2))
        );
        fs::write(&stdout, "").unwrap();
        assert!(of_result(&stdout, &manifest).is_err());
    }
}
