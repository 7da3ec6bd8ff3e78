//! Keys and tokens from files: taken when they change, never shown, and a warning where others can read them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::delivery::receiver::Receiver;
use crate::delivery::reload::{NEW, OLD, Setup, datadog};
use crate::support::{run, until};

fn write_secret(path: &Path, secret: &str) {
    // As secrets are changed in Kubernetes: at once.
    let new = path.with_extension("new");
    std::fs::write(&new, format!("{secret}\n")).unwrap();
    std::fs::set_permissions(&new, PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::rename(&new, path).unwrap();
}

fn arrived_with(receiver: &Receiver, header: &str) {
    until(header, || {
        let found = receiver
            .taken()
            .into_iter()
            .any(|taken| taken.head.contains(&header.to_ascii_lowercase()));
        found.then_some(()).ok_or("not yet".into())
    });
}

/// The key is revoked, its file gets another: without a signal, the refused payloads arrive.
#[test]
fn a_key_that_is_replaced_in_its_file_is_picked_up() {
    let intake = Receiver::start(202);
    let directory = tempfile::tempdir().unwrap();
    let (key, other) = (directory.path().join("key"), directory.path().join("other"));
    write_secret(&key, OLD);
    write_secret(&other, OLD);
    let more = format!(
        ", additional_endpoints_file: {{'{}/x': ['{}']}}",
        intake.url,
        other.display()
    );
    let setting = format!("api_key_file: {}", key.display());
    let mut setup = Setup::start(&datadog("intake", &setting, &intake.url, &more));
    setup.agent.send("first:1|c");
    arrived_with(&intake, &format!("dd-api-key: {OLD}"));
    // The current file is not meant for this reload.
    setup.rewrite("  nonsense: {}\n");
    intake.answer_with(503);
    setup.agent.send("second:1|c");
    until("it waits", || {
        let status = setup.agent.status();
        let failing = status["outputs"]
            .as_array()
            .unwrap()
            .iter()
            .all(|output| output["healthy"] == false || output["type"] == "prometheus");
        failing.then_some(()).ok_or(status["outputs"].to_string())
    });
    write_secret(&key, NEW);
    setup.agent.wait_for("a file with a key or token has changed");
    setup
        .agent
        .wait_for("reload: outputs.intake.api_key_file is now ");
    intake.answer_with(202);
    until("it arrives with the new key", || {
        let found = intake.points("second");
        found
            .contains(&(NEW.to_owned(), 1.0))
            .then_some(())
            .ok_or(format!("{found:?}"))
    });
    write_secret(&other, NEW);
    setup
        .agent
        .wait_for("reload: outputs.intake.additional_endpoints_file is now ");
    // A missing file is an error, and the old key stays.
    std::fs::remove_file(&key).unwrap();
    setup.agent.wait_for("the old configuration stays active");
    let page = setup.agent.status().to_string();
    setup.agent.send("third:1|c");
    until("it arrives", || {
        (intake.sum("third") == 2.0).then_some(()).ok_or("not yet".into())
    });
    setup.agent.signal("-TERM");
    let log = setup.agent.finished();
    for shown in [log, page] {
        assert!(!shown.contains(OLD) && !shown.contains(NEW), "{shown}");
    }
}

#[test]
fn tokens_and_headers_come_from_files() {
    let receiver = Receiver::start(200);
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    let tenant = directory.path().join("tenant");
    write_secret(&token, "first-token-of-many");
    write_secret(&tenant, "tenant-of-many");
    let files = format!(
        "bearer_token_file: {}, headers_file: {{X-Tenant: {}}}",
        token.display(),
        tenant.display()
    );
    let mut setup = Setup::start(&format!(
        "  rw: {{type: remote_write, url: '{0}/write', {files}}}\n  otlp: {{url: '{0}', {files}}}\n",
        receiver.url
    ));
    setup.agent.send("a:1|c");
    let both = |token: &str| {
        until(token, || {
            let of = |path: &str| {
                receiver.taken().iter().any(|taken| {
                    let head = &taken.head;
                    let has_token = head.contains(&format!("authorization: bearer {token}"));
                    head.starts_with(&format!("post {path}"))
                        && has_token
                        && head.contains("x-tenant: tenant-of-many")
                })
            };
            (of("/write") && of("/v1/metrics"))
                .then_some(())
                .ok_or("not yet".into())
        });
    };
    both("first-token-of-many");
    write_secret(&token, "second-token-of-many");
    setup
        .agent
        .wait_for("reload: outputs.otlp.bearer_token_file is now ");
    setup
        .agent
        .wait_for("reload: outputs.rw.bearer_token_file is now ");
    setup.agent.send("a:1|c");
    both("second-token-of-many");
    setup.agent.finish();
}

fn check(arguments: &[&str], environment: &[(&str, &str)]) -> (bool, String) {
    let ran = run(&[&["check"], arguments].concat(), environment);
    (ran.code == 0, ran.stdout + &ran.stderr)
}

#[test]
fn files_that_others_may_read_or_write_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("key");
    write_secret(&key, OLD);
    let mode =
        |path: &Path, mode: u32| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    let intake = Receiver::start(202);
    let setting = format!("api_key_file: {}", key.display());
    mode(&key, 0o644);
    let mut setup = Setup::start(&datadog("intake", &setting, &intake.url, ""));
    let file = setup.directory.path().join("weir.yaml");
    setup
        .agent
        .wait_for("key holds a secret and can be read by everybody");
    let shown = |what: &str, is_shown: bool| {
        let (good, text) = check(&["--config", file.to_str().unwrap()], &[]);
        assert!(good && text.contains(what) == is_shown, "{what}: {text}");
    };
    shown("# warning: ", true);
    mode(&key, 0o600);
    shown("# warning: ", false);
    mode(&file, 0o666);
    shown("weir.yaml can be written by everybody", true);
    setup.agent.signal("-HUP");
    setup.agent.wait_for("weir.yaml can be written by everybody");
    // A secret in the configuration makes it one.
    mode(&file, 0o644);
    shown("# warning: ", false);
    setup.rewrite(&datadog("intake", &format!("api_key: {OLD}"), &intake.url, ""));
    shown("weir.yaml holds a secret and can be read by everybody", true);
    let (_, answer) = setup.reload();
    let notes = answer["notes"].to_string();
    assert!(notes.contains("can be read by everybody"), "{answer}");
    setup.agent.finish();
}
