//! The readings of a target, and their times.

use super::support::{Library, output};
use std::fs;
use std::process::Command;

/// Counts what it gets, says so over HTTP, and prints the time of each such request.
const ASKED: &str = r#"
import http.server, socket, sys, threading, time
taken = 0
class Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print(time.time_ns(), self.path, flush=True)
        body = b"taken %d\n" % taken
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words):
        pass
server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
server.bind(sys.argv[1])
web = http.server.HTTPServer(("127.0.0.1", int(sys.argv[2])), Metrics)
threading.Thread(target=web.serve_forever, daemon=True).start()
while True:
    taken += server.recv(65536).count(b"\n") + 1
"#;

/// To answer is work of the target, which would count as work for the load.
#[test]
fn a_target_is_asked_for_its_metrics_before_and_after_the_load() {
    let library = Library::new(
        r#"
target:
  command: [python3, asked.py, "{work}/p.sock", "{port:web}"]
  files: {asked.py: "{asked}"}
  ready: {all_of: [{unix_socket: "{work}/p.sock"}, {tcp_port: "{port:web}"}]}
  telemetry: [{prometheus: "http://127.0.0.1:{port:web}/telemetry", map: {parsed_messages: taken}}]
load:
  - {file: "lines.txt", args: [--rate, 2k msg/s], to: "unixgram://{work}/p.sock"}
sinks:
  - {kind: target-counter, listen: "http://127.0.0.1:{port:web}/counter", args: [taken]}
  - {kind: scrape, listen: "http://127.0.0.1:{port:web}/scrape"}
"#,
    );
    let case = library.path("experiments/cases/case/experiment.yaml");
    let text = fs::read_to_string(&case).unwrap();
    let lines = library.path("lines.txt");
    fs::write(&lines, "a:1|c\nb:2|c\n").unwrap();
    let script = ASKED
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n");
    let text = text
        .replace("{asked}", &script)
        .replace("lines.txt", &lines.display().to_string());
    fs::write(&case, text).unwrap();
    let (code, text) = output(library.compare(&["--accept-busy"]));
    assert!(code == 0 || code == 1, "{code}: {text}");
    library.assert_clean();
    for arm in ["baseline", "comparison"] {
        let folder = library.run_folder().join("case").join(arm).join("01");
        let json = |file: &str| -> serde_json::Value {
            serde_json::from_str(&fs::read_to_string(folder.join(file)).unwrap()).unwrap()
        };
        let manifest = json("manifest.json");
        let start = manifest["started_unix_ns"].as_u64().unwrap();
        let end = start + (manifest["sending"]["elapsed_s"].as_f64().unwrap() * 1e9) as u64;
        let asked = fs::read_to_string(folder.join("target.stdout")).unwrap();
        let asked: Vec<(u64, &str)> = asked
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(time, path)| (time.parse().unwrap(), path))
            .collect();
        let during = asked.iter().filter(|(time, _)| (start..=end).contains(time));
        assert_eq!(during.count(), 0, "{asked:?} between {start} and {end}");
        let times = |path: &str| asked.iter().filter(|(_, p)| *p == path).count();
        assert_eq!((times("/telemetry"), times("/scrape")), (2, 1), "{asked:?}");
        assert!(times("/counter") >= 1, "{asked:?}");
        let verdict = json("verdict.json");
        assert_eq!(
            verdict["books"]["sent"], verdict["books"]["delivered"],
            "{verdict:#}"
        );
        assert_eq!(
            verdict["books"]["sent"], verdict["books"]["target_parsed"],
            "{verdict:#}"
        );
    }
}

/// Where the machine does not count instructions, that is said before anything runs.
#[test]
fn instructions_are_a_goal_or_their_absence_has_a_reason() {
    let library = Library::new("");
    let (_, said) = output(library.command(&["doctor"]));
    let line = said.lines().find(|line| line.contains("instructions")).unwrap();
    let flags = ["--set", "goal=instructions_per_message", "--plan"];
    let (code, text) = output(library.compare(&flags));
    if line.starts_with("ok") {
        assert!(code == 0 && text.contains("round 1"), "{text}");
        return;
    }
    assert!(code == 5 && text.contains("cpu_per_message"), "{code}: {text}");
    assert!(
        ["virtual machines", "perf_event_paranoid"]
            .iter()
            .any(|why| text.contains(why)),
        "{text}"
    );
}

/// Valgrind counts the same whatever else the machine does, so two pairs and a small change are enough.
#[test]
fn valgrind_finds_a_known_change_where_no_counter_is() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: valgrind is not installed");
        return;
    }
    let counted = |slowdown: &str| {
        let library = Library::new(&format!(
            r#"
goal: instructions_per_message
target:
  command: ["{{bench}}", practice, target, --listen, "unixgram://{{work}}/p.sock", --forward, "{{sink.0}}", --rounds, "1000", --retain, "0"]
  ready: {{timeout: 60s, all_of: [{{unix_socket: "{{work}}/p.sock"}}]}}
load:
  - command: ["{{bench}}", practice, load, --to, "unixgram://{{work}}/p.sock", --rate, "500", --duration-ms, "{{duration_ms}}",
      --seed, "{{seed}}", --manifest, "{{manifest}}", --capture, "{{capture}}"]
measure: {{instructions: valgrind}}
arms_override: {{comparison: {{target.env: {{PRACTICE_SLOWDOWN: '{slowdown}'}}}}}}
"#
        ));
        let (code, text) = output(library.compare(&[]));
        library.assert_clean();
        let report = library.report();
        let rows = report["dimensions"].as_array().unwrap();
        let goals: Vec<&str> = rows.iter().filter_map(|row| row["goal"].as_str()).collect();
        assert!(
            !goals.contains(&"cpu_per_message") && !goals.contains(&"rss"),
            "{goals:?}"
        );
        // Of two pairs the interval is many times as wide as they differ.
        let change = report["rows"][0]["change"]["delta"].as_f64();
        (code, change.unwrap_or(f64::NAN), text)
    };
    // Side by side: each disturbs the other, which its count must not show.
    let (slower, same) = std::thread::scope(|scope| {
        let same = scope.spawn(|| counted("0"));
        (counted("10"), same.join().unwrap())
    });
    for ((code, change, text), expected, range) in [(slower, 1, 9.5..10.2), (same, 0, -0.3..0.3)] {
        assert_eq!(code, expected, "{text}");
        assert!(range.contains(&change), "{change} %: {text}");
    }
}

#[test]
fn valgrind_is_refused_where_its_count_is_not_the_goal() {
    let library = Library::new("measure: {instructions: valgrind}\n");
    let (code, text) = output(library.compare(&["--plan"]));
    assert!(
        code == 2 && text.contains("measure.instructions") && text.contains("instructions_per_message"),
        "{code}: {text}"
    );
}
