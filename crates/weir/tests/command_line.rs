//! The command line as a process: exit codes, streams, and commands beside an agent that runs.

use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, Stdio};

use crate::support::{Agent, Ran, get, run, signal, until};

/// Nothing of this process's environment reaches the binary.
fn binary(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(arguments).env_clear().stdin(Stdio::null());
    command
}

#[test]
fn answers_are_on_standard_output_and_errors_on_the_other_with_their_code() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("weir.yaml");
    std::fs::write(&config, "nope: 1\nworkers: 99\n").unwrap();
    let bad = config.to_str().unwrap();
    for arguments in [
        &["--help"][..],
        &["run", "-h"],
        &["send", "--help"],
        &["-V"],
        &["--version", "--json"],
        &["completions", "bash"],
        &["check", "--documentation"],
        &["status", "--documentation"],
        &["manual", "--documentation"],
    ] {
        let ran = run(arguments, &[]);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{arguments:?}");
        assert!(!ran.stdout.is_empty(), "{arguments:?}");
    }
    let ran = run(&["check"], &[("WEIR_BUCKET_WIDTH", "3")]);
    assert!(
        ran.stdout.contains("# environment WEIR_BUCKET_WIDTH\n"),
        "{}",
        ran.stdout
    );
    for (arguments, code, parts) in [
        (&["nothing"][..], 2, ["nothing", "--help"]),
        (&[], 2, ["Usage:", "Commands:"]),
        (&["check", "--config", bad], 2, [":1: ", "\nweir: "]),
        (&["run", "--config", bad], 2, [":1: ", "\nweir: "]),
        (&["send", "a:1|q"], 2, ["bad_type", "--raw"]),
        (&["status", "--admin", "x"], 2, ["flag --admin", "an address"]),
        (&["status", "--admin", "off"], 2, ["admin is off", ""]),
        (
            &["status", "-q", "--admin", "127.0.0.1:1"],
            1,
            ["no agent at", "weir run"],
        ),
        (&["parse", "/nowhere"], 1, ["/nowhere cannot be read", ""]),
    ] {
        let Ran {
            code: ended,
            stdout,
            stderr,
        } = run(arguments, &[]);
        assert_eq!((ended, stdout.as_str()), (code, ""), "{arguments:?}: {stderr}");
        for part in parts {
            assert!(
                stderr.contains(part),
                "{arguments:?}: {part:?} is not in {stderr}"
            );
        }
    }
    let mut command = binary(&["check"]);
    command.env("DD_HOSTNAME", OsStr::from_bytes(b"\xff"));
    assert_eq!(command.output().unwrap().status.code(), Some(2));

    let mut child = binary(&["parse", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"a:1|c\nb").unwrap();
    let output = child.wait_with_output().unwrap();
    let parsed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(parsed[1]["error"], "no_separator");

    // A closed pipe is no failure, a full disk is one.
    let mut child = binary(&["check", "--documentation"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let child = binary(&["check"]).stdout(full).stderr(Stdio::piped()).spawn();
    let output = child.unwrap().wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("standard output cannot be written"));
}

#[test]
fn commands_reach_a_running_agent_and_signals_reload_and_end_it() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("weir.yaml");
    let replace = |text: &str| {
        let new = directory.path().join("new.yaml");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, &config).unwrap();
    };
    replace("log_level: info\n");
    let arguments = ["--bucket-width", "1s", "-c", config.to_str().unwrap()];
    let mut agent = Agent::start(&arguments, &[]);
    let to = format!("unixgram://{}", agent.socket().display());
    assert_eq!(run(&["send", "--raw", "a:1|c", "bad", "--to", &to], &[]).code, 0);
    agent.wait_for("refused a message (no_separator)");
    let page = until("the rejected message is shown", || {
        let ran = run(&["status", "--admin", &agent.admin], &[]);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        ran.stdout
            .contains("no_separator 1")
            .then_some(ran.stdout.clone())
            .ok_or(ran.stdout)
    });
    assert!(page.contains("The books balance."), "{page}");
    assert!(page.contains(&to), "{page}");
    // The address as the log shows it.
    let shown = format!("http://{}", agent.admin);
    let json = run(&["status", "--json", "--admin", &shown], &[]).stdout;
    let status: weir_status::status::Status = serde_json::from_str(&json).unwrap();
    assert_eq!(status.total("messages").received, 2);
    assert_eq!(get(&agent.admin, "/ready").0, 200);
    let ran = run(&["status", "-q", "--admin", &agent.admin], &[]);
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "", ""));
    let (_, metrics) = get(&agent.admin, "/metrics");
    let rejected = format!("weir_messages_rejected_total{{listener=\"{to}\",reason=\"no_separator\"}} 1\n");
    assert!(metrics.contains(&rejected), "{metrics}");
    // A second agent cannot have the admin address of a first.
    let taken = &agent.admin;
    let ran = run(&["run", "--udp", "127.0.0.1:0", "--admin", taken], &[]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(
        ran.stderr.contains(taken) && ran.stderr.contains("--admin"),
        "{}",
        ran.stderr
    );

    replace("log_level: loud\n");
    agent.signal("-HUP");
    let line = agent.wait_for("reload:");
    assert!(
        line.contains("weir.yaml:1: log_level") && line.contains("one of"),
        "{line}"
    );
    agent.wait_for("stays active");
    replace("log_level: debug\nworkers: 2\n");
    agent.signal("-HUP");
    agent.wait_for("reload: log_level is now debug, was info");
    agent.wait_for("reload: workers stays 1 until a restart");
    // A setting that waits for a restart is named again, with its active value; and no longer when it is reverted.
    agent.signal("-HUP");
    agent.wait_for("reload: workers stays 1 until a restart, then it will be 2");
    replace("log_level: debug\n");
    agent.signal("-HUP");
    agent.wait_for("nothing has changed");
    agent.signal("-INT");
    agent.finished();
}

#[test]
fn an_agent_outlives_its_standard_error() {
    for target in ["/dev/full", "closed pipe"] {
        let arguments = ["run", "--udp", "127.0.0.1:0", "--bucket-width", "1s", "--uds"];
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("dsd.sock");
        let mut command = binary(&arguments);
        command
            .arg(&socket)
            .args(["--admin", "off"])
            .stdout(Stdio::null());
        let mut child = if target == "/dev/full" {
            command
                .stderr(std::fs::File::options().write(true).open(target).unwrap())
                .spawn()
                .unwrap()
        } else {
            let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
            drop(child.stderr.take());
            child
        };
        let to = format!("unixgram://{}", socket.display());
        let mut delivered = 0;
        // Through several flushes, each of which logs.
        until(target, || {
            delivered += u32::from(run(&["send", "--raw", "a:1|c\nbad", "--to", &to], &[]).code == 0);
            delivered == 60
        });
        assert!(child.try_wait().unwrap().is_none(), "{target} ended the agent");
        signal(child.id(), "-TERM");
        assert_eq!(child.wait().unwrap().code(), Some(0), "{target}");
    }
}
