//! Reading the experiment folders of Datadog's Single Machine Performance suite (`experiment.yaml` beside
//! `lading/lading.yaml`) and writing ours. What has no counterpart is said and left out.

use super::node::{ConfigError, Node, Reader, Result, Value};
use std::fmt::Write as _;
use std::path::Path;

/// The converted `experiment.yaml` and what was left out.
pub fn import(folder: &Path) -> Result<(String, Vec<String>)> {
    let experiment = Node::read(&folder.join("experiment.yaml"))?;
    let lading = folder.join("lading").join("lading.yaml");
    let lading = if lading.is_file() {
        Some(Node::read(&lading)?)
    } else {
        None
    };
    let mut notes = Vec::new();
    let mut out = String::new();
    let name = folder
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    let _ = writeln!(
        out,
        "description: {}",
        quoted(&format!("Imported from the SMP case {name}."))
    );

    let mut r = Reader::new(&experiment, "")?;
    let goal = text(r.take("optimization_goal")).unwrap_or_default();
    let goal = match goal.as_str() {
        "ingress_throughput" | "egress_throughput" | "cpu" | "memory" => goal,
        other => {
            notes.push(format!("goal {other:?} is unknown here; cpu_per_message is used"));
            "cpu_per_message".to_owned()
        }
    };
    let _ = writeln!(out, "goal: {goal}");
    if matches!(r.take("erratic").map(|n| &n.value), Some(Value::Bool(true))) {
        out.push_str("erratic: true\n");
    }
    if let Some(target) = r.take("target") {
        let mut yaml = Vec::new();
        if let Some(bytes) = text(target.get("memory_allotment")) {
            yaml.push(format!("memory_limit: {}", quoted(&bytes.replace(' ', ""))));
        }
        if let Some(env) = target.get("environment") {
            yaml.push(format!("env: {}", one_line(env)));
        }
        if target.get("cpu_allotment").is_some() {
            notes.push("cpu_allotment: set target.cpus by hand, it depends on the machine".to_owned());
        }
        if target.get("command").is_some() {
            notes.push("command: comes from targets.yaml".to_owned());
        }
        if !yaml.is_empty() {
            let _ = writeln!(out, "target: {{{}}}", yaml.join(", "));
        }
    }
    if let Some(Value::List(checks)) = r.take("checks").map(|n| &n.value) {
        let mut lines = String::new();
        for c in checks {
            match check(c) {
                Ok(line) => {
                    let _ = writeln!(lines, "  - {line}");
                }
                Err(why) => notes.push(why),
            }
        }
        if !lines.is_empty() {
            let _ = write!(out, "checks:\n{lines}");
        }
    }
    if r.take("report_links").is_some() {
        notes.push("report_links: left out".to_owned());
    }
    match lading.as_ref().and_then(|l| l.get("generator")) {
        Some(Node {
            value: Value::List(generators),
            ..
        }) => {
            out.push_str("load:\n");
            for g in generators {
                match generator(g) {
                    Ok((line, mut more)) => {
                        let _ = writeln!(out, "  - {line}");
                        notes.append(&mut more);
                    }
                    Err(why) => notes.push(why),
                }
            }
        }
        _ => {
            out.push_str("load: []\nvalid: {idle: true}\n");
            notes.push("no lading generator: imported as an idle case".to_owned());
        }
    }
    Ok((out, notes))
}

fn check(c: &Node) -> std::result::Result<String, String> {
    let name = text(c.get("name")).unwrap_or_else(|| "check".to_owned());
    let bounds = c
        .get("bounds")
        .ok_or_else(|| format!("check {name}: no bounds"))?;
    let series = text(bounds.get("series")).unwrap_or_default();
    let (series, stat) = match series.as_str() {
        "total_rss_bytes" => ("rss_bytes", "max"),
        "total_pss_bytes" => ("pss_bytes", "max"),
        "avg(total_cpu_usage_millicores)" => ("cpu_millicores", "mean"),
        "lost_bytes" => ("lost_messages", "last"),
        other => return Err(format!("check {name}: series {other:?} has no counterpart")),
    };
    let upper = text(bounds.get("upper_bound")).ok_or_else(|| format!("check {name}: no upper_bound"))?;
    let upper = upper.replace(' ', "");
    Ok(format!(
        "{{name: {}, series: {series}, stat: {stat}, upper: {}}}",
        quoted(&name),
        if upper.parse::<f64>().is_ok() {
            upper
        } else {
            quoted(&upper)
        }
    ))
}

fn generator(g: &Node) -> std::result::Result<(String, Vec<String>), String> {
    let mut notes = Vec::new();
    let kinds = [
        ("unix_datagram", "unix_datagram", "dsd-uds"),
        ("udp", "udp", "dsd-uds"),
        ("unix_stream", "unix_stream", "dsd-uds"),
        ("tcp", "tcp", "syslog5424"),
        ("http", "otlp_http_logs", "otlp-logs"),
    ];
    let (key, listen, fallback) = kinds
        .iter()
        .find(|(k, _, _)| g.get(k).is_some())
        .ok_or_else(|| "a generator of a kind that has no counterpart was left out".to_owned())?;
    let body = g.get(key).expect("found above");
    let variant = body.get("variant").or_else(|| {
        body.get("method")
            .and_then(|m| m.get("post"))
            .and_then(|p| p.get("variant"))
    });
    let variant = match variant.map(|v| &v.value) {
        Some(Value::Text(t)) => t.clone(),
        Some(Value::Map(m)) => m.first().map(|(k, _)| k.clone()).unwrap_or_default(),
        _ => String::new(),
    };
    let profile = match variant.as_str() {
        "dogstatsd" => "dsd-uds",
        "syslog5424" => "syslog5424",
        "datadog_log" => "dd-logs",
        "json" => "json-logs",
        "apache_common" => "apache-logs",
        "opentelemetry_logs" => "otlp-logs",
        "opentelemetry_metrics" => "otlp-metrics",
        "opentelemetry_traces" => "otlp-traces",
        other => {
            notes.push(format!("payload {other:?}: {fallback} is used instead"));
            fallback
        }
    };
    if variant == "dogstatsd" {
        notes.push("dogstatsd knobs (contexts, lengths, weights) are those of the profile; write a profile file to change them".to_owned());
    }
    let mut args = String::new();
    if let Some(rate) = text(body.get("bytes_per_second")) {
        // lading counts "Mb" as megabytes; here a lower-case b would be refused as ambiguous.
        let rate = rate
            .replace(' ', "")
            .replace("Mb", "MB")
            .replace("Kb", "kB")
            .replace("Gb", "GB")
            .replace("KB", "kB");
        args = format!(", args: [--rate, {}]", quoted(&format!("{rate}/s")));
    }
    Ok((
        format!("{{profile: {profile}{args}, to: {{listen: [{listen}]}}}}"),
        notes,
    ))
}

fn text(node: Option<&Node>) -> Option<String> {
    node.and_then(|n| super::node::text(n, "").ok())
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

fn one_line(node: &Node) -> String {
    match &node.value {
        Value::Map(items) => {
            let parts: Vec<String> = items
                .iter()
                .map(|(k, v)| format!("{}: {}", quoted(k), quoted(&text(Some(v)).unwrap_or_default())))
                .collect();
            format!("{{{}}}", parts.join(", "))
        }
        _ => "{}".to_owned(),
    }
}

/// Writes the case into a library; refuses to overwrite.
pub fn write(from: &Path, library: &Path) -> Result<(String, Vec<String>)> {
    let (yaml, notes) = import(from)?;
    let name = from
        .file_name()
        .map(|n| n.to_string_lossy().replace('_', "-"))
        .unwrap_or_default();
    let folder = library.join("cases").join(&name);
    if folder.exists() {
        return Err(ConfigError(format!("{}: exists already", folder.display())));
    }
    std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(folder.join("experiment.yaml"), yaml))
        .map_err(|e| ConfigError(format!("{}: {e}", folder.display())))?;
    Ok((name, notes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_becomes_one_that_can_be_read_here() {
        let dir = tempfile::tempdir().unwrap();
        let case = dir.path().join("uds_dogstatsd_to_api");
        std::fs::create_dir_all(case.join("lading")).unwrap();
        std::fs::write(
            case.join("experiment.yaml"),
            "optimization_goal: ingress_throughput\nerratic: false\ntarget:\n  name: agent\n  command: /bin/agent\n  cpu_allotment: 4\n  \
             memory_allotment: 2GiB\n  environment: {DD_API_KEY: \"0\"}\nchecks:\n  - name: memory_usage\n    bounds: {series: total_rss_bytes, \
             upper_bound: 640MiB}\n  - name: odd\n    bounds: {series: connection.current, upper_bound: 1}\n",
        )
        .unwrap();
        std::fs::write(
            case.join("lading/lading.yaml"),
            "generator:\n  - unix_datagram:\n      path: /tmp/dsd.socket\n      variant:\n        dogstatsd: {contexts: {constant: 100}}\n      \
             bytes_per_second: \"8 Mb\"\n",
        )
        .unwrap();
        std::fs::create_dir_all(dir.path().join("library/cases")).unwrap();
        let (name, notes) = write(&case, &dir.path().join("library")).unwrap();
        assert_eq!(name, "uds-dogstatsd-to-api");
        assert!(
            notes.iter().any(|n| n.contains("connection.current")),
            "{notes:?}"
        );
        assert!(
            write(&case, &dir.path().join("library"))
                .unwrap_err()
                .0
                .contains("exists already")
        );
        let library = super::super::experiment::Library::open(&dir.path().join("library")).unwrap();
        let case = &library.cases().unwrap()[0];
        let overlay = super::super::experiment::Overlay {
            names: Vec::new(),
            target: Node::parse("command: [x]\nlisten: {unix_datagram: 'unixgram:///x'}\n", "t").unwrap(),
            sinks: None,
        };
        let e = super::super::experiment::resolve(case, &overlay).unwrap();
        assert_eq!(e.checks[0].upper, Some(640.0 * 1024.0 * 1024.0));
        assert_eq!(e.target.memory_limit, Some(2 << 30));
        assert!(
            matches!(&e.load[0], super::super::experiment::Load::Profile { args, .. } if args[1] == "8MB/s")
        );
    }
}
