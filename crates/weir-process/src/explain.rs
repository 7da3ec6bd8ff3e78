//! Explains one message: the same parser, the same decisions about its origin, and the same rules as for real messages, with a recorder.

use std::borrow::Cow;
use std::sync::Arc;

use weir_aggregate::{AggregatorSettings, Batch, Expansion};
use weir_context::{ContextLimits, HashSecret, NameReading, OriginKey, Recorder, Resolved, Rules, Step};
use weir_counters::Counter as _;
use weir_ingest::{
    Ingest, IngestSettings, ListenerSettings, Received, SampleDrop, is_plausible, metric_fault, point_fault,
};
use weir_origin::{OriginExplanation, Origins};
use weir_output::settings::OutputConfig;
use weir_protocol::{
    Kind, Message, Metric, OriginFields, SampleList, Tags, Values, encode_metric, locate, parse_line,
    unknown_sections,
};

use weir_admin::tap::{TapListener, unix_seconds};
use weir_status::bad_bytes::BadBytes;
use weir_status::explain::{
    ExplainError, ExplainRequest, ExplainedContext, ExplainedOutput, ExplainedStep, Explanation,
};

/// The listener that an explanation is about.
pub struct ExplainedListener {
    pub listener: TapListener,
    /// Addresses of those that read messages in another way.
    others: Vec<String>,
}

impl ExplainedListener {
    /// The listener that was asked for, or the first that could have such a sender.
    pub fn choose(listeners: &[TapListener], request: &ExplainRequest) -> Result<Self, ExplainError> {
        let addresses = |listeners: &[&TapListener]| {
            let addresses: Vec<&str> = listeners
                .iter()
                .map(|listener| listener.address.as_str())
                .collect();
            addresses.join(", ")
        };
        let all: Vec<&TapListener> = listeners.iter().collect();
        let found = match &request.listener {
            None => first_for(listeners, request.pid.is_some()),
            Some(name) => {
                let named: Vec<&TapListener> = listeners
                    .iter()
                    .filter(|listener| is_named(listener, name))
                    .collect();
                if named.iter().any(|other| !reads_alike(other, named[0])) {
                    let (name, allowed) = (name.clone(), addresses(&named));
                    return Err(ExplainError::ReadDifferently { name, allowed });
                }
                let unknown = || ExplainError::NoSuchListener {
                    name: name.clone(),
                    allowed: addresses(&all),
                };
                Some(*named.first().ok_or_else(unknown)?)
            }
        };
        let listener = found.ok_or(ExplainError::ReceivesNone)?;
        let others = listeners.iter().filter(|other| !reads_alike(other, listener));
        Ok(ExplainedListener {
            others: others.map(|other| other.address.clone()).collect(),
            listener: listener.clone(),
        })
    }
}

/// The first listener; the sending process is known on Unix sockets alone.
fn first_for(listeners: &[TapListener], has_process: bool) -> Option<&TapListener> {
    let is_unix = |listener: &&TapListener| listener.address.starts_with("unix");
    let of_process = has_process.then(|| listeners.iter().find(is_unix)).flatten();
    of_process.or(listeners.first())
}

/// Whether a listener has this address, or this transport as `per_listener` calls it.
fn is_named(listener: &TapListener, name: &str) -> bool {
    let transport = match listener.address.split("://").next() {
        Some("unixgram") => "uds",
        Some("unix") => "uds_stream",
        Some("http+unix") => "http_uds",
        Some(scheme) => scheme,
        None => "",
    };
    listener.address == name || transport == name
}

/// Whether two listeners read every message alike.
fn reads_alike(one: &TapListener, other: &TapListener) -> bool {
    let of = |listener: &TapListener| {
        let reading = &listener.reading;
        (reading.gauge_deltas, reading.sample_lists, reading.names)
    };
    of(one) == of(other)
}

/// Explains one line.
pub fn explain(
    request: &ExplainRequest,
    about: &ExplainedListener,
    rules: &Rules,
    origins: Option<&Origins>,
) -> Explanation {
    let line = request.line.trim_end_matches(['\n', '\r']);
    let reading = &about.listener.reading;
    let mut explanation = Explanation {
        line: line.to_owned(),
        listener: about.listener.address.clone(),
        others: about.others.clone(),
        ..Explanation::default()
    };
    let first = first_sample(line, reading);
    let line = first.as_deref().unwrap_or(line);
    let message = match parse_line(line.as_bytes(), &reading.parse) {
        Ok(message) => message,
        Err(class) => {
            explanation.rejected = Some(class.as_str().to_owned());
            explanation.meaning = class.info().meaning().to_owned();
            explanation.bad = Some(BadBytes::of(
                line.as_bytes(),
                locate(line.as_bytes(), class, &reading.parse),
            ));
            return explanation;
        }
    };
    let (fields, tags) = match &message {
        Message::Metric(metric) => (metric.origin, metric.tags),
        Message::Event(event) => (event.origin, event.tags),
        Message::Check(check) => (check.origin, check.tags),
    };
    let found = match origins {
        None => OriginExplanation::default(),
        Some(origins) => {
            let key = OriginKey::of_message(fields, tags.iter());
            match origins.explain(&key, request.pid) {
                Some(found) => found,
                None => {
                    explanation.note = Some("the sender could not be determined in time".to_owned());
                    OriginExplanation::default()
                }
            }
        }
    };
    // Most agents need no senders; only who asks for one learns that there is none.
    if origins.is_none() && (request.pid.is_some() || has_origin_sections(line)) {
        explanation.note = Some(
            "weir does not look up senders: origin_detection, origin_client and every source of tags are off"
                .to_owned(),
        );
    } else if origins.is_some() && !reading.parse.origin_client && has_origin_sections(line) {
        explanation.note = Some("origin_client is off, so c:, e: and card: are not read".to_owned());
    }
    if found.access.as_ref().is_none_or(|access| access.allowed) {
        follow(&message, tags, &found, (rules, reading.names), &mut explanation);
        if reading.gauge_deltas && is_signed_gauge(&message) {
            explanation.steps.insert(0, signed_gauge());
        }
    }
    follow_time(&message, &about.listener, &mut explanation);
    let unknown: Vec<String> = match &message {
        Message::Metric(_) => unknown_sections(line.as_bytes())
            .map(|section| format!("|{}", String::from_utf8_lossy(section)))
            .collect(),
        _ => Vec::new(),
    };
    if !unknown.is_empty() {
        let step = ExplainedStep {
            stage: "unknown_sections".to_owned(),
            why: format!("ignored: {}; a bar ends a tag", unknown.concat()),
            ..ExplainedStep::default()
        };
        explanation.steps.insert(0, step);
    }
    if let Some(first) = &first {
        let why = format!("the listener reads each sample as a message; this is about the first, {first}");
        let step = ExplainedStep {
            stage: "sample_lists".to_owned(),
            why,
            ..ExplainedStep::default()
        };
        explanation.steps.insert(0, step);
    }
    explanation.origin = found;
    explanation
}

/// The message of the first sample, if the listener takes the line for several.
pub fn first_sample(line: &str, reading: &ListenerSettings) -> Option<String> {
    let list = SampleList::of(line.as_bytes())?;
    let is_list = reading.sample_lists && parse_line(line.as_bytes(), &reading.parse).is_err();
    is_list.then(|| String::from_utf8(list.lines().next()?).ok())?
}

/// The reason if a rule drops a message of this sender.
pub fn dropped(
    message: &Message<'_>,
    sender: &OriginExplanation,
    names: NameReading,
    rules: &Rules,
) -> Option<String> {
    let tags = match message {
        Message::Metric(metric) => metric.tags,
        Message::Event(event) => event.tags,
        Message::Check(check) => check.tags,
    };
    let mut explanation = Explanation::default();
    follow(message, tags, sender, (rules, names), &mut explanation);
    if explanation.context.is_some() {
        return None;
    }
    let step = explanation.steps.into_iter().rfind(|step| step.dropped);
    Some(step.map_or_else(
        || "a rule".to_owned(),
        |step| format!("{}: {}", step.stage, step.why),
    ))
}

/// Where a point of columns goes by its timestamp.
fn place(timestamp: i64, now: i64, merge_within: Option<u32>) -> ExplainedStep {
    let why = match (merge_within, now - timestamp) {
        (None, _) => "it keeps its timestamp: merge is false for the listener".to_owned(),
        (Some(within), age) if age.unsigned_abs() <= u64::from(within) => {
            format!("it is added to the open bucket: it is {age} s old, and http_merge_within is {within} s")
        }
        (Some(within), age) => format!(
            "it keeps its timestamp, unless the open bucket has it: it is {age} s old, and http_merge_within is {within} s"
        ),
    };
    ExplainedStep {
        stage: "timestamp".to_owned(),
        why: match point_fault(timestamp, true, now) {
            Some(reason) => format!("it is dropped: {}", reason.as_str()),
            None => why,
        },
        ..ExplainedStep::default()
    }
}

/// The fate of a message by its own time.
fn follow_time(message: &Message<'_>, listener: &TapListener, explanation: &mut Explanation) {
    let now = unix_seconds();
    match message {
        Message::Metric(metric) if listener.address.starts_with("http") => {
            if let (Some(_), Some(timestamp)) = (&explanation.context, metric.timestamp) {
                let step = place(timestamp, now, listener.reading.merge_within);
                explanation.steps.push(step);
            }
        }
        Message::Metric(metric) => fate_of_samples(metric, now, explanation),
        Message::Event(event) => explanation
            .steps
            .extend(event.timestamp.and_then(|at| own_time_of_text(at, now))),
        Message::Check(check) => explanation
            .steps
            .extend(check.timestamp.and_then(|at| own_time_of_text(at, now))),
    }
}

/// The fate of the samples of a message, besides the rules.
fn fate_of_samples(metric: &Metric<'_>, now: i64, explanation: &mut Explanation) {
    let fault = metric_fault(metric, now);
    let step = |stage: &str, why: String, dropped| ExplainedStep {
        stage: stage.to_owned(),
        why,
        dropped,
        ..ExplainedStep::default()
    };
    match (metric.timestamp, fault) {
        (_, Some(SampleDrop::NonFinite)) => {
            let why = "the values that are no finite numbers are dropped: non_finite";
            explanation.steps.push(step("values", why.to_owned(), false));
        }
        // Before the rules.
        (Some(_), Some(reason)) => {
            let why = reason.as_str().to_owned();
            explanation.steps = vec![step("timestamp", why, true)];
            explanation.context = None;
        }
        (Some(timestamp), None) if explanation.context.is_some() => {
            let age = match now - timestamp {
                age @ 0.. => format!("{age} s old"),
                ahead => format!("{} s ahead", -ahead),
            };
            let why =
                format!("it is {age}, in no bucket, and keeps its timestamp; some outputs do not take it");
            explanation.steps.push(step("timestamp", why, false));
        }
        _ => {}
    }
}

/// The reason why the timestamp of an event or a service check is not used.
fn own_time_of_text(timestamp: i64, now: i64) -> Option<ExplainedStep> {
    (timestamp != 0 && !is_plausible(timestamp, now)).then(|| ExplainedStep {
        stage: "timestamp".to_owned(),
        why: "it is ignored, because it is negative or more than a day ahead; the time of arrival is used"
            .to_owned(),
        ..ExplainedStep::default()
    })
}

fn is_signed_gauge(message: &Message<'_>) -> bool {
    let Message::Metric(metric) = message else {
        return false;
    };
    match metric.values {
        Values::Numbers(numbers) => {
            metric.kind == Kind::Gauge && numbers.iter_signed().any(|(_, signed)| signed)
        }
        Values::Member(_) => false,
    }
}

fn signed_gauge() -> ExplainedStep {
    ExplainedStep {
        stage: "gauge_deltas".to_owned(),
        why: "the listener adds a value with a sign to the gauge's last value".to_owned(),
        ..ExplainedStep::default()
    }
}

fn has_origin_sections(line: &str) -> bool {
    line.split('|').skip(2).any(|section| {
        ["c:", "e:", "card:"]
            .iter()
            .any(|prefix| section.starts_with(prefix))
    })
}

/// Applies the rules to the message's and the origin's tags.
fn follow(
    message: &Message<'_>,
    tags: Tags<'_>,
    found: &OriginExplanation,
    (rules, names): (&Rules, NameReading),
    explanation: &mut Explanation,
) {
    let all: Vec<&str> = tags.iter().chain(found.tags.iter().map(String::as_str)).collect();
    let mut resolved = Resolved::default();
    let (steps, context) = match message {
        Message::Metric(metric) => {
            let mut subject = rules.subject(metric.kind, metric.name, all.iter().copied());
            subject.tag_styles = names.tag_styles();
            let mut recorder = Recorder::new(metric.name, &all);
            let passes = rules.apply_traced(&mut subject, &mut resolved, &mut recorder);
            let context = ExplainedContext {
                name: subject.name.to_string(),
                message_type: metric.kind.as_str().to_owned(),
                host: host(subject.host.as_deref(), rules),
                tags: subject.tags.iter().map(ToString::to_string).collect(),
            };
            (recorder.steps(), passes.then_some(context))
        }
        Message::Event(_) | Message::Check(_) => {
            let (name, message_type, own_host) = match message {
                Message::Event(event) => (event.title, "event", event.host),
                Message::Check(check) => (check.name, "check", check.host),
                Message::Metric(_) => unreachable!("matched above"),
            };
            let mut recorder = Recorder::new("", &all);
            let mut tags: Vec<Cow<'_, str>> = all.iter().copied().map(Cow::Borrowed).collect();
            let tag_host = rules.apply_to_tags_traced(&mut tags, &mut recorder);
            let tag_host = Some(own_host.to_owned())
                .filter(|host| !host.is_empty())
                .or(tag_host);
            let context = ExplainedContext {
                name: name.to_owned(),
                message_type: message_type.to_owned(),
                host: host(tag_host.as_deref(), rules),
                tags: tags.iter().map(ToString::to_string).collect(),
            };
            (recorder.steps(), Some(context))
        }
    };
    explanation.steps = steps.into_iter().map(step).collect();
    explanation.context = context;
}

fn host(own: Option<&str>, rules: &Rules) -> String {
    own.unwrap_or(rules.hostname()).to_owned()
}

fn step(step: Step) -> ExplainedStep {
    ExplainedStep {
        stage: step.stage.to_owned(),
        why: step.why,
        renamed_to: step.renamed_to,
        added: step.added,
        removed: step.removed,
        dropped: step.dropped,
    }
}

// The bucket that one message alone would make, for a look at what outputs send of it.

/// The start of a full bucket in Unix time. Any time does.
const BUCKET: i64 = 1_700_000_000;

/// The batch of a bucket with this message, whose sender has these tags: the same parser, rules and aggregation as for real messages.
/// `None`: the message is no metric, or makes no series.
pub fn batch(line: &str, reading: &ListenerSettings, sender: &[String], rules: &Rules) -> Option<Batch> {
    let line = line.trim_end_matches(['\n', '\r']);
    let first = first_sample(line, reading);
    let Ok(Message::Metric(metric)) = parse_line(first.as_deref().unwrap_or(line).as_bytes(), &reading.parse)
    else {
        return None;
    };
    let tags: Vec<&str> = metric
        .tags
        .iter()
        .chain(sender.iter().map(String::as_str))
        .collect();
    let tags = tags.join(",");
    let known = Metric {
        tags: Tags::from_text(&tags),
        // Its tags are known; and a point with its own time would be in no bucket.
        origin: OriginFields::default(),
        timestamp: None,
        ..metric
    };
    let mut bytes = Vec::new();
    encode_metric(&known, &mut bytes);
    let hostname: Arc<str> = rules.hostname().into();
    let settings = IngestSettings {
        worker: 0,
        aggregator: AggregatorSettings {
            hostname,
            ..AggregatorSettings::default()
        },
        rules: rules.clone(),
        limits: ContextLimits::default(),
        secret: HashSecret::random(),
        listeners: vec![ListenerSettings {
            takes_columns: false,
            ..*reading
        }],
    };
    let mut ingest = Ingest::new(settings, BUCKET);
    ingest.packet(Received {
        bytes: &bytes,
        listener: 0,
        truncated: false,
        received: 1,
    });
    // Nothing was open before it, so it has to end.
    let _ = ingest.close_now();
    let mut found = None;
    while ingest.is_draining() {
        if let Some(batch) = ingest.drain(usize::MAX)
            && batch.series().next().is_some()
        {
            found = Some(batch);
        }
    }
    let mut found = found?;
    found.last = true;
    Some(found)
}

/// The series that each output makes of a bucket.
pub fn series<'o>(
    outputs: impl Iterator<Item = &'o OutputConfig>,
    bucket: &Batch,
    expansion: &Arc<Expansion>,
) -> Vec<ExplainedOutput> {
    let explained = outputs.filter_map(|output| {
        Some(ExplainedOutput {
            output: output.name.clone(),
            series: output.settings.preview(bucket, expansion)?,
        })
    });
    explained.collect()
}

#[cfg(test)]
mod output_tests {
    //! The series that each output makes of a message, in the words of its receiver.

    use weir_system::config;

    use super::*;
    use weir_agent::rules::Fixed;

    /// Every output that makes series. None of the receivers is there: a look needs none.
    const CONFIG: &str = "\
hostname: here
rules:
  - name: fewer
    match: login.*
    aggregates: [max, count]
    percentiles: []
  - name: noise
    match: noise.*
    drop: true
outputs:
  prometheus: {}
  stdout: {}
  file: {path: DIRECTORY/points}
  datadog: {url: 'http://127.0.0.1:9', api_key: 0123456789abcdef0123456789abcdef}
  otlp: {url: 'http://127.0.0.1:9'}
  sums: {type: otlp, url: 'http://127.0.0.1:9', temporality: cumulative}
  remote_write: {url: 'http://127.0.0.1:9/write'}
  graphite: {address: 'udp://127.0.0.1:9'}
  influx: {url: 'udp://127.0.0.1:9'}
  fleet:
    type: kafka
    directory: DIRECTORY/fleet
    rules:
      - {name: one for all, exclude_tags: [user]}
      - {name: none of these, match: debug.*, drop: true}
  lines: {type: relay, targets: ['udp://127.0.0.1:9']}
";

    /// A line per output and series. `None`: the message makes none anywhere.
    fn explained(message: &str) -> Option<Vec<String>> {
        let directory = tempfile::tempdir().unwrap();
        let text = CONFIG.replace("DIRECTORY", directory.path().to_str().unwrap());
        let config = config::load_content(text.as_bytes()).unwrap().config;
        let fixed = Fixed::new(&config);
        let rules = fixed.rules(&config).unwrap();
        let bucket = batch(message, &ListenerSettings::default(), &[], &rules)?;
        let mut lines = Vec::new();
        for ExplainedOutput { output, series } in
            series(config.outputs.iter(), &bucket, &Arc::new(fixed.expansion))
        {
            match series.is_empty() {
                true => lines.push(format!("{output}: nothing")),
                false => lines.extend(series.iter().map(|series| format!("{output}: {series}"))),
            }
        }
        Some(lines)
    }

    #[test]
    fn each_output_has_its_own_names() {
        // The space in a tag is what outputs treat differently.
        assert_eq!(
            explained("page.views:3|c|#env:prod,user:a b").unwrap(),
            [
                r#"prometheus: page_views_total{env="prod",user="a b"}"#,
                "stdout: page.views [env:prod, user:a b]",
                "file: page.views [env:prod, user:a b]",
                "datadog: page.views [env:prod, user:a b]",
                r#"otlp: page.views{env="prod",user="a b"}"#,
                r#"sums: page.views{env="prod",user="a b"}"#,
                r#"remote_write: page_views_total{env="prod",instance="here",user="a b"}"#,
                "graphite: page.views.count;env=prod;host=here;user=a_b",
                r"influx: page.views,env=prod,host=here,metric_type=counter,user=a\ b value",
                "fleet: page.views [env:prod]",
            ]
        );
        // Aggregates of rules are those of outputs without a summary of their own.
        let timer = explained("login.time:20|ms|#env:prod").unwrap();
        let of = |name: &str| -> Vec<&str> {
            let lines = timer.iter().filter_map(|line| line.split_once(": "));
            lines
                .filter(|(output, _)| *output == name)
                .map(|(_, series)| series)
                .collect()
        };
        for output in ["stdout", "file", "datadog"] {
            assert_eq!(
                of(output),
                ["login.time.max [env:prod]", "login.time.count [env:prod]"]
            );
        }
        assert!(
            of("prometheus").contains(&r#"login_time{env="prod",quantile="0.5"}"#),
            "{timer:?}"
        );
        assert!(
            of("graphite").contains(&"login.time.p95;env=prod;host=here"),
            "{timer:?}"
        );
        // One output drops it, the others do not; a sign is not its value's.
        let debug = explained("debug.level:+1|g|#host:other").unwrap();
        for line in [
            "fleet: nothing",
            r#"prometheus: debug_level{host="other"}"#,
            "otlp: debug.level",
            "graphite: debug.level;host=other",
        ] {
            assert!(
                debug.iter().any(|found| found == line),
                "{line} is not in {debug:?}"
            );
        }
    }

    #[test]
    fn neither_an_event_nor_a_message_that_is_dropped_has_series() {
        assert_eq!(explained("_e{1,1}:a|b"), None);
        assert_eq!(explained("noise.x:1|c"), None);
    }

    #[test]
    fn a_page_has_the_series_of_each_output() {
        let explanation = Explanation {
            outputs: [("prometheus", "page_views_total"), ("stdout", "page.views")]
                .map(|(output, series)| ExplainedOutput {
                    output: output.to_owned(),
                    series: vec![series.to_owned()],
                })
                .into(),
            ..Explanation::default()
        };
        let page = explanation.render();
        let expected = "\noutputs\n  prometheus\n    page_views_total\n  stdout\n    page.views\n";
        assert!(page.contains(expected), "{page}");
    }
}

#[cfg(test)]
mod tests {
    use weir_context::RuleSettings;
    use weir_protocol::ParseOptions;
    use weir_rules::TagStyles;

    use super::*;

    fn listener(address: &str, gauge_deltas: bool, librato: bool) -> TapListener {
        let styles = TagStyles {
            librato,
            ..TagStyles::default()
        };
        TapListener {
            address: address.to_owned(),
            reading: ListenerSettings {
                gauge_deltas,
                names: NameReading::from(librato.then_some(styles)),
                ..ParseOptions {
                    timestamps: true,
                    ..ParseOptions::default()
                }
                .into()
            },
        }
    }

    /// The page about a message at one of these listeners.
    fn explained(
        listeners: &[TapListener],
        line: &str,
        listener: Option<&str>,
        pid: Option<i32>,
    ) -> Result<String, ExplainError> {
        let request = ExplainRequest {
            line: line.to_owned(),
            pid,
            listener: listener.map(str::to_owned),
        };
        let about = ExplainedListener::choose(listeners, &request)?;
        let rules = Rules::new(RuleSettings::default());
        Ok(explain(&request, &about, &rules, None).render())
    }

    #[test]
    fn an_explanation_is_that_of_the_listener_that_it_names() {
        let (udp, unix) = ("udp://127.0.0.1:1", "unixgram:///socket");
        let listeners = [listener(udp, false, false), listener(unix, true, true)];
        let explained = |name, pid| explained(&listeners, "queue#env=prod:+7|g", name, pid);
        for (name, pid) in [(Some("uds"), None), (Some(unix), None), (None, Some(1))] {
            let page = explained(name, pid).unwrap();
            for part in [
                "\n  queue (gauge)",
                "\n    env:prod",
                "gauge_deltas: the listener adds",
                unix,
                udp,
            ] {
                assert!(page.contains(part), "{name:?}: {page}");
            }
        }
        // Without a name: the first listener, or the first one with a sending process.
        for name in [None, Some("udp"), Some(udp)] {
            let page = explained(name, None).unwrap();
            let is_as_it_is = page.contains("\n  queue#env=prod (gauge)") && !page.contains("gauge_deltas");
            assert!(is_as_it_is && page.contains(unix), "{name:?}: {page}");
        }
        let refused = explained(Some("tcp"), None).unwrap_err().to_string();
        assert!(
            refused.contains(&format!("allowed are {udp}, {unix}")),
            "{refused}"
        );
        assert_eq!(
            self::explained(&[], "a:1|c", None, None),
            Err(ExplainError::ReceivesNone)
        );
    }

    #[test]
    fn a_transport_selects_its_listeners_if_their_settings_are_equal() {
        let (one, other) = ("unixgram:///one", "unixgram:///other");
        let alike = [one, other].map(|address| listener(address, true, false));
        let page = explained(&alike, "level:+7|g", Some("uds"), None).unwrap();
        assert!(page.contains("gauge_deltas: the listener adds"), "{page}");
        let different = [listener(one, true, false), listener(other, false, false)];
        let refused = explained(&different, "level:+7|g", Some("uds"), None).unwrap_err();
        let said = refused.to_string();
        assert!(said.contains(&format!("name one of {one}, {other}")), "{said}");
        let page = explained(&different, "level:+7|g", Some(other), None).unwrap();
        assert!(!page.contains("gauge_deltas"), "{page}");
    }

    #[test]
    fn an_explanation_says_what_is_ignored_and_what_becomes_of_a_timestamp() {
        let now = unix_seconds();
        let ahead = format!("ahead:1|g|T{}", now + 25 * 3600);
        let soon = format!("soon:1|g|T{}", now + 23 * 3600);
        for (message, has_context, said) in [
            (
                "r.rq:5|g|#cluster:outbound|60051||a.svc",
                true,
                "unknown_sections: ignored: |60051|a.svc",
            ),
            ("a:1|c|T1661176132", true, "in no bucket, and keeps its timestamp"),
            (
                "a:1|c|T1661176132000",
                false,
                "timestamp: dropped: future_timestamp",
            ),
            (&*ahead, false, "timestamp: dropped: future_timestamp"),
            (&*soon, true, "s ahead, in no bucket"),
            (
                "a:1|h|T1661176132",
                false,
                "timestamp: dropped: unsupported_timestamped_type",
            ),
            (
                "a:x|s|T1661176132000",
                false,
                "timestamp: dropped: unsupported_timestamped_type",
            ),
            (
                "a:1:nan:2|g",
                true,
                "the values that are no finite numbers are dropped: non_finite",
            ),
            (
                "_e{1,1}:a|b|d:1661176132000",
                true,
                "timestamp: it is ignored, because",
            ),
            ("_sc|db|0|d:-7", true, "timestamp: it is ignored, because"),
        ] {
            let page = explained(&[listener("udp://a", false, false)], message, None, None).unwrap();
            assert!(page.contains(said), "{message}: {page}");
            assert_eq!(!page.contains("no context"), has_context, "{message}: {page}");
        }
        let check = "_sc|db|0|d:1661176132";
        let page = explained(&[listener("udp://a", false, false)], check, None, None).unwrap();
        assert!(!page.contains("timestamp: "), "{page}");
    }
}
