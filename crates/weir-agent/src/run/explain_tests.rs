//! The series that each output makes of a message, in the words of its receiver.

use weir_system::config;

use super::*;
use crate::run::rules::Fixed;

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
