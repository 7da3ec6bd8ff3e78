//! The examples of `docs/rules.md`: the series that their messages make, and what `weir status` says of a dry run.

use std::sync::Arc;

use serde_json::Value;
use weir_agent::rules::Fixed;
use weir_aggregate::{AggregatorSettings, Expansion};
use weir_context::{ContextLimits, HashSecret};
use weir_ingest::{Ingest, IngestSettings, ListenerSettings, Received};
use weir_output::delivery::{Encode as _, Encoded};
use weir_output::json_lines::LinesEncoder;
use weir_status::status::{RuleStatus, RulesStatus, TrialStatus};
use weir_system::config;

const PAGE: &str = include_str!("../../../../docs/rules.md");
const START: i64 = 1_700_000_000;

/// A worker with the rules of a configuration.
struct Example {
    ingest: Ingest,
    expansion: Expansion,
}

impl Example {
    fn new(config: &str) -> Example {
        let text = format!("hostname: here\n{config}");
        let config = config::load_content(text.as_bytes())
            .unwrap_or_else(|problems| panic!("{problems:?}: {text}"))
            .config;
        let fixed = Fixed::new(&config);
        let settings = IngestSettings {
            worker: 0,
            aggregator: AggregatorSettings {
                hostname: "here".into(),
                ..AggregatorSettings::default()
            },
            rules: fixed.rules(&config).unwrap(),
            limits: ContextLimits::default(),
            secret: HashSecret::from_random(1, 2),
            listeners: vec![ListenerSettings::default()],
        };
        Example {
            ingest: Ingest::new(settings, START),
            expansion: fixed.expansion,
        }
    }

    fn send(&mut self, messages: &str) {
        for line in messages.lines() {
            self.ingest.packet(Received {
                bytes: line.as_bytes(),
                listener: 0,
                truncated: false,
                received: 0,
            });
        }
    }

    /// The series of standard output, without time, interval and the host of this machine, sorted.
    fn series(mut self) -> Vec<String> {
        assert!(self.ingest.advance(START + 10));
        let mut encoder = LinesEncoder::new(Arc::new(self.expansion), 1 << 20);
        let mut encoded = Encoded::default();
        while self.ingest.is_draining() {
            if let Some(batch) = self.ingest.drain(usize::MAX) {
                encoder.encode(&batch, &mut encoded);
            }
        }
        let text = encoded.payloads.into_iter().flat_map(|payload| payload.body);
        let text = String::from_utf8(text.collect()).unwrap();
        sorted(&text)
    }

    /// The rules' part of the page of `weir status`.
    fn status(&self) -> String {
        let infos = self.ingest.contexts().rules().set().infos();
        let trials = self.ingest.contexts().trial_reports();
        let active = trials.iter().map(|report| RuleStatus {
            name: infos[report.rule as usize].name.clone(),
            trial: Some(TrialStatus {
                contexts_now: report.contexts_now,
                contexts_then: report.contexts_then,
                samples_dropped: report.samples_dropped,
                samples_changed: report.samples_changed,
                ..TrialStatus::default()
            }),
            ..RuleStatus::default()
        });
        let rules = RulesStatus {
            active: active.collect(),
            ..RulesStatus::default()
        };
        let mut page = String::new();
        super::status::rules(&mut page, &rules);
        page
    }
}

fn sorted(lines: &str) -> Vec<String> {
    let series = lines.lines().map(|line| {
        let mut value: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        let object = value.as_object_mut().unwrap();
        object.remove("ts");
        object.remove("interval");
        if object.get("host") == Some(&Value::from("here")) {
            object.remove("host");
        }
        if let Some(number) = object.get("value").and_then(Value::as_f64) {
            object.insert("value".into(), number.into());
        }
        value.to_string()
    });
    let mut series: Vec<String> = series.collect();
    series.sort();
    series
}

/// The fenced blocks of the page, in order: what they are, and what is in them.
fn blocks() -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in PAGE.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(kind), None) => open = Some((kind.to_owned(), String::new())),
            (None, Some((_, text))) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, None) => {}
        }
    }
    blocks
}

#[test]
fn the_examples_of_the_page_are_true() {
    let (mut config, mut messages) = (String::new(), String::new());
    let mut examples = 0;
    for (kind, text) in blocks() {
        let example = || {
            let mut example = Example::new(&config);
            example.send(&messages);
            example
        };
        match kind.as_str() {
            "series" => {
                assert_eq!(example().series(), sorted(&text), "{config}");
                examples += 1;
            }
            "status" => {
                let page = example().status();
                assert!(page.contains(text.trim()), "{text} is not in\n{page}");
                examples += 1;
            }
            "yaml" => config = text,
            "messages" => messages = text,
            _ => {}
        }
    }
    assert_eq!(examples, 6);
}
