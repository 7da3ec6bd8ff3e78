//! The agent at a terminal: closing it ends the agent, and a signal alone does not.

use crate::support;

use support::terminal::Terminal;
use support::{json, signal};

const ARGUMENTS: [&str; 5] = ["run", "--udp", "127.0.0.1:0", "--admin", "127.0.0.1:0"];

/// The admin address in the log.
fn admin(terminal: &mut Terminal) -> String {
    terminal.until_shown("to see metrics arrive");
    let log = terminal.written();
    let (_, rest) = log.split_once("admin on http://").unwrap();
    rest.split_whitespace().next().unwrap().to_owned()
}

#[test]
fn closing_the_terminal_ends_the_agent_and_sighup_reloads() {
    let mut terminal = Terminal::weir(&ARGUMENTS, &[], 40, 200);
    admin(&mut terminal);
    signal(terminal.id(), "-HUP");
    terminal.until_shown("reload: nothing has changed");
    terminal.close();
    assert!(terminal.end().success(), "what was sent is delivered");
}

/// The shell takes the signal first and passes it on to what runs in it.
#[test]
fn closing_the_terminal_of_a_shell_ends_the_agent_in_it() {
    let script = format!(
        "set -m; {} {} & echo agent $!; wait",
        env!("CARGO_BIN_EXE_weir"),
        ARGUMENTS.join(" ")
    );
    let mut terminal = Terminal::run("/bin/bash", &["-ic", &script], &[], 40, 200);
    admin(&mut terminal);
    let written = terminal.written();
    let (_, rest) = written.split_once("agent ").unwrap();
    let id = rest.split_whitespace().next().unwrap().to_owned();
    terminal.close();
    let process = format!("/proc/{id}");
    support::until("the agent ends", || !std::path::Path::new(&process).exists());
}

#[test]
fn nohup_lets_the_agent_outlive_its_terminal() {
    // The effect of nohup, without its file.
    let script = format!(
        "trap '' HUP; exec {} {}",
        env!("CARGO_BIN_EXE_weir"),
        ARGUMENTS.join(" ")
    );
    let mut terminal = Terminal::run("/bin/sh", &["-c", &script], &[], 40, 200);
    let admin = admin(&mut terminal);
    terminal.close();
    signal(terminal.id(), "-HUP");
    support::until("the reload", || {
        // The terminal's own signal may be one of two.
        json(&admin, "/api/v1/status")["reload"]["successful"].as_u64() >= Some(1)
    });
}
