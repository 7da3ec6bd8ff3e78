//! A reload applies outputs: changed, added and removed, without a restart, a loss or a word to the other outputs.

use std::os::unix::net::UnixDatagram;

use serde_json::Value;

use crate::delivery::receiver::Receiver;
use crate::support::place::wait_for_bucket;
use crate::support::{Agent, PATIENCE, PointBooks, get, post, until};

pub const OLD: &str = "00000000000000000000000000000old";
pub const NEW: &str = "11111111111111111111111111111new";

/// A configuration file and the agent that reads it.
pub struct Setup {
    pub directory: tempfile::TempDir,
    pub agent: Agent,
}

impl Setup {
    pub fn start(outputs: &str) -> Setup {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("weir.yaml");
        write(&path, outputs);
        let agent = Agent::start(&["--config", path.to_str().unwrap()], &[]);
        Setup { directory, agent }
    }

    pub fn rewrite(&self, outputs: &str) {
        write(&self.directory.path().join("weir.yaml"), outputs);
    }

    /// The answer's code and what it says.
    pub fn reload(&self) -> (u16, Value) {
        let (code, body) = post(&self.agent.admin, "/api/v1/reload");
        (code, serde_json::from_str(&body).unwrap_or(Value::Null))
    }

    /// Reloads with other outputs, which is to apply every change.
    pub fn change(&self, outputs: &str) {
        self.rewrite(outputs);
        let (code, answer) = self.reload();
        assert_eq!(code, 200, "{answer}");
        let changes = answer["changes"].as_array().unwrap();
        assert!(
            !changes.is_empty() && changes.iter().all(|change| change["applied"] == true),
            "{answer}"
        );
        let status = self.agent.status();
        assert_eq!(status["reload"]["waiting_for_restart"], serde_json::json!([]));
    }

    pub fn books(&self, output: &str) -> PointBooks {
        PointBooks::read(&self.agent.output(output)["points"])
    }

    pub fn until_pending(&self, output: &str) {
        until("the output holds points", || {
            let found = self.agent.output(output);
            let waits = found["points"]["pending_where"]["memory"].as_u64() > Some(0);
            (waits && found["healthy"] == false)
                .then_some(())
                .ok_or(found.to_string())
        });
    }

    /// Value of a counter in the scrape.
    fn scraped(&self, name: &str) -> Option<f64> {
        let (_, text) = get(&self.agent.admin, "/metrics");
        let line = text.lines().find(|line| line.starts_with(name))?.to_owned();
        line.rsplit(' ').next().unwrap().parse().ok()
    }
}

/// Without the sandbox: it would keep the process out of files that only a reload names. A replaced output has the time
/// to deliver what it holds, however slow the machine.
fn write(path: &std::path::Path, outputs: &str) {
    std::fs::write(
        path,
        format!("bucket_width: 1s\ngrace_period: 60s\nsandbox: off\noutputs:\n{outputs}"),
    )
    .unwrap();
}

/// A line of the configuration.
pub fn datadog(name: &str, key: &str, url: &str, more: &str) -> String {
    format!(
        "  {name}: {{type: datadog, {key}, url: '{url}', series_format: v2_json, compression: none{more}}}\n"
    )
}

fn key(key: &str) -> String {
    format!("api_key: {key}")
}

fn until_sum(receiver: &Receiver, metric: &str, expected: f64) {
    until(metric, || {
        let found = receiver.points(metric);
        let sum: f64 = found.iter().map(|(_, value)| value).sum();
        (sum == expected)
            .then_some(())
            .ok_or(format!("{found:?} instead of {expected}"))
    });
}

/// Other settings, the same intake and key: the disk queue, which nobody else can open, passes to the new output.
#[test]
fn a_changed_output_keeps_its_disk_queue() {
    let intake = Receiver::start(503);
    let disk = tempfile::tempdir().unwrap();
    let outputs = |more: &str| {
        let delivery = format!(", delivery: {{disk_path: {}/queue{more}}}", disk.path().display());
        datadog("intake", &key(OLD), &intake.url, &delivery)
    };
    let setup = Setup::start(&outputs(""));
    setup.agent.send("waits:7|c");
    setup.until_pending("intake");
    setup.change(&outputs(", timeout: 3s"));
    setup.agent.send("waits:1|c");
    wait_for_bucket(&setup.agent.admin);
    until("it is queued", || setup.books("intake").to_write == 0);
    // Killed with two payloads on disk: the queue is whole.
    drop(setup.agent);
    intake.answer_with(202);
    let path = setup.directory.path().join("weir.yaml");
    let agent = Agent::start(&["--config", path.to_str().unwrap()], &[]);
    until_sum(&intake, "waits", 8.0);
    agent.finish();
}

/// One process, which every reload leaves as the next one needs it.
#[test]
fn reloads_change_outputs_without_a_loss_and_a_bad_one_changes_nothing() {
    let intake = Receiver::start(202);
    let setup = a_relay_changes_its_target_without_losing_a_line();
    setup.change(&datadog("intake", &key(OLD), &intake.url, ""));
    an_output_that_cannot_start_leaves_everything_as_it_was(&setup, &intake);
    outputs_are_added_and_removed(&setup, &intake);
    another_url_is_another_destination(&setup, &intake);
    settings_that_wait_and_a_disk_queue_are_counted(&setup, &intake);
    setup.agent.finish();
}

fn an_output_that_cannot_start_leaves_everything_as_it_was(setup: &Setup, intake: &Receiver) {
    let new = Receiver::start(202);
    let blocked = setup.directory.path().join("weir.yaml");
    let broken = format!(", delivery: {{disk_path: {}/queue}}", blocked.display());
    setup.rewrite(
        &(datadog("intake", &key(NEW), &new.url, "") + &datadog("broken", &key(NEW), &new.url, &broken)),
    );
    let (code, answer) = setup.reload();
    assert_eq!(code, 422, "{answer}");
    assert!(
        answer["errors"][0].as_str().unwrap().contains("broken"),
        "{answer}"
    );
    setup.agent.send("goes.on:1|c");
    until_sum(intake, "goes.on", 1.0);
    assert!(new.taken().is_empty());
    // Number, time and reason of failed reloads, for users and for monitors.
    let status = setup.agent.status();
    let reload = &status["reload"];
    assert_eq!(
        (&reload["failed"], &reload["successful"]),
        (&1.into(), &3.into()),
        "{reload}"
    );
    assert!(
        reload["last_error"].as_str().unwrap().contains("broken"),
        "{reload}"
    );
    assert!(
        reload["last_failed"].as_u64().unwrap() >= status["started"].as_u64().unwrap(),
        "{reload}"
    );
    let series = |name: &str, expected: f64| assert_eq!(setup.scraped(name), Some(expected), "{name}");
    series("weir_config_reloads_total{result=\"failed\"}", 1.0);
    series("weir_config_last_reload_failed", 1.0);
    series("weir_config_settings_waiting_for_restart", 0.0);
    let now = setup.scraped("weir_config_last_reload_timestamp_seconds{result=\"failed\"}");
    assert_eq!(now, reload["last_failed"].as_f64());
}

fn outputs_are_added_and_removed(setup: &Setup, intake: &Receiver) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("metrics.jsonl");
    let read = || std::fs::read_to_string(&file).unwrap_or_default();
    let with = |rotate: &str| {
        datadog("intake", &key(OLD), &intake.url, "")
            + &format!("  lines: {{type: file, path: {}{rotate}}}\n", file.display())
    };
    setup.agent.send("one:1|c");
    until_sum(intake, "one", 1.0);
    let has = |text: &'static str| {
        until(text, || {
            let found = read();
            found.contains(text).then_some(()).ok_or(found)
        })
    };
    setup.change(&with(""));
    setup.agent.send("two:1|c");
    has("\"two\"");
    // Only one output may have the file open: the changed one gets it from the one before.
    setup.change(&with(", rotate_bytes: 1MiB"));
    setup.agent.send("three:1|c");
    has("\"three\"");
    // As `logrotate` does it: rename, then SIGHUP.
    setup.agent.send("_sc|check.before|0\n");
    has("check.before");
    let moved = directory.path().join("metrics.jsonl.1");
    std::fs::rename(&file, &moved).unwrap();
    setup.agent.signal("-HUP");
    until("the new file", || file.exists());
    setup.agent.send("_sc|check.behind|0\n");
    has("check.behind");
    assert!(!read().contains("check.before"), "{}", read());
    let old = std::fs::read_to_string(&moved).unwrap();
    assert!(!old.contains("check.behind"), "{old}");
    setup.change(&datadog("intake", &key(OLD), &intake.url, ""));
    setup.agent.send("four:1|c");
    until_sum(intake, "four", 1.0);
    let status = setup.agent.status();
    let names: Vec<&str> = status["outputs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|output| output["name"].as_str().unwrap())
        .collect();
    assert!(!names.contains(&"lines"), "{names:?}");
    assert!(!read().contains("\"four\""), "{}", read());
    assert_eq!([intake.sum("two"), intake.sum("three")], [1.0, 1.0]);
}

fn a_relay_changes_its_target_without_losing_a_line() -> Setup {
    let directory = tempfile::tempdir().unwrap();
    let receiver = |name: &str| {
        let path = directory.path().join(name);
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        (format!("unixgram://{}", path.display()), socket)
    };
    let ((first, of_first), (second, of_second)) = (receiver("first"), receiver("second"));
    let outputs = |target: &str| format!("  lines: {{type: relay, targets: ['{target}']}}\n");
    let setup = Setup::start(&outputs(&first));
    let read = |socket: &UnixDatagram| {
        let mut buffer = [0; 65536];
        let n = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..n].to_vec()).unwrap()
    };
    setup.agent.send("line.one:1|c");
    assert_eq!(read(&of_first).trim(), "line.one:1|c");
    setup.agent.send("line.two:1|c");
    setup.change(&outputs(&second));
    setup.agent.send("line.three:1|c");
    // The second line was before the reload, and the worker may have read it before or after.
    let mut found = read(&of_second);
    if !found.contains("two") {
        assert_eq!(read(&of_first).trim(), "line.two:1|c");
    }
    while !found.contains("three") {
        found += &read(&of_second);
    }
    setup.change("  prometheus: {}\n");
    setup.agent.send("line.four:1|c");
    until("the relay has gone", || {
        let status = setup.agent.status();
        let outputs = status["outputs"].as_array().unwrap();
        let is_there = outputs.iter().any(|output| output["type"] == "relay");
        (!is_there).then_some(()).ok_or(status["outputs"].to_string())
    });
    setup
}

/// To another intake: what the old one has not taken, it still gets from the old output, and the new one gets what is new.
fn another_url_is_another_destination(setup: &Setup, old: &Receiver) {
    let new = Receiver::start(202);
    old.answer_with(503);
    setup.change(&datadog(
        "intake",
        &key(OLD),
        &old.url,
        ", delivery: {backoff_max: 32ms}",
    ));
    setup.agent.send("first:7|c");
    // The output may hold reports of its own before.
    wait_for_bucket(&setup.agent.admin);
    setup.until_pending("intake");
    setup.change(&datadog("intake", &key(OLD), &new.url, ""));
    old.answer_with(202);
    setup.agent.send("second:1|c");
    until_sum(&new, "second", 1.0);
    until_sum(old, "first", 7.0);
    assert_eq!((new.sum("first"), old.sum("second")), (0.0, 0.0));
    until("the books have its answer", || {
        let replaced = setup.books("replaced outputs");
        assert_eq!(replaced.dropped, 0, "{replaced:?}");
        (replaced.produced == replaced.delivered)
            .then_some(())
            .ok_or(format!("{replaced:?}"))
    });
}

fn settings_that_wait_and_a_disk_queue_are_counted(setup: &Setup, intake: &Receiver) {
    let before = setup.scraped("weir_config_reloads_total{result=\"successful\"}");
    let queue = format!(
        ", delivery: {{disk_path: {}/queue}}",
        setup.directory.path().display()
    );
    let text = datadog("intake", &key(OLD), &intake.url, &queue) + "memory: 512MiB\nworkers: 2\n";
    setup.rewrite(&text);
    assert_eq!(setup.reload().0, 200);
    let series = |name: &str, expected: f64| assert_eq!(setup.scraped(name), Some(expected), "{name}");
    series("weir_config_last_reload_failed", 0.0);
    series(
        "weir_config_reloads_total{result=\"successful\"}",
        before.unwrap() + 1.0,
    );
    series("weir_config_settings_waiting_for_restart", 2.0);
    intake.answer_with(503);
    setup.agent.send("waits:1|c");
    wait_for_bucket(&setup.agent.admin);
    setup.until_pending("intake");
    let bytes = setup.scraped("weir_output_disk_queue_bytes{output=\"intake\"}");
    assert!(bytes > Some(100.0), "{bytes:?}");
    intake.answer_with(202);
}
