//! Notifications to a service manager with `Type=notify-reload`. The test is the manager.

use crate::support;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use support::{Agent, PATIENCE, long_bucket};

const CONFIG: &str = "outputs:\n  stdout: {enabled: true}\n";

struct Manager {
    messages: mpsc::Receiver<String>,
}

impl Manager {
    /// Waits for a message that begins like this, and returns all of it. What else comes is of no interest.
    fn wait_for(&self, beginning: &str) -> String {
        let mut seen = Vec::new();
        loop {
            let received = self.messages.recv_timeout(PATIENCE);
            let text = received.unwrap_or_else(|error| panic!("no {beginning} after {seen:?}: {error}"));
            if text.starts_with(beginning) {
                return text;
            }
            seen.push(text);
        }
    }
}

/// Reads all the time: the agent drops a message for which the socket has no room.
fn manager(socket: UnixDatagram) -> Manager {
    let (sender, messages) = mpsc::channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(length) = socket.recv(&mut buffer) {
            let text = String::from_utf8(buffer[..length].to_vec()).unwrap();
            if sender.send(text).is_err() {
                return;
            }
        }
    });
    Manager { messages }
}

fn monotonic_us() -> u64 {
    let now = weir_listener::Monotonic::now();
    now.0 / 1000
}

#[test]
fn the_manager_learns_of_the_start_reloads_life_and_the_end_and_nothing_while_the_agent_is_stuck() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let manager = manager(UnixDatagram::bind(&path).unwrap());
    let environment = [
        ("NOTIFY_SOCKET", path.to_str().unwrap()),
        ("WATCHDOG_USEC", "200000"),
    ];
    let agent = Agent::start(CONFIG, &environment);
    assert_eq!(manager.wait_for("READY"), "READY=1");
    let status = manager.wait_for("STATUS");
    assert!(status.contains("0 samples received"), "{status}");
    for _ in 0..3 {
        assert_eq!(manager.wait_for("WATCHDOG"), "WATCHDOG=1");
    }
    let before = monotonic_us();
    agent.signal("-HUP");
    let reloading = manager.wait_for("RELOADING");
    let at = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
    assert!(
        (before..=monotonic_us()).contains(&at.parse().unwrap()),
        "{reloading}"
    );
    manager.wait_for("READY=1");
    // An invalid configuration is refused, and the agent stays ready.
    agent.rewrite("nonsense: 1\n");
    agent.signal("-HUP");
    manager.wait_for("RELOADING=1");
    manager.wait_for("READY=1");
    // A stuck agent asks for no more time.
    agent.signal("-STOP");
    // Messages in flight at the stop come first.
    let silence = Duration::from_millis(500);
    while manager.messages.recv_timeout(silence).is_ok() {}
    agent.signal("-CONT");
    manager.wait_for("WATCHDOG=1");
    agent.signal("-TERM");
    manager.wait_for("STOPPING=1");
    let (status, _, log) = agent.end();
    assert!(status.success(), "{log}");
}

#[test]
fn an_abstract_name_is_a_socket_too_and_one_that_is_not_there_stops_nothing() {
    let name = format!("weir-notify-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let manager = manager(UnixDatagram::bind_addr(&address).unwrap());
    let agent = Agent::start(CONFIG, &[("NOTIFY_SOCKET", &format!("@{name}"))]);
    manager.wait_for("READY=1");
    agent.stop();
    let (_, log) = Agent::start(CONFIG, &[("NOTIFY_SOCKET", "/nowhere/notify")]).stop();
    assert!(
        log.contains("NOTIFY_SOCKET: /nowhere/notify cannot be reached"),
        "{log}"
    );
}

/// Services whose admin address is in an environment that no other process has, and commands of another user, with nothing but a search path.
const SERVICES: &str = r#"
ip link set lo up
mount -t tmpfs none /run
mkdir /run/weir /run/weir-merge log
echo "{log: {directory: $PWD/log}, outputs: {prometheus: {}}}" > merge.yaml
umask 077
# No bucket ends meanwhile.
RUNTIME_DIRECTORY=/run/weir WEIR_ADMIN=127.0.0.1:9127 weir run --bucket-width "$LONG_BUCKET" 2>agent.log &
RUNTIME_DIRECTORY=/run/weir-merge WEIR_ADMIN=127.0.0.1:9128 weir merge --config merge.yaml 2>merge.log &
for log in agent.log merge.log; do
  until grep -q 'admin on' $log; do sleep 0.05; kill -0 $! || exit; done
done
stat -c '%a %n' /run/*/admin
weir status --json | grep -q '"pid"' && echo status
weir doctor --no-send | grep -q '9127.* is ready' && echo doctor
weir top --once 2>&1 | grep -q '127.0.0.1:9127 says there was no flush yet' && echo top
weir merge status --json | grep -q fleet && echo merge status
# Another address is never asked if one is named.
weir status --admin 127.0.0.1:8127 2>&1 | grep -o 'no agent at [^ ]*:8127'
WEIR_ADMIN=127.0.0.1:8127 weir status 2>&1 | grep -o 'no agent at [^ ]*:8127'
weir merge status --admin 127.0.0.1:8128 2>&1 | grep -o 'no .* at [^ ]*:8128'
# The default address is first.
weir run --udp 127.0.0.1:0 2>other.log &
until weir status --quiet --admin 127.0.0.1:8127 2>/dev/null; do sleep 0.05; kill -0 $! || exit; done
weir doctor --no-send | grep -q '8127.* is ready' && echo default
"#;

#[test]
fn commands_find_a_service_whose_configuration_they_do_not_know() {
    let isolated = ["--user", "--map-root-user", "--net", "--mount", "--pid"];
    let ends = ["--fork", "--kill-child", "--mount-proc"];
    let isolated = [isolated.as_slice(), &ends].concat();
    let can = Command::new("unshare").args(&isolated).arg("true").status();
    if !can.is_ok_and(|status| status.success()) {
        return println!("skipped: this system gives no namespaces");
    }
    let program = Path::new(env!("CARGO_BIN_EXE_weir")).parent().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let ran = Command::new("timeout")
        .args(["60", "unshare"])
        .args(isolated)
        .args(["bash", "-c", SERVICES])
        .current_dir(directory.path())
        .env_clear()
        .env("LONG_BUCKET", format!("{}s", long_bucket()))
        .env(
            "PATH",
            format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", program.display()),
        )
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    let expected = "644 /run/weir-merge/admin\n644 /run/weir/admin\nstatus\ndoctor\ntop\nmerge status\n\
                    no agent at http://127.0.0.1:8127\nno agent at http://127.0.0.1:8127\nno agent at http://127.0.0.1:8128\ndefault\n";
    let log = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap_or_default();
    assert_eq!(
        said,
        expected,
        "{}{}{}",
        String::from_utf8_lossy(&ran.stderr),
        log("agent.log"),
        log("merge.log")
    );
}
