//! Telegraf's `[[inputs.statsd]]`, and other parts of its configuration that affect its metrics.

use weir_config::node::{Content, Key, Node};

use super::draft::Draft;
use super::within::Sought;
use super::{
    API_KEY, ConvertError, Converted, Notes, Unconverted, address, did_you_mean, finish, list, map, scalar,
    slipped, toml, top_level, without_host,
};

mod templates;
mod variables;

pub use variables::Environment;

/// Options of the input that weir does not need, and why.
const NOT_NEEDED: &[(&str, &str)] = &[
    (
        "allowed_pending_messages",
        "there is one memory budget, `memory`; receive_buffer is the kernel's queue",
    ),
    (
        "datadog_keep_container_tag",
        "origin_client reads the field, and origin detection makes tags of it (docs/origin.md)",
    ),
    (
        "enable_aggregation_temporality",
        "outputs.otlp says which temporality its sums have",
    ),
    (
        "float_counters",
        "all numbers are floats, and whole ones are written as integers",
    ),
    (
        "float_sets",
        "all numbers are floats, and whole ones are written as integers",
    ),
    (
        "float_timings",
        "all numbers are floats, and whole ones are written as integers",
    ),
    (
        "max_tcp_connections",
        "connections are limited by descriptors, and counted when they are refused",
    ),
    (
        "max_ttl",
        "nothing is cached beyond its bucket; a scrape shows series for outputs.prometheus.expiry",
    ),
    ("number_workers_threads", "`workers` is worked out from the cores"),
    (
        "percentile_limit",
        "percentiles are exact up to 4096 samples per series and bucket, and within 1 % beyond them",
    ),
    (
        "tcp_keep_alive",
        "connections last as long as both ends keep them",
    ),
    (
        "tcp_keep_alive_period",
        "connections last as long as both ends keep them",
    ),
];

/// Options of the input with a counterpart.
const OPTIONS: &[&str] = &[
    "protocol",
    "service_address",
    "metric_separator",
    "read_buffer_size",
    "percentiles",
    "templates",
    "delete_counters",
    "delete_gauges",
    "delete_sets",
    "delete_timings",
    "datadog_extensions",
    "datadog_distributions",
    "parse_data_dog_tags",
    "convert_names",
    "sanitize_name_method",
    "name_prefix",
];

/// Parts of the file.
const TABLES: [&str; 6] = [
    "agent",
    "global_tags",
    "inputs",
    "outputs",
    "processors",
    "aggregators",
];

/// Settings of the agent.
const AGENT: &[&str] = &[
    "interval",
    "hostname",
    "debug",
    "omit_hostname",
    "round_interval",
    "flush_interval",
    "flush_jitter",
    "collection_jitter",
    "collection_offset",
    "precision",
    "metric_batch_size",
    "metric_buffer_limit",
    "quiet",
    "logfile",
    "logtarget",
];

/// Outputs with a counterpart.
const OUTPUTS: [&str; 6] = [
    "datadog",
    "prometheus_client",
    "influxdb",
    "influxdb_v2",
    "graphite",
    "file",
];

/// Options of any output that weir does not need.
const NOT_NEEDED_OF_OUTPUTS: &[&str] = &[
    "alias",
    "collectors_exclude",
    "flush_interval",
    "flush_jitter",
    "log_level",
    "metric_batch_size",
    "metric_buffer_limit",
    "metric_version",
    "precision",
    "string_as_label",
];

/// Converts the text of a `telegraf.conf`.
pub fn convert(text: &str, environment: Environment<'_>) -> Result<Converted, ConvertError> {
    let text = variables::replaced(text, environment);
    let mut entries = match (toml::parse(&text), top_level(&text)) {
        (Ok(entries), _) => entries,
        (Err(_), Ok(document)) => CONFIGURATION.in_document(document)?,
        (Err(error), Err(_)) => return Err(error),
    };
    let mut converter = Converter::default();
    for (key, node) in &mut entries {
        if let Content::Map(parts) = &mut node.content
            && matches!(key.text.as_str(), "agent" | "global_tags" | "inputs" | "outputs")
        {
            // Other inputs are not converted as a whole.
            let mut others = Vec::new();
            if key.text == "inputs" {
                others = parts.extract_if(.., |(part, _)| part.text != "statsd").collect();
            }
            let mut report = |line: usize, message: String| converter.skip(line, message);
            variables::without_missing(&key.text, parts, &mut report);
            parts.extend(others);
        }
    }
    for (key, node) in &entries {
        match key.text.as_str() {
            "agent" => converter.agent(node),
            "global_tags" => converter.tags(node),
            "inputs" => converter.inputs(node),
            "outputs" => converter.outputs(node),
            "processors" | "aggregators" => converter.skip(
                key.line,
                format!(
                    "{}: weir has rules for metrics (docs/rules.md), and no plugins",
                    key.text
                ),
            ),
            other => match slipped(other, TABLES) {
                Some(hint) => converter.skip(key.line, format!("{other}: {hint}")),
                None => converter.skip_elsewhere(key.line, format!("{other}: weir has no such plugins")),
            },
        }
    }
    Ok(converter.finish())
}

/// The file as a part of another.
const CONFIGURATION: Sought<'static> = Sought {
    name: "Telegraf's statsd input",
    parse: &toml::parse,
    is_own: &has_input,
    in_values: false,
};

fn has_input(entries: &[(Key, Node)]) -> bool {
    let mut inputs = entries.iter().filter(|(key, _)| key.text == "inputs");
    inputs.any(|(_, node)| map(node).iter().any(|(key, _)| key.text == "statsd"))
}

#[derive(Default)]
struct Converter {
    draft: Draft,
    /// Of all inputs together.
    udp: Vec<String>,
    tcp: Vec<String>,
    mappings: Vec<templates::Mapping>,
    /// Tags of every metric, each with its key.
    tags: Vec<(String, String)>,
    /// The separator in names that no template matches.
    separators: Vec<String>,
    /// As fractions, each with its line.
    percentiles: Vec<(f64, usize)>,
    inputs: usize,
    left: Vec<Unconverted>,
}

impl Notes for Converter {
    fn left(&mut self) -> &mut Vec<Unconverted> {
        &mut self.left
    }
}

impl Converter {
    fn agent(&mut self, node: &Node) {
        for (key, value) in map(node) {
            let text = scalar(value).unwrap_or_default();
            match key.text.as_str() {
                // Telegraf's statsd input flushes when it is gathered.
                "interval" => match super::statsd_exporter::go_seconds(text) {
                    Some(seconds) if seconds >= 1.0 && seconds.fract() == 0.0 => {
                        self.draft.set("bucket_width", &format!("{seconds}s"));
                    }
                    _ => self.skip(
                        key.line,
                        format!("agent.interval: {text}: must be whole seconds, at least one"),
                    ),
                },
                "hostname" if !text.is_empty() => self.draft.set("hostname", text),
                "debug" if text == "true" => self.draft.set("log_level", "debug"),
                "hostname" | "debug" => {}
                "omit_hostname" if text == "false" => {}
                "round_interval" if text == "true" => {}
                "flush_jitter" | "collection_jitter" | "collection_offset" if matches!(text, "0s" | "") => {}
                "quiet" | "logfile" if matches!(text, "false" | "") => {}
                other => match slipped(other, AGENT.iter().copied()) {
                    Some(hint) => self.skip(key.line, format!("agent.{other}: {hint}")),
                    None => self.skip_idle(key.line, format!("agent.{other}: {}", of_agent(other))),
                },
            }
        }
    }

    fn tags(&mut self, node: &Node) {
        let tags = map(node)
            .iter()
            .filter_map(|(key, value)| Some((key.text.clone(), scalar(value)?.to_owned())));
        // A tag of an input replaces a global one, wherever it is in the file.
        let mut tags: Vec<_> = tags
            .filter(|(key, _)| !self.tags.iter().any(|(known, _)| known == key))
            .collect();
        tags.append(&mut self.tags);
        self.tags = tags;
    }

    /// `[inputs.statsd.tags]`: tags of all metrics, if there is one input.
    fn tags_of_input(&mut self, key: &Key, node: &Node, is_only_one: bool) {
        for (tag, value) in map(node) {
            match scalar(value) {
                Some(value) if is_only_one => {
                    self.tags.retain(|(known, _)| *known != tag.text);
                    self.tags.push((tag.text.clone(), value.to_owned()));
                }
                _ => self.skip(
                    key.line,
                    format!(
                        "inputs.statsd.tags.{}: weir has no tags of one listener",
                        tag.text
                    ),
                ),
            }
        }
    }

    fn inputs(&mut self, node: &Node) {
        for (key, node) in map(node) {
            if key.text != "statsd" {
                self.skip_elsewhere(
                    key.line,
                    format!("inputs.{}: weir receives StatsD and DogStatsD alone", key.text),
                );
                continue;
            }
            let inputs = plugins(node);
            for input in &inputs {
                self.inputs += 1;
                self.statsd(input);
                let tags = map(input).iter().find(|(key, _)| key.text == "tags");
                if let Some((key, node)) = tags {
                    self.tags_of_input(key, node, inputs.len() == 1);
                }
            }
        }
    }

    fn statsd(&mut self, input: &Node) {
        let text = |name: &str| {
            let found = map(input).iter().find(|(key, _)| key.text == name);
            found.and_then(|(_, node)| scalar(node))
        };
        let address = text("service_address").unwrap_or(":8125");
        let address = address.split_once("://").map_or(address, |(_, rest)| rest);
        let protocol = text("protocol").unwrap_or("udp");
        let address = match (protocol.strip_suffix(['4', '6']), address.strip_prefix(':')) {
            (Some(_), Some(port)) if protocol.ends_with('4') => format!("0.0.0.0:{port}"),
            (Some(_), Some(port)) => format!("[::]:{port}"),
            _ => super::address(address),
        };
        if protocol.starts_with("tcp") {
            self.tcp.push(address);
        } else {
            self.udp.push(address);
        }
        let separator = text("metric_separator")
            .filter(|text| !text.is_empty())
            .unwrap_or("_")
            .to_owned();
        self.separators.push(separator.clone());
        for (key, value) in map(input) {
            self.option(key, value, &separator);
        }
    }

    fn option(&mut self, key: &Key, value: &Node, separator: &str) {
        let text = scalar(value).unwrap_or_default();
        let say = |message: &str| format!("inputs.statsd.{}: {message}", key.text);
        match key.text.as_str() {
            "protocol" | "service_address" | "metric_separator" | "tags" => {}
            "read_buffer_size" => self.draft.set("receive_buffer", text),
            "percentiles" => self.percentiles(key, value),
            "templates" => self.templates(key, value, separator),
            "delete_counters" | "delete_gauges" | "delete_sets" | "delete_timings" if text == "true" => {}
            "delete_counters" | "delete_gauges" | "delete_sets" | "delete_timings" if text.is_empty() => {}
            "delete_counters" => self.skip(key.line, say("a bucket has its own samples; outputs.prometheus, remote_write and otlp sum over buckets")),
            "delete_gauges" => self.skip(key.line, say("a gauge is sent when it was set; a scrape shows it for outputs.prometheus.expiry, and deltas find it for context_expiry")),
            "delete_sets" | "delete_timings" => self.skip(key.line, say("a bucket has what came in it")),
            "datadog_extensions" | "parse_data_dog_tags" | "datadog_distributions" if text == "true" => {}
            "datadog_extensions" | "parse_data_dog_tags" | "datadog_distributions" => {
                self.skip(key.line, say("DogStatsD's tags, events, checks and distributions are always read"));
            }
            "convert_names" if text == "false" => {}
            "convert_names" => self.skip(key.line, say("names keep their dots; outputs that allow none replace them")),
            "sanitize_name_method" if text.is_empty() => {}
            "sanitize_name_method" => self.skip(key.line, say("names stay as they are; outputs replace characters that they do not allow")),
            "name_prefix" => self.draft.set("namespace", text),
            other => {
                if let Some((_, why)) = NOT_NEEDED.iter().find(|(name, _)| *name == other) {
                    return self.skip_idle(key.line, say(why));
                }
                if is_empty(value) {
                    // An empty list or table of options of every plugin is the default.
                    return;
                }
                let known = OPTIONS.iter().chain(NOT_NEEDED.iter().map(|(name, _)| name));
                let why = did_you_mean(other, known.copied());
                self.skip(key.line, say(why.as_deref().unwrap_or("weir has no such option; rules (docs/rules.md) choose, name and tag metrics")));
            }
        }
    }

    fn percentiles(&mut self, key: &Key, node: &Node) {
        for text in list(node).iter().filter_map(scalar) {
            match text.parse::<f64>() {
                Ok(percent) if (0.0..=100.0).contains(&percent) => {
                    // Written with as many digits as the percents have.
                    let fraction = format!("{:.12}", percent / 100.0);
                    self.percentiles
                        .push((fraction.parse().unwrap_or_default(), key.line));
                }
                _ => self.skip(
                    key.line,
                    format!("inputs.statsd.percentiles: {text}: must be a number from 0 to 100"),
                ),
            }
        }
    }

    /// Percentiles of the series that outputs share are whole percents; some outputs have their own, with fractions.
    fn write_percentiles(&mut self) {
        let mut whole = Vec::new();
        let own = ["influx", "graphite"].into_iter();
        let own: Vec<_> = own.filter(|output| self.draft.has_output(output)).collect();
        for (fraction, line) in self.percentiles.clone() {
            let percent = fraction * 100.0;
            if percent >= 1.0 && (percent - percent.round()).abs() < 1e-9 {
                whole.push(fraction.to_string());
            } else if own.is_empty() {
                let percent = format!("{percent:.9}");
                let percent = percent.trim_end_matches('0').trim_end_matches('.');
                self.skip(line, format!("inputs.statsd.percentiles: {percent}: percentiles of histograms are whole percents from 1 to 100; `percentiles` and `quantiles` of outputs take fractions"));
            }
        }
        self.draft.set_list("histogram_percentiles", &whole);
        let all: Vec<String> = self
            .percentiles
            .iter()
            .map(|(fraction, _)| fraction.to_string())
            .collect();
        for output in own {
            self.draft.set_output_list(output, "percentiles", &all);
        }
    }

    /// The rules that give names their separators, behind those of the templates.
    fn write_mappings(&mut self) {
        let mut profiles = templates::profile(std::mem::take(&mut self.mappings));
        self.separators.dedup();
        match &self.separators[..] {
            [] => {}
            [separator] if separator == "." => {}
            [separator] => profiles.push_str(&templates::separated(separator)),
            _ => self.skip(
                0,
                "inputs.statsd.metric_separator: the inputs have different ones; names keep their dots",
            ),
        }
        if !profiles.is_empty() {
            self.draft.own("mapper_profiles", format!("\n{profiles}"));
        }
    }

    fn templates(&mut self, key: &Key, node: &Node, separator: &str) {
        for text in list(node).iter().filter_map(scalar) {
            match templates::Mapping::of(text, separator) {
                Ok(mapping) => self.mappings.push(mapping),
                Err(message) => self.skip(key.line, format!("inputs.statsd.templates: {text:?}: {message}")),
            }
        }
    }

    fn outputs(&mut self, node: &Node) {
        for (key, node) in map(node) {
            for output in plugins(node) {
                let text = |name: &str| {
                    let found = map(output).iter().find(|(key, _)| key.text == name);
                    found.and_then(|(_, node)| scalar(node)).map(str::to_owned)
                };
                match key.text.as_str() {
                    "datadog" => {
                        if let Some(url) = text("url") {
                            let base = url.split("/api/").next().unwrap_or(&url);
                            self.draft.set_output("datadog", "url", base);
                        }
                        without_host(&mut self.draft);
                        self.skip(output.line, format!("outputs.datadog.apikey: {API_KEY}"));
                        self.rest("datadog", output, &["url", "apikey"]);
                    }
                    "prometheus_client" => {
                        self.draft
                            .set("admin", &address(&text("listen").unwrap_or(":9273".into())));
                        self.expiration(output);
                        self.rest("prometheus_client", output, &["listen", "expiration_interval"]);
                    }
                    "influxdb" | "influxdb_v2" => self.influx(output),
                    "graphite" => {
                        let servers = map(output).iter().find(|(key, _)| key.text == "servers");
                        let server = servers.and_then(|(_, node)| list(node).iter().find_map(scalar));
                        let server = server.unwrap_or("localhost:2003").to_owned();
                        self.draft
                            .set_output("graphite", "address", &format!("tcp://{server}"));
                        if let Some(prefix) = text("prefix").filter(|prefix| !prefix.is_empty()) {
                            self.draft.set_output("graphite", "prefix", &prefix);
                        }
                        if servers.is_some_and(|(_, node)| list(node).len() > 1) {
                            self.skip(
                                output.line,
                                "outputs.graphite.servers: an output has one address, the first",
                            );
                        }
                        self.skip(output.line, "outputs.graphite: its paths are made of host, tags, measurement and field; here they are the name, and tags as outputs.graphite.tags says");
                        self.rest("graphite", output, &["servers", "prefix"]);
                    }
                    "file" => {
                        self.draft.output("stdout", "enabled", " true\n".to_owned());
                        self.rest("file", output, &[]);
                    }
                    other => {
                        let hint = slipped(other, OUTPUTS);
                        let why = hint.as_deref().unwrap_or(of_output(other));
                        self.skip(key.line, format!("outputs.{other}: {why}"));
                    }
                }
            }
        }
    }

    /// The time after which a scrape has no more of a series.
    fn expiration(&mut self, output: &Node) {
        let found = map(output)
            .iter()
            .find(|(key, _)| key.text == "expiration_interval");
        let Some((key, text)) = found.and_then(|(key, node)| Some((key, scalar(node)?))) else {
            return;
        };
        match super::statsd_exporter::go_seconds(text) {
            Some(0.0) => self.draft.set_output("prometheus", "expiry", "365d"),
            Some(seconds) => {
                let seconds = format!("{}s", seconds.ceil().max(1.0));
                self.draft.set_output("prometheus", "expiry", &seconds);
            }
            None => self.skip(
                key.line,
                format!("outputs.prometheus_client.expiration_interval: {text:?} is not a duration"),
            ),
        }
    }

    /// Notes options of an output other than the `known` ones.
    fn rest(&mut self, plugin: &str, output: &Node, known: &[&str]) {
        for (key, value) in map(output) {
            let name = key.text.as_str();
            if known.contains(&name) || is_empty(value) {
                continue;
            }
            let hint = slipped(name, known.iter().copied());
            let why = hint.as_deref().unwrap_or("weir has no such setting");
            let message = format!("outputs.{plugin}.{name}: {why}");
            if NOT_NEEDED_OF_OUTPUTS.contains(&name) {
                self.skip_idle(key.line, message);
            } else {
                self.skip(key.line, message);
            }
        }
    }

    /// `[[outputs.influxdb]]` or `[[outputs.influxdb_v2]]`.
    fn influx(&mut self, output: &Node) {
        for (key, value) in map(output) {
            let text = scalar(value).unwrap_or_default();
            match key.text.as_str() {
                "urls" => self.influx_url(list(value).iter().filter_map(scalar).collect(), key.line),
                "url" => self.influx_url(vec![text], key.line),
                "database" => self.draft.set_output("influx", "database", text),
                "retention_policy" => self.draft.set_output("influx", "retention_policy", text),
                "bucket" => self.draft.set_output("influx", "bucket", text),
                "organization" => self.draft.set_output("influx", "organization", text),
                "timeout" => self.draft.set_output("influx", "delivery.timeout", text),
                "tls_ca" => self.draft.set_output("influx", "delivery.ca_file", text),
                "http_proxy" => self.draft.set_output("influx", "delivery.proxy", text),
                "content_encoding" if text != "gzip" => self.draft.set_output("influx", "compression", "none"),
                "token" | "username" | "password" => self.skip(
                    key.line,
                    format!("outputs.influxdb.{}: is a secret or belongs to one, which is not copied; set outputs.influx.token_file", key.text),
                ),
                _ => {}
            }
        }
        let known = [
            "urls",
            "url",
            "database",
            "retention_policy",
            "bucket",
            "organization",
            "timeout",
            "tls_ca",
            "http_proxy",
            "content_encoding",
            "skip_database_creation",
            "token",
            "username",
            "password",
        ];
        self.rest("influxdb", output, &known);
        // Telegraf's form.
        self.draft.set_output("influx", "integers", "true");
    }

    /// Telegraf writes each batch to one of several servers.
    fn influx_url(&mut self, urls: Vec<&str>, line: usize) {
        if let [first, rest @ ..] = &urls[..] {
            self.draft
                .set_output("influx", "url", first.trim_end_matches('/'));
            if !rest.is_empty() {
                self.skip(line, "outputs.influxdb.urls: an output has one url, the first; a second output would deliver everything twice");
            }
        }
    }

    fn finish(mut self) -> Converted {
        if self.inputs == 0 {
            self.skip(0, "there is no [[inputs.statsd]]");
        }
        let tags: Vec<String> = self
            .tags
            .iter()
            .map(|(key, value)| format!("{key}:{value}"))
            .collect();
        if !tags.is_empty() {
            self.draft.set_list("tags", &tags);
        }
        self.draft.set_list("udp", &self.udp);
        if !self.tcp.is_empty() {
            self.draft.set_list("tcp", &self.tcp);
            self.draft.set("tcp_framing", "newline");
        }
        // Telegraf's default.
        self.draft.set_list("tag_styles", &["influx"]);
        self.draft.set("statsd_gauge_deltas", "true");
        self.draft.set("statsd_sample_lists", "true");
        self.draft.set_list(
            "histogram_aggregates",
            &["count", "min", "max", "avg", "median", "sum"],
        );
        // A sample with a rate is repeated, and an idle counter is not.
        self.draft.set("histogram_weights", "agent");
        self.draft.set("counter_expiry", "0");
        self.write_percentiles();
        self.write_mappings();
        finish(&self.draft.text(), self.left, "a Telegraf configuration")
    }
}

fn is_empty(node: &Node) -> bool {
    match &node.content {
        Content::List(items) => items.is_empty(),
        Content::Map(entries) => entries.is_empty(),
        Content::Scalar { text, .. } => text.is_empty(),
    }
}

/// `[[inputs.statsd]]` once or several times.
fn plugins(node: &Node) -> Vec<&Node> {
    match &node.content {
        Content::List(items) => items.iter().collect(),
        _ => vec![node],
    }
}

fn of_agent(key: &str) -> &'static str {
    match key {
        "metric_batch_size" | "metric_buffer_limit" => "there is one memory budget, `memory`",
        "flush_interval" | "flush_jitter" => "a bucket is delivered when it closes",
        "collection_jitter" | "collection_offset" | "round_interval" => "buckets are aligned to the clock",
        "omit_hostname" => "outputs say whether series have a host: `host_label`, `host`",
        "precision" => "points have the second in which their bucket began",
        "quiet" | "logtarget" | "logfile" => "the log goes to standard error; log_level is the setting",
        _ => "weir has no such setting",
    }
}

fn of_output(name: &str) -> &'static str {
    match name {
        "opentelemetry" => "outputs.otlp is the output; its `url` is to be set",
        "http" => "outputs.remote_write and outputs.otlp deliver over HTTP",
        _ => "weir has no such output",
    }
}

#[cfg(test)]
mod tests {
    use super::super::Consequence;
    use super::*;

    #[test]
    fn an_input_with_its_surroundings() {
        let text = "[global_tags]\n  dc = \"x\"\n[agent]\n  interval = \"10s\"\n  flush_jitter = \"1s\"\n[[inputs.statsd]]\n  protocol = \"udp\"\n  service_address = \":9125\"\n  \
                    percentiles = [50.0, 99.9]\n  datadog_extensions = true\n  delete_counters = false\n  templates = [\"cpu.* measurement.measurement.host\"]\n[[inputs.statsd]]\n  \
                    protocol = \"tcp\"\n[[inputs.cpu]]\n[[outputs.prometheus_client]]\n  listen = \":9273\"\n";
        let converted = convert(text, &|_| None).unwrap();
        let lines: Vec<usize> = converted.left.iter().map(|left| left.line).collect();
        assert_eq!(lines, [5, 9, 11, 15], "{:?}", converted.left);
        for part in [
            "tags: [dc:x]\n",
            "bucket_width: 10s\n",
            "udp: ['*:9125']\n",
            "tcp: ['*:8125']\ntcp_framing: newline\n",
            "histogram_percentiles: [0.5]\n",
            "admin: '*:9273'\n",
            "tag_styles: [influx]\n",
            "statsd_gauge_deltas: true\n",
            "statsd_sample_lists: true\n",
            "name: '${1}_${2}'\n",
            "          host: '${3}'\n",
        ] {
            assert!(converted.yaml.contains(part), "{part}:\n{}", converted.yaml);
        }
    }

    #[test]
    fn tags_of_the_input_replace_global_ones_and_empty_options_mean_nothing() {
        let input = "[[inputs.statsd]]\n  drop_tags = []\n  namepass = []\n  [inputs.statsd.tags]\n    dc = \"y\"\n    app = \"z\"\n";
        let global = "[global_tags]\n  dc = \"x\"\n  env = \"e\"\n";
        for text in [format!("{global}{input}"), format!("{input}{global}")] {
            let converted = convert(&text, &|_| None).unwrap();
            assert_eq!(converted.left, [], "{text}");
            assert!(
                converted.yaml.contains("tags: [env:e, dc:y, app:z]\n"),
                "{}",
                converted.yaml
            );
        }
        let converted = convert(
            &format!("{input}[[inputs.statsd]]\n  protocol = \"tcp\"\n"),
            &|_| None,
        )
        .unwrap();
        assert_eq!(converted.left.len(), 2, "one for each tag: {:?}", converted.left);
    }

    #[test]
    fn slips_are_told() {
        let text = "[agent]\n  intervall = \"5s\"\n  snmp_translator = \"netsnmp\"\n[[input.statsd]]\n[[inputs.statsd]]\n  percentils = [90.0]\n\
                    [[outputs.influxdb_v2]]\n  bukcet = \"b\"\n  bucket_tag = \"t\"\n[[outputs.influxdb2]]\n[[outputs.influxdb_v]]\n[[output]]\n";
        let converted = convert(text, &|_| None).unwrap();
        let told: Vec<(Consequence, usize, &str)> = converted
            .left
            .iter()
            .map(|left| (left.consequence, left.line, left.message.as_str()))
            .collect();
        let (changes, idle) = (Consequence::ChangesData, Consequence::NoEffect);
        for expected in [
            (
                changes,
                2,
                "agent.intervall: is not known; did you mean interval?",
            ),
            (idle, 3, "agent.snmp_translator: weir has no such setting"),
            (changes, 4, "input: is not known; did you mean inputs?"),
            (
                changes,
                6,
                "inputs.statsd.percentils: is not known; did you mean percentiles?",
            ),
            (
                changes,
                8,
                "outputs.influxdb.bukcet: is not known; did you mean bucket?",
            ),
            (
                changes,
                9,
                "outputs.influxdb.bucket_tag: weir has no such setting",
            ),
            (
                changes,
                11,
                "outputs.influxdb_v: is not known; did you mean influxdb_v2?",
            ),
            (changes, 12, "output: is not known; did you mean outputs?"),
        ] {
            assert!(told.contains(&expected), "{expected:?} is not in {told:#?}");
        }
    }

    #[test]
    fn every_option_of_an_output_is_converted_or_noted() {
        let text = "[[inputs.statsd]]\n[[outputs.graphite]]\n  servers = [\"a:2003\", \"b:2003\"]\n  prefix = \"t\"\n  template = \"host.measurement\"\n\
                    [[outputs.prometheus_client]]\n  expiration_interval = \"90s\"\n  path = \"/m\"\n  metric_version = 2\n  tagexclude = []\n\
                    [[outputs.influxdb]]\n  url = \"http://i:8086\"\n  database = \"d\"\n  precision = \"s\"\n  namedrop = [\"x\"]\n[[outputs.file]]\n  files = [\"stdout\"]\n";
        let converted = convert(text, &|_| None).unwrap();
        for part in ["    prefix: t\n", "    expiry: 90s\n"] {
            assert!(converted.yaml.contains(part), "{part}: {}", converted.yaml);
        }
        let noted: Vec<(Consequence, &str)> = converted
            .left
            .iter()
            .map(|left| (left.consequence, left.message.split(": ").next().unwrap()))
            .collect();
        let expected = [
            (Consequence::ChangesData, "outputs.graphite.servers"),
            (Consequence::ChangesData, "outputs.graphite"),
            (Consequence::ChangesData, "outputs.graphite.template"),
            (Consequence::ChangesData, "outputs.prometheus_client.path"),
            (Consequence::NoEffect, "outputs.prometheus_client.metric_version"),
            (Consequence::NoEffect, "outputs.influxdb.precision"),
            (Consequence::ChangesData, "outputs.influxdb.namedrop"),
            (Consequence::ChangesData, "outputs.file.files"),
        ];
        assert_eq!(noted, expected, "{:?}", converted.left);
    }

    #[test]
    fn without_the_input_there_is_nothing_to_convert() {
        let converted = convert("[[inputs.cpu]]\n", &|_| None).unwrap();
        assert_eq!(converted.left.len(), 2, "{:?}", converted.left);
        assert_eq!(convert("[[inputs.statsd]\n", &|_| None).unwrap_err().line, 1);
    }

    const VARIABLES: &str = "[agent]\n  hostname=\"${HOST}\"\n  interval=\"$EVERY\"\n[global_tags]\n  dc=\"$DC\"\n[[inputs.statsd]]\n  service_address=\":$PORT\"\n\
                             [[inputs.cpu]]\n  x=\"$NOBODY\"\n[[outputs.influxdb_v2]]\n  urls=[\"http://$INFLUX:8086\"]\n  organization=\"$ORG\"\n  bucket=\"b\"\n";

    #[test]
    fn variables_have_their_values() {
        let environment = |name: &str| {
            let value = match name {
                "HOST" => "web1",
                "EVERY" => "5s",
                "DC" => "fra",
                "PORT" => "9125",
                "INFLUX" => "influx",
                "ORG" => "o",
                _ => return None,
            };
            Some(value.to_owned())
        };
        let converted = convert(VARIABLES, &environment).unwrap();
        for part in [
            "hostname: web1\n",
            "bucket_width: 5s\n",
            "tags: [dc:fra]\n",
            "udp: ['*:9125']\n",
            "url: http://influx:8086\n",
            "organization: o\n",
        ] {
            assert!(converted.yaml.contains(part), "{part}:\n{}", converted.yaml);
        }
        let lines: Vec<usize> = converted.left.iter().map(|left| left.line).collect();
        assert_eq!(lines, [8], "only the other input: {:?}", converted.left);
    }

    #[test]
    fn variables_without_a_value_are_reported_by_name_and_not_copied() {
        let converted = convert(VARIABLES, &|_| None).unwrap();
        let settings: Vec<&str> = converted
            .yaml
            .lines()
            .filter(|line| !line.starts_with('#'))
            .collect();
        let settings = settings.join("\n");
        let reported = |name: &str| {
            converted
                .left
                .iter()
                .any(|left| left.message.contains(&format!("{name} is not set here")))
        };
        for name in ["HOST", "EVERY", "DC", "PORT", "INFLUX", "ORG"] {
            assert!(reported(name), "{name}: {:?}", converted.left);
            let is_copied = [format!("${name}"), format!("${{{name}}}")]
                .iter()
                .any(|text| settings.contains(text));
            assert!(!is_copied, "{name}: {settings}");
        }
        assert!(!reported("NOBODY"));
    }

    #[test]
    fn a_protocol_with_a_family_is_taken_at_its_word() {
        for (protocol, expected) in [
            ("udp", "udp: ['*:1']"),
            ("udp4", "udp: [0.0.0.0:1]"),
            ("udp6", "udp: ['[::]:1']"),
            ("tcp4", "tcp: [0.0.0.0:1]"),
            ("tcp6", "tcp: ['[::]:1']"),
        ] {
            let text =
                format!("[[inputs.statsd]]\n  protocol = \"{protocol}\"\n  service_address = \":1\"\n");
            let converted = convert(&text, &|_| None).unwrap();
            assert!(
                converted.yaml.contains(&format!("{expected}\n")),
                "{protocol}: {}",
                converted.yaml
            );
        }
    }
}
