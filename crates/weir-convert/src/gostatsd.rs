//! The configuration of gostatsd, in TOML or YAML.

use weir_config::node::{Key, Node};

use super::draft::Draft;
use super::within::Sought;
use super::{
    API_KEY, ConvertError, Converted, Notes, Unconverted, address, did_you_mean, finish, list, map, scalar,
    slipped, toml, top_level, without_host,
};

mod keys;

use keys::{
    AGGREGATES, CHANGES_DATA, DATADOG, FILTER, GRAPHITE, INFLUXDB, KNOWN, NOT_NEEDED, SUB_METRICS, TABLES,
    TIMERS,
};

/// Converts the text of a configuration.
pub fn convert(text: &str) -> Result<Converted, ConvertError> {
    // A TOML file is not a YAML mapping, and a YAML file is not valid TOML.
    let parse = |text: &str| top_level(text).or_else(|_| toml::parse(text));
    let is_known = |(key, _): &(Key, Node)| {
        let name = key.text.as_str();
        KNOWN.contains(&name) || TABLES.contains(&name) || reason(name).is_some()
    };
    let sought = Sought {
        name: "gostatsd",
        parse: &parse,
        is_own: &|entries| entries.iter().any(is_known),
        in_values: false,
    };
    let entries = sought.in_document(parse(text)?)?;
    // As the other program does it: a timer has all of these.
    let mut converter = Converter {
        aggregates: AGGREGATES.map(|(_, ours)| ours).to_vec(),
        timers: TIMERS.to_vec(),
        has_upper_pct: true,
        percentiles: vec!["0.9".to_owned()],
        ..Converter::default()
    };
    converter.draft.set("bucket_width", "1s");
    converter.draft.set_list("udp", &[address(":8125")]);
    for (key, node) in &entries {
        converter.entry(key, node);
    }
    converter.sub_metrics(&entries);
    let aggregates = converter.aggregates.clone();
    converter.draft.set_list("histogram_aggregates", &aggregates);
    converter.backends(&entries);
    converter.filters(&entries);
    if converter.has_hosts && !converter.ignores_host {
        converter.skip(converter.host_line.unwrap_or(1), HOSTS);
    }
    let shared = if converter.has_upper_pct {
        &converter.percentiles[..]
    } else {
        &[]
    };
    converter.draft.set_list("histogram_percentiles", shared);
    Ok(finish(
        &converter.draft.text(),
        converter.left,
        "a gostatsd configuration",
    ))
}

#[derive(Default)]
struct Converter {
    draft: Draft,
    /// Series of each timer, in the names of outputs that share theirs, and in StatsD's.
    aggregates: Vec<&'static str>,
    timers: Vec<&'static str>,
    /// Percentiles are series.
    has_upper_pct: bool,
    /// As fractions.
    percentiles: Vec<String>,
    /// Messages say of which host they are, and nothing else does.
    ignores_host: bool,
    /// The line that says so or not, or that of a backend whose series have a host.
    host_line: Option<usize>,
    has_hosts: bool,
    left: Vec<Unconverted>,
}

impl Notes for Converter {
    fn left(&mut self) -> &mut Vec<Unconverted> {
        &mut self.left
    }
}

impl Converter {
    fn entry(&mut self, key: &Key, node: &Node) {
        let text = scalar(node).unwrap_or_default();
        match key.text.as_str() {
            "metrics-addr" if text.starts_with('/') => {
                self.draft.set_list("uds", &[text]);
                self.draft.own("udp", " []\n".to_owned());
            }
            "metrics-addr" => self.draft.set_list("udp", &[address(text)]),
            "namespace" | "hostname" => self.draft.set(&key.text, text),
            "default-tags" => self.draft.set_list("tags", &words(node)),
            "percent-threshold" => self.percentiles(key, node),
            "flush-interval" => self.duration("bucket_width", key, text),
            "expiry-interval" | "expiry-interval-counter" => self.duration("counter_expiry", key, text),
            "ignore-host" => {
                self.ignores_host = text == "true";
                self.host_line = Some(key.line);
            }
            "server-mode" if text == "standalone" => {}
            "server-mode" => {
                let message = "weir does not forward to another of its kind over HTTP; outputs.relay forwards messages as they arrive";
                self.skip(key.line, format!("server-mode: {message}"));
            }
            // `http-servers` names the parts of `http`.
            "backends" | "filters" | "filter" | "disabled-sub-metrics" | "http" => {}
            table if TABLES.contains(&table) => {}
            other => match reason(other) {
                Some(_) if means_the_same(other, text) => {}
                Some(why) if CHANGES_DATA.contains(&other) => self.skip(key.line, format!("{other}: {why}")),
                Some(why) => self.skip_idle(key.line, format!("{other}: {why}")),
                None => {
                    let known = KNOWN.iter().chain(NOT_NEEDED.iter().map(|(name, _)| name));
                    let why = did_you_mean(other, known.copied()).unwrap_or("is not known".to_owned());
                    self.skip(key.line, format!("{other}: {why}"));
                }
            },
        }
    }

    /// weir has no equivalent of metrics that gostatsd never expires or expires at once.
    fn duration(&mut self, ours: &str, key: &Key, text: &str) {
        if text.starts_with('-') {
            return self.draft.set(ours, "0");
        }
        match super::statsd_exporter::go_seconds(text) {
            Some(seconds) if ours == "counter_expiry" && seconds == 0.0 => self.draft.set(ours, "365d"),
            Some(seconds) if seconds >= 1.0 && seconds.fract() == 0.0 => {
                self.draft.set(ours, &format!("{seconds}s"))
            }
            Some(_) => self.skip(
                key.line,
                format!("{}: {text}: must be whole seconds, at least one", key.text),
            ),
            None => self.skip(key.line, format!("{}: {text:?} is not a duration", key.text)),
        }
    }

    fn percentiles(&mut self, key: &Key, node: &Node) {
        let mut found = Vec::new();
        for word in words(node) {
            match word.parse::<f64>() {
                Ok(percent) if percent > 0.0 && percent <= 100.0 && percent.fract() == 0.0 => {
                    found.push((percent / 100.0).to_string());
                }
                _ => self.skip(
                    key.line,
                    format!("percent-threshold: {word}: percentiles are whole percents from 1 to 100"),
                ),
            }
        }
        self.percentiles = found;
    }

    /// `disabled-sub-metrics`: the series of timers that are switched off.
    fn sub_metrics(&mut self, entries: &[(Key, Node)]) {
        let table = entries.iter().find(|(key, _)| key.text == "disabled-sub-metrics");
        for (key, value) in table.map_or(&[][..], |(_, node)| map(node)) {
            let name = match key.text.as_str() {
                "stddev" => "std".to_owned(),
                "count-per-second" => "count_ps".to_owned(),
                other => other.replace('-', "_"),
            };
            if !TIMERS.contains(&name.as_str()) && name != "lower_pct" {
                let why = did_you_mean(&key.text, SUB_METRICS.iter().copied());
                let why = why.unwrap_or("is not known".to_owned());
                self.skip(key.line, format!("disabled-sub-metrics.{}: {why}", key.text));
            } else if scalar(value) == Some("true") {
                self.timers.retain(|timer| *timer != name);
                let ours = AGGREGATES.iter().find(|(theirs, _)| *theirs == name);
                self.aggregates
                    .retain(|aggregate| ours.is_none_or(|(_, ours)| aggregate != ours));
                self.has_upper_pct &= name != "upper_pct";
            }
        }
    }

    /// Each with its table, which it does without where it has none.
    fn backends(&mut self, entries: &[(Key, Node)]) {
        let named = entries.iter().find(|(key, _)| key.text == "backends");
        let (line, backends) = match named {
            Some((key, node)) => (key.line, words(node)),
            None => (0, vec!["graphite".to_owned()]),
        };
        for backend in backends {
            let table = entries.iter().find(|(key, _)| key.text == backend);
            let options = table.map_or(&[][..], |(_, node)| map(node));
            let mode = options.iter().find(|(key, _)| key.text == "mode");
            let has_tags = mode.is_none_or(|(_, node)| scalar(node) == Some("tags"));
            if ["datadog", "influxdb"].contains(&&*backend) || backend == "graphite" && has_tags {
                self.has_hosts = true;
                self.host_line = self.host_line.or(table.map(|(key, _)| key.line));
            }
            match backend.as_str() {
                "graphite" => {
                    if let Some((key, _)) = table {
                        self.skip(key.line, GAUGES);
                    }
                    self.graphite(options);
                }
                "datadog" => self.datadog(options),
                "statsdaemon" => self.statsdaemon(options),
                "influxdb" => self.influxdb(table.map_or(line, |(key, _)| key.line), options),
                "null" => {}
                "stdout" => self.draft.output("stdout", "enabled", " true\n".to_owned()),
                "otlp" => self.skip(
                    line,
                    "backends: otlp: outputs.otlp is the output; its `url` is to be set",
                ),
                "promremotewriter" => self.skip(
                    line,
                    "backends: promremotewriter: outputs.remote_write is the output; its `url` is to be set",
                ),
                other => self.skip(line, format!("backends: {other}: weir has no such output")),
            }
        }
    }

    fn graphite(&mut self, options: &[(Key, Node)]) {
        // gostatsd's defaults.
        let (mut address, mut prefix) = ("localhost:2003", "stats");
        let mut kinds = [
            ("counter", "counters"),
            ("timer", "timers"),
            ("gauge", "gauges"),
            ("set", "sets"),
        ];
        let mode = options.iter().find(|(key, _)| key.text == "mode");
        let is_legacy = mode.and_then(|(_, node)| scalar(node)) == Some("legacy");
        for (key, value) in options {
            let text = scalar(value).unwrap_or_default();
            match key.text.as_str() {
                "address" => address = text,
                // There the namespaces are fixed.
                other if is_legacy && (other == "global_prefix" || other.starts_with("prefix_")) => {}
                "mode" if text == "tags" => {}
                "mode" => {
                    self.draft.set_output("graphite", "tags", "none");
                    self.skip(key.line, format!("graphite.mode: {text}: gostatsd writes series that differ in tags alone to one path, of which carbon keeps the last; here all but one get a suffix. A rule with `include_tags: []` makes one series of them"));
                }
                "global_prefix" => prefix = text.trim_matches('.'),
                "write_timeout" => self.draft.set_output("graphite", "delivery.timeout", text),
                "dial_timeout" => {}
                other => {
                    let kind = other.strip_prefix("prefix_");
                    match kinds.iter_mut().find(|(name, _)| kind == Some(*name)) {
                        Some((_, own)) => *own = text.trim_matches('.'),
                        None if text.is_empty() => {}
                        None if other == "global_suffix" => self.skip(
                            key.line,
                            "graphite.global_suffix: names have prefixes and no suffix",
                        ),
                        None => self.unknown("graphite", key, GRAPHITE, "weir has no such setting"),
                    }
                }
            }
        }
        self.draft
            .set_output("graphite", "address", &format!("tcp://{address}"));
        self.draft.set_output("graphite", "prefix", prefix);
        self.draft
            .output("graphite", "kind_prefixes", kind_prefixes(kinds));
        self.draft.set_output("graphite", "characters", "statsd");
        let counters = if is_legacy {
            ["legacy_count", "legacy_rate"]
        } else {
            ["count", "rate"]
        };
        self.draft.set_output_list("graphite", "counters", &counters);
        self.draft
            .set_output_list("graphite", "percentiles", &self.percentiles);
        let timers = self.timers.clone();
        self.draft.set_output_list("graphite", "timers", &timers);
        if self.ignores_host {
            self.draft.set_output("graphite", "host", "named");
        }
    }

    fn influxdb(&mut self, line: usize, options: &[(Key, Node)]) {
        for (key, value) in options {
            let text = scalar(value).unwrap_or_default();
            match key.text.as_str() {
                "api-endpoint" => self.draft.set_output("influx", "url", text),
                "database" => self.draft.set_output("influx", "database", text),
                "retention-policy" => self.draft.set_output("influx", "retention_policy", text),
                "bucket" => self.draft.set_output("influx", "bucket", text),
                "org" => self.draft.set_output("influx", "organization", text),
                "metrics-per-batch" => self.draft.set_output("influx", "points_per_payload_max", text),
                "max-requests" => self.draft.set_output("influx", "delivery.concurrency", text),
                "compress-payload" if text == "false" => {
                    self.draft.set_output("influx", "compression", "none")
                }
                "api-version" | "compress-payload" => {}
                "credentials" => self.skip(
                    key.line,
                    "influxdb.credentials: is a secret, which is not copied; set outputs.influx.token_file",
                ),
                _ => self.unknown(
                    "influxdb",
                    key,
                    INFLUXDB,
                    "weir has no such setting; outputs.influx.delivery has those of delivery",
                ),
            }
        }
        let why = "influxdb: the fields of outputs.influx are value, or count, lower, upper, mean, sum and percentiles; gostatsd's are different";
        self.skip(line, why);
        self.draft
            .set_output_list("influx", "percentiles", &self.percentiles);
    }

    fn datadog(&mut self, options: &[(Key, Node)]) {
        without_host(&mut self.draft);
        for (key, value) in options {
            let text = scalar(value).unwrap_or_default();
            match key.text.as_str() {
                "api_key" => self.skip(key.line, format!("datadog.api_key: {API_KEY}")),
                "api_endpoint" => self.draft.set_output("datadog", "url", text),
                "max_requests" => self.draft.set_output("datadog", "delivery.concurrency", text),
                "metrics_per_batch" => self.draft.set_output("datadog", "points_per_payload_max", text),
                "compress_payload" if text == "false" => {
                    self.draft.set_output("datadog", "compression", "none")
                }
                "compress_payload" => {}
                "network" if text == "tcp" => {}
                _ => self.unknown(
                    "datadog",
                    key,
                    DATADOG,
                    "weir has no such setting; outputs.datadog.delivery has those of its requests",
                ),
            }
        }
    }

    /// Notes a setting of a table that has no counterpart, or is mistyped.
    fn unknown(&mut self, table: &str, key: &Key, known: &[&str], otherwise: &str) {
        let hint = slipped(&key.text, known.iter().copied());
        let why = hint.as_deref().unwrap_or(otherwise);
        self.skip(key.line, format!("{table}.{}: {why}", key.text));
    }

    fn statsdaemon(&mut self, options: &[(Key, Node)]) {
        for (key, value) in options {
            let text = scalar(value).unwrap_or_default();
            match key.text.as_str() {
                "address" => {
                    self.draft
                        .set_output_list("relay", "targets", &[format!("udp://{text}")]);
                    self.skip(
                        key.line,
                        "statsdaemon.address: outputs.relay forwards messages as they arrive, not their sums",
                    );
                }
                "disable_tags" | "tcp_transport" if text == "false" => {}
                _ => self.unknown("statsdaemon", key, &["address"], "weir has no such setting"),
            }
        }
    }

    /// `filters` names filters, each in a table of its own below `filter`.
    fn filters(&mut self, entries: &[(Key, Node)]) {
        let entry = |name: &str| entries.iter().find(|(key, _)| key.text == name);
        let named = entry("filters").map_or_else(Vec::new, |(_, node)| words(node));
        let tables = entry("filter").map_or(&[][..], |(_, node)| map(node));
        let mut rules = String::new();
        for name in named {
            let Some((key, node)) = tables.iter().find(|(key, _)| key.text == name) else {
                let line = entry("filters").map_or(0, |(key, _)| key.line);
                self.skip(line, format!("filters: {name}: there is no table filter.{name}"));
                continue;
            };
            self.filter(key, node, &mut rules);
        }
        if !rules.is_empty() {
            self.draft.own("rules", format!("\n{rules}"));
        }
    }

    /// Converts one filter into a rule per pattern.
    fn filter(&mut self, key: &Key, node: &Node, rules: &mut String) {
        let table = format!("filter.{}", key.text);
        for (option, _) in map(node) {
            if !FILTER.contains(&option.text.as_str()) {
                self.unknown(&table, option, FILTER, "is not known");
            }
        }
        let field = |name: &str| map(node).iter().find(|(key, _)| key.text == name);
        let is_on = |name: &str| field(name).and_then(|(_, node)| scalar(node)) == Some("true");
        for name in ["exclude-metrics", "match-tags"] {
            if let Some((option, _)) = field(name) {
                let message = format!(
                    "filter.{}.{name}: rules choose by names that match; the filter is left out",
                    key.text
                );
                return self.skip(option.line, message);
            }
        }
        let mut effect = String::new();
        if is_on("drop-metric") {
            effect.push_str("    drop: true\n");
        } else {
            if is_on("drop-host") {
                effect.push_str("    host: none\n");
            }
            let mut keys = Vec::new();
            for tag in field("drop-tags").map_or_else(Vec::new, |(_, node)| words(node)) {
                match tag.strip_suffix(":*").filter(|tag| !tag.contains(['*', '!'])) {
                    Some(tag) => keys.push(tag.to_owned()),
                    None => self.skip(
                        key.line,
                        format!(
                            "filter.{}.drop-tags: {tag}: rules remove tags by their key, as in `key:*`",
                            key.text
                        ),
                    ),
                }
            }
            if !keys.is_empty() {
                effect.push_str(&format!("    exclude_tags: [{}]\n", keys.join(", ")));
            }
        }
        if effect.is_empty() {
            return;
        }
        let patterns = field("match-metrics").map_or_else(|| vec![String::new()], |(_, node)| words(node));
        for (at, pattern) in patterns.iter().enumerate() {
            let name = if at == 0 {
                key.text.clone()
            } else {
                format!("{}-{}", key.text, at + 1)
            };
            match matching(pattern) {
                Some((match_type, text)) => {
                    rules.push_str(&format!("  - name: {name}\n"));
                    if !text.is_empty() {
                        rules.push_str(&format!(
                            "    match: {}\n    match_type: {match_type}\n",
                            weir_config::show_text(&text)
                        ));
                    }
                    rules.push_str(&effect);
                }
                None => self.skip(
                    key.line,
                    format!(
                        "filter.{}.match-metrics: {pattern}: rules choose by names that match",
                        key.text
                    ),
                ),
            }
        }
    }
}

/// The kinds of gostatsd with their prefixes; a timer is any of three types.
fn kind_prefixes(kinds: [(&str, &str); 4]) -> String {
    let of = |kind: &str| match kind {
        "timer" => &["histogram", "timing", "distribution"][..],
        "counter" => &["counter"],
        "gauge" => &["gauge"],
        _ => &["set"],
    };
    let named = kinds.iter().filter(|(_, prefix)| !prefix.is_empty());
    let all = named.flat_map(|(kind, prefix)| of(kind).iter().map(move |kind| (kind, prefix)));
    let shown: Vec<String> = all
        .map(|(kind, prefix)| format!("{kind}: {}", weir_config::show_text(prefix)))
        .collect();
    format!(" {{{}}}\n", shown.join(", "))
}

/// The equivalent condition on names in a rule.
fn matching(pattern: &str) -> Option<(&'static str, String)> {
    if pattern.starts_with('!') {
        return None;
    }
    if let Some(regex) = pattern.strip_prefix("regex:") {
        return Some(("regex", super::statsd_exporter::unbound(regex)));
    }
    match pattern.strip_suffix('*') {
        Some(prefix) => Some(("prefix", prefix.to_owned())),
        None => Some(("exact", pattern.to_owned())),
    }
}

fn reason(key: &str) -> Option<&'static str> {
    let is_about = |name: &str| match name.strip_suffix('*') {
        Some(start) => key.starts_with(start),
        None => key == name,
    };
    let found = NOT_NEEDED.iter().find(|(name, _)| is_about(name));
    found.map(|(_, why)| *why)
}

/// A list, or one text whose words are separated by spaces.
fn words(node: &Node) -> Vec<String> {
    match scalar(node) {
        Some(text) => text.split_whitespace().map(str::to_owned).collect(),
        None => list(node).iter().filter_map(scalar).map(str::to_owned).collect(),
    }
}

/// Whether a key that weir needs nothing for has the value that it would mean here anyway.
fn means_the_same(key: &str, value: &str) -> bool {
    const ALWAYS_ON: &[&str] = &[
        "flush-aligned",
        "disable-internal-events",
        "fast-fail-on-non-retryable-errors",
    ];
    match value {
        "true" => ALWAYS_ON.contains(&key),
        "false" => !ALWAYS_ON.contains(&key),
        "" => key == "cloud-provider",
        _ => false,
    }
}

/// Said unless `ignore-host` is set, of series with a host.
const HOSTS: &str = "ignore-host: gostatsd gives a series the address of its sender as host, weir its own `hostname`; a message names another by the tag host";

/// Said of a table of Graphite.
const GAUGES: &str = "graphite: of several values of a gauge in packets that it reads together, gostatsd keeps the first; here the last counts";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_backends_and_filters() {
        let text = "metrics-addr=':9125'\nflush-interval='10s'\npercent-threshold=[90, 99]\ndefault-tags='env:prod team:x'\nbackends=['graphite', 'stdout']\n\
                    namespace='shop'\nexpiry-interval='2m'\nmax-readers=3\nfilters='noisy drop not'\n\n[graphite]\naddress='carbon:2003'\nmode='basic'\nprefix_timer='t'\n\n\
                    [filter.noisy]\ndrop-tags='request_path:*'\n\n[filter.drop]\nmatch-metrics='noisy.* regex:^x'\ndrop-metric=true\n\n[filter.not]\nmatch-tags='a'\ndrop-metric=true\n";
        let converted = convert(text).unwrap();
        let lines: Vec<usize> = converted.left.iter().map(|left| left.line).collect();
        assert_eq!(lines, [8, 11, 13, 24], "{:?}", converted.left);
        assert_eq!(converted.left[1].message, GAUGES);
        assert!(converted.left[3].message.starts_with("filter.not.match-tags: "));
        for part in [
            "udp: ['*:9125']\n",
            "bucket_width: 10s\n",
            "histogram_percentiles: [0.9, 0.99]\n",
            "tags: [env:prod, team:x]\n",
            "namespace: shop\n",
            "counter_expiry: 120s\n",
            "address: tcp://carbon:2003\n",
            "tags: none\n",
            "prefix: stats\n",
            "kind_prefixes: {counter: counters, histogram: t, timing: t, distribution: t, gauge: gauges, set: sets}\n",
            "    percentiles: [0.9, 0.99]\n",
            "stdout:\n    enabled: true\n",
            "  - name: noisy\n    exclude_tags: [request_path]\n",
            "  - name: drop\n    match: noisy.\n    match_type: prefix\n    drop: true\n",
            "  - name: drop-2\n    match: x.*\n    match_type: regex\n    drop: true\n",
        ] {
            assert!(converted.yaml.contains(part), "{part}:\n{}", converted.yaml);
        }
    }

    #[test]
    fn series_of_timers_that_are_switched_off_do_not_come_back() {
        let text = "percent-threshold=[90]\n[disabled-sub-metrics]\nlower=true\nupper-pct=true\nmedian=true\ncount=false\nstddev=true\nsum-squares-pct=true\nmeen=true\n";
        let converted = convert(text).unwrap();
        for part in [
            "histogram_aggregates: [max, avg, sum, count]\n",
            "histogram_percentiles: []\n",
            "    percentiles: [0.9]\n",
            "    timers: [count, count_ps, upper, mean, sum, sum_squares, count_pct, mean_pct, sum_pct]\n",
        ] {
            assert!(converted.yaml.contains(part), "{part}:\n{}", converted.yaml);
        }
        let messages: Vec<&str> = converted.left.iter().map(|left| left.message.as_str()).collect();
        assert_eq!(
            messages,
            [
                HOSTS,
                "disabled-sub-metrics.meen: is not known; did you mean mean?"
            ]
        );
    }

    #[test]
    fn flags_of_the_cloud_are_known_and_those_that_change_nothing_are_not_listed() {
        let text = "label-tag-regex='x'\nannotation-tag-regex='x'\nkubeconfig-path='/x'\nkube-api-qps=1\nnode-name='n'\nwatch-cluster=true\nuser-agent='x'\njson=true\n\
                    heartbeat-enabled=false\nflush-aligned=true\n";
        let converted = convert(text).unwrap();
        assert_eq!(converted.left.len(), 9, "{:?}", converted.left);
        assert!(
            converted.left[0].message.contains("pod_labels_as_tags"),
            "{:?}",
            converted.left
        );
        let unknown: Vec<_> = converted
            .left
            .iter()
            .filter(|left| left.message.contains("not known"))
            .collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    #[test]
    fn tables_of_http_servers_are_listed_by_the_key_that_names_them() {
        let toml = "http-servers='receiver admin'\n[http.receiver]\naddress='127.0.0.1:8080'\nenable-ingestion=true\n[http.admin]\naddress='127.0.0.1:8181'\nenable-prof=true\n";
        let yaml = "http-servers: receiver admin\nhttp:\n  receiver:\n    address: 127.0.0.1:8080\n  admin:\n    enable-prof: true\n";
        for text in [toml, yaml] {
            let converted = convert(text).unwrap();
            let left: Vec<_> = converted
                .left
                .iter()
                .map(|left| (left.line, &left.message[..14]))
                .collect();
            assert_eq!(left, [(1, "http-servers: "), (1, &HOSTS[..14])], "{text}");
            assert!(converted.yaml.contains("udp: ['*:8125']\n"), "{}", converted.yaml);
        }
    }

    #[test]
    fn slips_in_tables_are_told() {
        let text = "backends='graphite influxdb datadog statsdaemon'\nfilters='x'\n[graphite]\nadress='a:1'\nglobal_suffix='s'\n[influxdb]\nbukcet='b'\n[datadog]\napi_keys='k'\nother='x'\n\
                    [statsdaemon]\naddres='a:1'\n[filter.x]\nmatch-metric='a'\ndrop-tags='b:*'\nwhat='c'\n";
        let converted = convert(text).unwrap();
        let told: Vec<(usize, &str)> = converted
            .left
            .iter()
            .map(|left| (left.line, left.message.as_str()))
            .collect();
        for expected in [
            (4, "graphite.adress: is not known; did you mean address?"),
            (5, "graphite.global_suffix: names have prefixes and no suffix"),
            (7, "influxdb.bukcet: is not known; did you mean bucket?"),
            (9, "datadog.api_keys: is not known; did you mean api_key?"),
            (
                10,
                "datadog.other: weir has no such setting; outputs.datadog.delivery has those of its requests",
            ),
            (12, "statsdaemon.addres: is not known; did you mean address?"),
            (
                14,
                "filter.x.match-metric: is not known; did you mean match-metrics?",
            ),
            (16, "filter.x.what: is not known"),
        ] {
            assert!(told.contains(&expected), "{expected:?} is not in {told:#?}");
        }
    }

    #[test]
    fn defaults_in_tables_are_not_told_and_datadog_lists_no_host() {
        let text = "backends='graphite datadog statsdaemon'\nignore-host=true\n[graphite]\naddress='a:1'\nglobal_suffix=''\n[datadog]\napi_key='k'\nnetwork='tcp'\n\
                    [statsdaemon]\naddress='b:2'\ndisable_tags=false\ntcp_transport=false\n";
        let converted = convert(text).unwrap();
        let lines: Vec<usize> = converted.left.iter().map(|left| left.line).collect();
        assert_eq!(lines, [3, 7, 10], "{:?}", converted.left);
        for part in ["heartbeat: false", "host_metadata: false"] {
            assert!(converted.yaml.contains(part), "{part}: {}", converted.yaml);
        }
    }

    #[test]
    fn the_host_of_series_is_told_where_they_have_one() {
        let told = |text: &str| {
            let left = convert(text).unwrap().left;
            let told = left.into_iter().find(|left| left.message == HOSTS);
            told.map(|left| left.line)
        };
        assert_eq!(told("flush-interval='2s'\n[graphite]\nmode='tags'\n"), Some(2));
        assert_eq!(told("ignore-host=false\nbackends='datadog'\n"), Some(1));
        assert_eq!(told("ignore-host=true\n"), None);
        assert_eq!(told("ignore-host=false\n[graphite]\nmode='basic'\n"), None);
        assert_eq!(told("backends='null'\n"), None);
    }

    #[test]
    fn the_mode_legacy_has_its_own_namespaces() {
        let text = "[graphite]\nmode='legacy'\nglobal_prefix='other'\nprefix_timer='t'\n";
        let converted = convert(text).unwrap();
        for part in [
            "    prefix: stats\n",
            "counter: counters, histogram: timers, timing: timers",
            "counters: [legacy_count, legacy_rate]\n",
        ] {
            assert!(converted.yaml.contains(part), "{part}:\n{}", converted.yaml);
        }
        let told: Vec<&str> = converted.left.iter().map(|left| left.message.as_str()).collect();
        assert!(
            told.len() == 2
                && told[0] == GAUGES
                && told[1].starts_with("graphite.mode: legacy: gostatsd writes"),
            "{told:?}"
        );
    }

    #[test]
    fn yaml_is_accepted_too_and_other_files_are_refused() {
        let converted = convert("metrics-addr: /run/statsd.sock\nwhat: 1\n").unwrap();
        assert!(
            converted.yaml.contains("uds: [/run/statsd.sock]\n"),
            "{}",
            converted.yaml
        );
        assert!(converted.left[1].message.contains("what: is not known"));
        // Without these settings gostatsd listens on all addresses, and writes to Graphite on its own machine.
        let converted = convert("flush-interval: 2s\n").unwrap();
        for part in [
            "udp: ['*:8125']\n",
            "address: tcp://localhost:2003\n",
            "percentiles: [0.9]\n",
        ] {
            assert!(converted.yaml.contains(part), "{part}:\n{}", converted.yaml);
        }
        assert!(convert("a = \n").is_err());
    }
}
