//! Keys from a program: the sandbox, reloads, and that no secret is shown.

use std::path::Path;

use crate::delivery::receiver::Receiver;
use crate::delivery::reload::{NEW, OLD, datadog};
use crate::support::secret_program::{SecretProgram, answer};
use crate::support::{Agent, Starter, post, until};

fn agent(program: &SecretProgram, config: &str) -> Agent {
    Starter::new()
        .arguments([Path::new("--config"), &program.configured(config)])
        .socket()
        .start()
}

fn until_key(receiver: &Receiver, metric: &str, key: &str) {
    until(metric, || {
        let found = receiver.points(metric);
        let arrived = found.iter().any(|(with, _)| with == key);
        arrived.then_some(()).ok_or(format!("{found:?}"))
    });
}

fn config(url: &str, handle: &str, more: &str) -> String {
    let output = datadog("intake", &format!("api_key: 'ENC[{handle}]'"), url, "");
    format!("bucket_width: 1s\n{more}outputs:\n{output}")
}

/// The sandbox forbids to run programs: a reload keeps known secrets and refuses new handles. Without it a reload asks again.
#[test]
fn secrets_are_there_before_the_sandbox_closes_and_stay_at_a_reload() {
    let intake = Receiver::start(202);
    let program = SecretProgram::new(&answer("key", OLD));
    let mut agent = agent(&program, &config(&intake.url, "key", ""));
    agent.send("first:1|c");
    until_key(&intake, "first", OLD);
    program.answers(&answer("key", NEW));
    program.configured(&config(
        &intake.url,
        "key",
        "flush_summary: false\nlog_level: debug\n",
    ));
    let (code, body) = post(&agent.admin, "/api/v1/reload");
    assert_eq!(code, 200, "{body}");
    agent.wait_for("reload: secrets stay as they were at the start");
    agent.send("second:1|c");
    until_key(&intake, "second", OLD);
    program.configured(&config(&intake.url, "new", ""));
    let (_, body) = post(&agent.admin, "/api/v1/reload");
    assert!(
        body.contains("ENC[new]: was not there at the start, and the sandbox forbids"),
        "{body}"
    );
    let page = agent.status().to_string();
    agent.signal("-TERM");
    let log = agent.finished();
    for shown in [log, page] {
        assert!(!shown.contains(OLD) && !shown.contains(NEW), "{shown}");
    }

    program.answers(&answer("key", OLD));
    let mut agent = self::agent(&program, &config(&intake.url, "key", "sandbox: off\n"));
    program.answers(&answer("key", NEW));
    let (code, body) = post(&agent.admin, "/api/v1/reload");
    assert_eq!(code, 200, "{body}");
    agent.wait_for("reload: outputs.intake.api_key is now ");
    agent.send("third:1|c");
    until_key(&intake, "third", NEW);
    agent.signal("-TERM");
    let log = agent.finished();
    assert!(!log.contains(OLD) && !log.contains(NEW), "{log}");
}
