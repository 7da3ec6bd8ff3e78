//! Keys and tokens from files: taken when they change, never shown, and a warning where others can read them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::delivery::receiver::Receiver;
use crate::delivery::reload::{NEW, OLD, Setup, datadog};
use crate::support::{post, until};

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

/// The key is revoked, its file gets another: without a signal, the refused payloads arrive. So it is with a token.
#[test]
fn keys_and_tokens_are_taken_from_their_files_when_these_change_and_are_never_shown() {
    let (intake, receiver) = (Receiver::start(202), Receiver::start(200));
    let directory = tempfile::tempdir().unwrap();
    let [key, other, token, tenant] =
        ["key", "other", "token", "tenant"].map(|name| directory.path().join(name));
    for (path, secret) in [
        (&key, OLD),
        (&other, OLD),
        (&token, "first-token-of-many"),
        (&tenant, "tenant-of-many"),
    ] {
        write_secret(path, secret);
    }
    let may =
        |path: &Path, mode: u32| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    may(&key, 0o644);
    let more = format!(
        ", additional_endpoints_file: {{'{}/x': ['{}']}}",
        intake.url,
        other.display()
    );
    let setting = format!("api_key_file: {}", key.display());
    let files = format!(
        "bearer_token_file: {}, headers_file: {{X-Tenant: {}}}",
        token.display(),
        tenant.display()
    );
    let others = format!(
        "  rw: {{type: remote_write, url: '{0}/write', {files}}}\n  otlp: {{url: '{0}', {files}}}\n",
        receiver.url
    );
    let mut setup = Setup::start(&(datadog("intake", &setting, &intake.url, &more) + &others));
    let agent = &mut setup.agent;
    agent.wait_for("key holds a secret and can be read by everybody");
    let file = setup.directory.path().join("weir.yaml");
    may(&file, 0o666);
    let (_, body) = post(&agent.admin, "/api/v1/reload");
    assert!(body.contains("weir.yaml can be written by everybody"), "{body}");
    agent.wait_for("weir.yaml can be written by everybody");

    agent.send("first:1|c");
    arrived_with(&intake, &format!("dd-api-key: {OLD}"));
    let both = |token: &str| {
        until(token, || {
            let taken = receiver.taken();
            let of = |path: &str| {
                taken.iter().any(|taken| {
                    taken.head.starts_with(&format!("post {path}"))
                        && taken.header("authorization") == Some(format!("bearer {token}").as_str())
                        && taken.header("x-tenant") == Some("tenant-of-many")
                })
            };
            of("/write") && of("/v1/metrics")
        });
    };
    both("first-token-of-many");
    // The current file is not meant for these reloads.
    std::fs::write(&file, "nonsense: {}\n").unwrap();
    write_secret(&token, "second-token-of-many");
    agent.wait_for("reload: outputs.otlp.bearer_token_file is now ");
    agent.wait_for("reload: outputs.rw.bearer_token_file is now ");
    agent.send("first:1|c");
    both("second-token-of-many");

    intake.answer_with(503);
    agent.send("second:1|c");
    until("it waits", || {
        let status = agent.status();
        let mut outputs = status["outputs"].as_array().unwrap().iter();
        let failing = outputs.all(|output| output["healthy"] == false || output["type"] != "datadog");
        failing.then_some(()).ok_or(status["outputs"].to_string())
    });
    write_secret(&key, NEW);
    agent.wait_for("a file with a key or token has changed");
    agent.wait_for("reload: outputs.intake.api_key_file is now ");
    intake.answer_with(202);
    until("it arrives with the new key", || {
        let found = intake.points("second");
        found
            .contains(&(NEW.to_owned(), 1.0))
            .then_some(())
            .ok_or(format!("{found:?}"))
    });
    write_secret(&other, NEW);
    agent.wait_for("reload: outputs.intake.additional_endpoints_file is now ");
    // A missing file is an error, and the old key stays.
    std::fs::remove_file(&key).unwrap();
    agent.wait_for("the old configuration stays active");
    let page = agent.status().to_string();
    agent.send("third:1|c");
    until("it arrives", || intake.sum("third") == 2.0);
    agent.signal("-TERM");
    let log = setup.agent.finished();
    for shown in [log, page] {
        assert!(!shown.contains(OLD) && !shown.contains(NEW), "{shown}");
        assert!(!shown.contains("-of-many"), "{shown}");
    }
}
