//! Converts experiment directories of Datadog's Single Machine Performance suite (`experiment.yaml` beside `lading/lading.yaml`). Reports
//! settings without a counterpart and omits them.

use super::layer::{ConfigError, Result, read_text};
use serde_json::{Map, Value, json};
use std::path::Path;

/// Converts a case into the library. Returns its name and the omitted settings. Refuses to overwrite.
pub fn import(from: &Path, library: &Path) -> Result<(String, Vec<String>)> {
    let base = from.file_name().unwrap_or_default().to_string_lossy();
    let name = base.replace('_', "-");
    let folder = library.join("cases").join(&name);
    if folder.exists() {
        return Err(ConfigError(format!("{}: exists already", folder.display())));
    }
    let mut notes = Vec::new();
    let mut case = converted(from, &mut notes)?;
    case.insert(
        "description".into(),
        format!("Imported from the SMP case {base}.").into(),
    );
    let text = serde_saphyr::to_string(&case).map_err(|e| ConfigError(e.to_string()))?;
    std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(folder.join("experiment.yaml"), text))
        .map_err(|e| ConfigError(format!("{}: {e}", folder.display())))?;
    Ok((name, notes))
}

fn yaml(path: &Path) -> Result<Value> {
    serde_saphyr::from_str(&read_text(path)?).map_err(|e| ConfigError(format!("{}: {e}", path.display())))
}

fn converted(from: &Path, notes: &mut Vec<String>) -> Result<Map<String, Value>> {
    let experiment = yaml(&from.join("experiment.yaml"))?;
    let lading = from.join("lading").join("lading.yaml");
    let lading = if lading.is_file() {
        yaml(&lading)?
    } else {
        Value::Null
    };
    let mut case = Map::new();
    let goal = match text(&experiment["optimization_goal"]).as_str() {
        goal @ ("ingress_throughput" | "egress_throughput" | "cpu" | "memory") => goal.to_owned(),
        other => {
            notes.push(format!("goal {other:?} is unknown here; cpu_per_message is used"));
            "cpu_per_message".to_owned()
        }
    };
    case.insert("goal".into(), goal.into());
    if experiment["erratic"] == true {
        case.insert("erratic".into(), true.into());
    }
    let target = target(&experiment["target"], notes);
    if !target.is_empty() {
        case.insert("target".into(), target.into());
    }
    let checks = kept(&experiment["checks"], notes, |c, _| check(c));
    if !checks.is_empty() {
        case.insert("checks".into(), checks.into());
    }
    if !experiment["report_links"].is_null() {
        notes.push("report_links: left out".to_owned());
    }
    let load = kept(&lading["generator"], notes, generator);
    if !lading["generator"].is_array() {
        case.insert("valid".into(), json!({"idle": true}));
        notes.push("no lading generator: imported as an idle case".to_owned());
    }
    case.insert("load".into(), load.into());
    Ok(case)
}

/// The entries of a list that have a counterpart; notes why the others have none.
fn kept(
    list: &Value,
    notes: &mut Vec<String>,
    convert: impl Fn(&Value, &mut Vec<String>) -> std::result::Result<Value, Omitted>,
) -> Vec<Value> {
    let entries = list.as_array().into_iter().flatten();
    let mut kept = Vec::new();
    for entry in entries {
        match convert(entry, notes) {
            Ok(converted) => kept.push(converted),
            Err(why) => notes.push(why.to_string()),
        }
    }
    kept
}

/// A scalar as it was written.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn target(target: &Value, notes: &mut Vec<String>) -> Map<String, Value> {
    let mut out = Map::new();
    let memory = text(&target["memory_allotment"]).replace(' ', "");
    if !memory.is_empty() {
        out.insert("memory_limit".into(), memory.into());
    }
    if let Some(env) = target["environment"].as_object() {
        let env: Map<String, Value> = env.iter().map(|(k, v)| (k.clone(), text(v).into())).collect();
        out.insert("env".into(), env.into());
    }
    for (key, what) in [
        (
            "cpu_allotment",
            "set target.cpus by hand, it depends on the machine",
        ),
        ("command", "comes from targets.yaml"),
    ] {
        if !target[key].is_null() {
            notes.push(format!("{key}: {what}"));
        }
    }
    out
}

/// Why an entry has no counterpart.
#[derive(Debug, thiserror::Error)]
enum Omitted {
    #[error("check {0}: no bounds")]
    NoBounds(String),
    #[error("check {name}: series {series:?} has no counterpart")]
    Series { name: String, series: String },
    #[error("check {0}: no upper_bound")]
    NoUpperBound(String),
    #[error("a generator of a kind that has no counterpart was left out")]
    Generator,
}

fn check(check: &Value) -> std::result::Result<Value, Omitted> {
    let name = check["name"].as_str().unwrap_or("check").to_owned();
    let bounds = &check["bounds"];
    if bounds.is_null() {
        return Err(Omitted::NoBounds(name));
    }
    let (series, stat) = match text(&bounds["series"]).as_str() {
        "total_rss_bytes" => ("rss_bytes", "max"),
        "total_pss_bytes" => ("pss_bytes", "max"),
        "avg(total_cpu_usage_millicores)" => ("cpu_millicores", "mean"),
        "lost_bytes" => ("lost_messages", "last"),
        other => {
            let series = other.to_owned();
            return Err(Omitted::Series { name, series });
        }
    };
    match text(&bounds["upper_bound"]).replace(' ', "") {
        upper if upper.is_empty() => Err(Omitted::NoUpperBound(name)),
        upper => Ok(json!({"name": name, "series": series, "stat": stat, "upper": upper})),
    }
}

/// lading's generators: the transport, and the payload if no profile has its name.
const GENERATORS: [(&str, &str, &str); 5] = [
    ("unix_datagram", "unix_datagram", "dsd-uds"),
    ("udp", "udp", "dsd-uds"),
    ("unix_stream", "unix_stream", "dsd-uds"),
    ("tcp", "tcp", "syslog5424"),
    ("http", "otlp_http_logs", "otlp-logs"),
];

fn generator(generator: &Value, notes: &mut Vec<String>) -> std::result::Result<Value, Omitted> {
    let (key, listen, fallback) = GENERATORS
        .into_iter()
        .find(|(key, _, _)| !generator[key].is_null())
        .ok_or(Omitted::Generator)?;
    let body = &generator[key];
    let profile = profile(body, fallback, notes);
    let mut load = json!({"profile": profile, "to": {"listen": [listen]}});
    let rate = text(&body["bytes_per_second"]).replace(' ', "");
    if !rate.is_empty() {
        // lading counts "Mb" as megabytes; here a lower-case b would be refused as ambiguous.
        let rate = rate
            .replace("Mb", "MB")
            .replace("Gb", "GB")
            .replace("Kb", "kB")
            .replace("KB", "kB");
        load["args"] = json!(["--rate", format!("{rate}/s")]);
    }
    Ok(load)
}

fn profile(body: &Value, fallback: &'static str, notes: &mut Vec<String>) -> &'static str {
    let variant = [&body["variant"], &body["method"]["post"]["variant"]]
        .into_iter()
        .find(|variant| !variant.is_null());
    let name = match variant {
        Some(Value::Object(map)) => map.keys().next().cloned().unwrap_or_default(),
        other => other.map_or_else(String::new, text),
    };
    match name.as_str() {
        "dogstatsd" => {
            let what = "dogstatsd knobs (contexts, lengths, weights) are those of the profile; write a profile file to change them";
            notes.push(what.to_owned());
            "dsd-uds"
        }
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::experiment::Load;
    use crate::detect::layer;
    use crate::detect::library::{Library, Overlay, resolve};

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
        let library = dir.path().join("library");
        std::fs::create_dir_all(library.join("cases")).unwrap();
        let (name, notes) = import(&case, &library).unwrap();
        assert_eq!(name, "uds-dogstatsd-to-api");
        assert!(
            notes.iter().any(|n| n.contains("connection.current")),
            "{notes:?}"
        );
        assert!(import(&case, &library).unwrap_err().0.contains("exists already"));
        let library = Library::open(Some(&library)).unwrap();
        let overlay = Overlay {
            target: layer::parse("command: [x]\nlisten: {unix_datagram: 'unixgram:///x'}\n", "t").unwrap(),
            ..Overlay::default()
        };
        let e = resolve(&library.cases().unwrap()[0], &overlay).unwrap();
        assert_eq!(e.checks[0].upper, Some(640.0 * 1024.0 * 1024.0));
        assert_eq!(e.target.memory_limit, Some(2 << 30));
        assert_eq!(e.target.env["DD_API_KEY"], "0");
        assert!(matches!(&e.load[0], Load::Profile { args, .. } if args[1] == "8MB/s"));
    }
}
