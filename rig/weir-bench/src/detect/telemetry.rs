//! The target's own metrics. Stored under its names; canonical counters are mapped per target.

use super::experiment::{Telemetry, TelemetryKind};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;
use weir_rig_base::{http, prometheus};

/// Maximum series stored per scrape; a target with a million contexts must not fill the capture.
const SERIES_MAX: usize = 400;

pub type Scrape = Vec<(String, f64)>;

/// Scrapes once, with the target's own names; [`canonical`] adds the canonical ones.
pub fn scrape(t: &Telemetry, timeout: Duration) -> io::Result<Scrape> {
    match t.kind {
        TelemetryKind::Prometheus => Ok(samples(&body(&t.address, timeout)?).take(SERIES_MAX).collect()),
        TelemetryKind::Expvar => {
            let mut all = expvar(&body(&t.address, timeout)?)?;
            all.truncate(SERIES_MAX);
            Ok(all)
        }
        TelemetryKind::StatsdAdmin => admin(&t.address, timeout),
    }
}

/// The sum of the counters with these names, in an exposition or a JSON object; `None` without any of them.
pub fn count(url: &str, names: &[String], timeout: Duration) -> io::Result<Option<f64>> {
    let body = body(url, timeout)?;
    let all = match expvar(&body) {
        Ok(all) => all,
        Err(_) => samples(&body).collect(),
    };
    Ok(sum(names.iter().map(String::as_str), &all))
}

fn body(url: &str, timeout: Duration) -> io::Result<String> {
    let r = http::get(url, timeout)?;
    if r.status != 200 {
        return Err(io::Error::other(format!("{url} answered {}", r.status)));
    }
    Ok(String::from_utf8_lossy(&r.body).into_owned())
}

/// The canonical counters in the map: sums over every series with the mapped name. A name that ends in `*` is a prefix; `+` separates
/// several names.
pub fn canonical(t: &Telemetry, scrape: &Scrape) -> Scrape {
    t.map
        .iter()
        .filter_map(|(name, sources)| Some((name.clone(), sum(sources.split('+').map(str::trim), scrape)?)))
        .collect()
}

fn sum<'a>(patterns: impl Iterator<Item = &'a str>, scrape: &Scrape) -> Option<f64> {
    let of = |pattern: &'a str| scrape.iter().filter(move |(name, _)| matches(pattern, name));
    let values: Vec<f64> = patterns.flat_map(of).map(|(_, v)| *v).collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

fn matches(pattern: &str, name: &str) -> bool {
    if let Some(head) = pattern.strip_suffix('*') {
        return name.starts_with(head);
    }
    // Without labels in the pattern, every label set of that name counts.
    name == pattern || (!pattern.contains('{') && name.split('{').next() == Some(pattern))
}

/// The valid lines of an exposition.
fn samples(text: &str) -> impl Iterator<Item = (String, f64)> + '_ {
    text.lines()
        .filter_map(|line| match prometheus::line(line) {
            Ok(prometheus::Line::Sample(sample)) => Some((sample.series.to_owned(), sample.value)),
            _ => None,
        })
        // Buckets multiply the series and add nothing to the counters.
        .filter(|(name, value)| value.is_finite() && !name.contains("_bucket{"))
}

fn expvar(text: &str) -> io::Result<Scrape> {
    let value: serde_json::Value = serde_json::from_str(text).map_err(io::Error::other)?;
    let mut out = Vec::new();
    flatten("", &value, &mut out);
    Ok(out)
}

fn flatten(path: &str, value: &serde_json::Value, out: &mut Scrape) {
    match value {
        serde_json::Value::Number(n) => out.extend(n.as_f64().map(|v| (path.to_owned(), v))),
        serde_json::Value::Object(map) => {
            for (key, v) in map {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                flatten(&path, v, out);
            }
        }
        // Go's runtime puts arrays of pause times here.
        _ => {}
    }
}

/// The answer to `stats` is lines `name: value` up to `END`.
fn admin(address: &str, timeout: Duration) -> io::Result<Scrape> {
    let address = address.strip_prefix("tcp://").unwrap_or(address);
    let to = address
        .to_socket_addrs()?
        .next()
        .ok_or(io::ErrorKind::InvalidInput)?;
    let mut stream = TcpStream::connect_timeout(&to, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.write_all(b"stats\n")?;
    let mut out = Vec::new();
    for line in BufReader::new(stream).lines() {
        let line = line?;
        if line.trim() == "END" {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && let Ok(value) = value.trim().parse()
        {
            out.push((name.trim().to_owned(), value));
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn exposition_text() {
        let text = "# HELP a b\n# TYPE a counter\na{x=\"1 2}\",y=\"z\"} 5 1700000000\nb 1e3\nc_bucket{le=\"1\"} 4\nd NaN\nbroken\n";
        let got: Scrape = samples(text).collect();
        assert_eq!(
            got,
            [
                ("a{x=\"1 2}\",y=\"z\"}".to_owned(), 5.0),
                ("b".to_owned(), 1000.0)
            ]
        );
    }

    #[test]
    fn nested_variables_and_sums_over_labels() {
        let got = expvar(r#"{"dogstatsd":{"Packets":7,"ok":true},"n":1,"list":[1,2]}"#).unwrap();
        assert_eq!(
            got,
            [("dogstatsd.Packets".to_owned(), 7.0), ("n".to_owned(), 1.0)]
        );
        let t = Telemetry {
            kind: TelemetryKind::Prometheus,
            address: String::new(),
            map: BTreeMap::from([
                ("received_packets".to_owned(), "packets".to_owned()),
                ("dropped".to_owned(), "drop_a + drop_b_*".to_owned()),
                ("received_bytes".to_owned(), "absent".to_owned()),
            ]),
        };
        let scrape: Scrape = [
            ("packets{l=\"1\"}", 1.0),
            ("packets{l=\"2\"}", 2.0),
            ("packets_other", 9.0),
            ("drop_a", 4.0),
            ("drop_b_x", 8.0),
        ]
        .map(|(n, v)| (n.to_owned(), v))
        .to_vec();
        assert_eq!(
            canonical(&t, &scrape),
            [("dropped".to_owned(), 12.0), ("received_packets".to_owned(), 3.0)]
        );
    }
}
