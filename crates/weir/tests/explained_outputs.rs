//! `weir explain` shows the series that each output makes of a message, in the words of its receiver.

use serde_json::Value;

use crate::support::place::Place;
use crate::support::{Agent, run};

/// Every output that makes series. None of the receivers is there: a look needs none.
const CONFIG: &str = "\
bucket_width: LONG
hostname: web1
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

fn page(admin: &str, message: &str) -> Value {
    let ran = run(&["explain", "--json", message, "--admin", admin], &[]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    serde_json::from_str(&ran.stdout).unwrap()
}

/// A line per output and series.
fn explained(admin: &str, message: &str) -> Vec<String> {
    let page = page(admin, message);
    let mut lines = Vec::new();
    for output in page["outputs"].as_array().unwrap() {
        let name = output["output"].as_str().unwrap();
        let series = output["series"].as_array().unwrap();
        lines.extend(
            series
                .iter()
                .map(|series| format!("{name}: {}", series.as_str().unwrap())),
        );
        if series.is_empty() {
            lines.push(format!("{name}: nothing"));
        }
    }
    lines
}

#[test]
fn each_output_shows_its_own_names() {
    let place = Place::new();
    let directory = place.path("").display().to_string();
    let config = CONFIG.replace("DIRECTORY", directory.trim_end_matches('/'));
    let mut agent = Agent::start(config.as_str(), &[]);
    let admin = agent.wait_for("admin on http://");
    // The space in a tag is what outputs treat differently.
    assert_eq!(
        explained(&admin, "page.views:3|c|#env:prod,user:a b"),
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
    let timer = explained(&admin, "login.time:20|ms|#env:prod");
    let of = |name: &str| -> Vec<&str> {
        let name = format!("{name}: ");
        timer.iter().filter_map(|line| line.strip_prefix(&name)).collect()
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
    let debug = explained(&admin, "debug.level:+1|g|#host:other");
    assert!(debug.contains(&"fleet: nothing".to_owned()), "{debug:?}");
    assert!(
        debug.contains(&r#"prometheus: debug_level{host="other"}"#.to_owned()),
        "{debug:?}"
    );
    assert!(debug.contains(&"otlp: debug.level".to_owned()), "{debug:?}");
    assert!(
        debug.contains(&"graphite: debug.level;host=other".to_owned()),
        "{debug:?}"
    );
    // Neither an event nor a message that is dropped has series.
    assert_eq!(page(&admin, "_e{1,1}:a|b")["outputs"], Value::Null);
    assert_eq!(page(&admin, "noise.x:1|c")["outputs"], Value::Null);
    let text = run(&["explain", "page.views:3|c", "--admin", &admin], &[]).stdout;
    assert!(
        text.contains("\noutputs\n  prometheus\n    page_views_total\n  stdout\n    page.views\n"),
        "{text}"
    );
}
