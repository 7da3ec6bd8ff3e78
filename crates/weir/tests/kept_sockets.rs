//! Sockets that outlive the process: those of a service manager's descriptor store, and of socket activation.

use crate::support;
use std::io::Write as _;
use std::net::{TcpStream, UdpSocket};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use support::manager::Manager;
use support::place::replace_by_a_file;
use support::ports::free_address;
use support::senders::{
    Senders, assert_one_point_per_bucket, framed, number, over_tcp, over_udp, over_unix, over_unixgram, total,
};
use support::{Agent, Starter, get, long_bucket, status, until};

/// Between two packets of one sender: the kernel's buffers hold what comes while no process reads.
const PAUSE: Duration = Duration::from_millis(15);

fn configuration(directory: &Path) -> String {
    let path = |name: &str| directory.join(name).display().to_string();
    format!(
        "bucket_width: 1s\ncounter_expiry: 0\ntcp: 127.0.0.1:0\nuds: {}\nuds_stream: {}\noutputs:\n  stdout: {{enabled: true}}\n  prometheus: {{}}\n",
        path("datagrams"),
        path("stream")
    )
}

/// Between two processes, and from the end of the one until the other was there, senders saw errors and packets were lost.
fn restarts_lose_nothing(state: bool) {
    let mut manager = Manager::new();
    let directory = manager.path().to_owned();
    let config = configuration(&directory);
    let state_path = directory.join("state").display().to_string();
    let environment: &[(&str, &str)] = match state {
        true => &[("WEIR_STATE_PATH", &state_path)],
        false => &[],
    };
    let mut agent = manager.start(&config, environment);
    assert_eq!(manager.kept(), 4);
    let senders = Senders::start(
        vec![
            over_udp(agent.address()),
            over_unixgram(&directory.join("datagrams")),
            over_unix(directory.join("stream")),
            over_tcp(agent.wait_for("listening on tcp://")),
        ],
        PAUSE,
    );
    let mut stdout = String::new();
    for _ in 0..number("WEIR_TEST_RESTARTS", 3) {
        senders.wait_for_more();
        let (out, log) = agent.stop();
        stdout += &out;
        assert!(log.contains("listening on"), "{log}");
        agent = manager.start(&config, environment);
        agent.wait_for(", on a socket that was passed");
    }
    senders.wait_for_more();
    let sent = senders.end();
    let admin = agent.wait_for("admin on http://");
    until("everything is received", || {
        let found = status(&admin);
        let totals = &found["total"]["samples"];
        totals["received"].as_u64().unwrap_or(0) >= if state { sent } else { 500 }
    });
    if state {
        assert_eq!(status(&admin)["total"]["samples"]["received"], sent);
        let flushes = || status(&admin)["flush"]["count"].as_u64().unwrap();
        let before = flushes();
        until("the bucket ends", || flushes() > before + 1);
        // The counter of the scrape goes on in the next process.
        let page = get(&admin, "/metrics").1;
        let counter = page.lines().find_map(|line| line.strip_prefix("c_total "));
        assert_eq!(
            counter.and_then(|value| value.parse().ok()),
            Some(sent as f64),
            "{page}"
        );
    }
    stdout += &agent.stop().0;
    assert_eq!(total(&stdout, "c"), sent as f64);
    if state {
        // Without state a bucket in which a process ends has a point of each process.
        assert_one_point_per_bucket(&stdout, "c");
    }
    assert_eq!(manager.kept(), 4);
}

/// The sockets hold packets while there is no process.
#[test]
fn what_is_sent_between_two_processes_is_received() {
    for state in [false, true] {
        let mut manager = Manager::new();
        let directory = manager.path().to_owned();
        let config = configuration(&directory).replace("bucket_width: 1s", "bucket_width: LONG");
        let state_path = directory.join("state");
        let all = [("WEIR_STATE_PATH", state_path.to_str().unwrap())];
        let environment = &all[..usize::from(state)];
        let mut agent = manager.start(&config, environment);
        let tcp = agent.wait_for("listening on tcp://");
        let mut senders = [
            over_udp(agent.address()),
            over_unixgram(&directory.join("datagrams")),
            over_unix(directory.join("stream")),
            over_tcp(tcp),
        ];
        // Each sends ten samples.
        let mut send = || senders.iter_mut().for_each(|send| send());
        let received = |agent: &Agent, samples: u64| {
            until("all is received", || {
                agent.status()["total"]["samples"]["received"] == samples
            });
        };
        send();
        received(&agent, 40);
        let (mut stdout, _) = agent.stop();
        send();
        agent = manager.start(&config, environment);
        send();
        // Without state the books begin again.
        received(&agent, if state { 120 } else { 80 });
        replace_by_a_file(&state_path);
        stdout += &agent.stop().0;
        assert_eq!((total(&stdout, "c") * long_bucket()).round(), 120.0, "{stdout}");
    }
}

/// In the gate: [`what_is_sent_between_two_processes_is_received`].
#[test]
#[ignore = "nightly: restarts in rounds under load"]
fn with_a_descriptor_store_restarts_lose_nothing_with_state_and_without() {
    [false, true].into_iter().for_each(restarts_lose_nothing);
}

/// The manager must not keep a socket whose listener is no longer configured. One that keeps nothing gets no descriptors, and sockets end with
/// the process.
#[test]
fn sockets_that_no_listener_or_no_manager_keeps_are_closed() {
    let mut manager = Manager::new();
    let directory = manager.path().to_owned();
    manager.start(&configuration(&directory), &[]).stop();
    assert_eq!(manager.kept(), 4);
    let mut agent = manager.start("tcp: 127.0.0.1:0\n", &[]);
    agent.wait_for("is closed: no listener is configured for it; the packets in it are lost");
    until("they are forgotten", || {
        manager.wait_for("STATUS=");
        manager.kept() == 2
    });
    agent.stop();

    let mut manager = Manager::new();
    let directory = manager.path().to_owned();
    manager
        .start(&configuration(&directory), &[("FDSTORE", "0")])
        .stop();
    assert_eq!(manager.kept(), 0);
    assert!(!directory.join("datagrams").exists());
    let mut agent = manager.start(&configuration(&directory), &[("FDSTORE", "3")]);
    agent.wait_for(
        "4 sockets should survive a restart, but the service manager keeps at most 3, so it keeps none",
    );
    agent.stop();
}

#[test]
fn descriptors_that_are_invalid_or_do_not_suit_their_name_are_an_error_that_names_them() {
    let weir = |environment: &str| {
        // A lock that the tests run under would be passed on as descriptor 3.
        let script = format!(
            "exec 3<&-; export LISTEN_PID=$$ {environment}; exec \"$0\" run --admin off --udp 127.0.0.1:0"
        );
        let output = Command::new("bash")
            .args(["-c", &script, env!("CARGO_BIN_EXE_weir")])
            .env_clear()
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let said = weir("LISTEN_FDS=many");
    assert!(
        said.contains("LISTEN_FDS: \"many\" is not a number of descriptors from 0 to 4096"),
        "{said}"
    );
    let said = weir("LISTEN_FDS=1");
    assert!(
        said.contains("descriptor 3, which LISTEN_FDS says was passed"),
        "{said}"
    );
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("datagrams");
    let mut command = Command::new("systemd-socket-activate");
    command.args(["--datagram", "--fdname=udp", "--listen", path.to_str().unwrap()]);
    command.args([
        env!("CARGO_BIN_EXE_weir"),
        "run",
        "--admin",
        "off",
        "--udp",
        "127.0.0.1:0",
    ]);
    let child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let socket = UnixDatagram::unbound().unwrap();
    once_there(|| socket.connect(&path));
    socket.send(b"c:1|c").unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(
        said.contains("the service manager passed unixgram://") && said.contains("under the name udp"),
        "{said}"
    );
}

/// Starts the agent by the first packet, as a socket unit does.
fn activated(options: &[&str], names: &str, config: &str, first: impl FnOnce() + Send + 'static) -> Agent {
    let mut command = Command::new("systemd-socket-activate");
    command
        .env_clear()
        .env("WEIR_ADMIN", "127.0.0.1:0")
        .arg("--setenv=WEIR_ADMIN")
        .arg(format!("--fdname={names}"))
        .args(options)
        .arg(env!("CARGO_BIN_EXE_weir"));
    let first = std::thread::spawn(first);
    let agent = Starter::by(command).config(config).start();
    first.join().unwrap();
    agent
}

fn received(agent: &mut Agent, samples: u64) {
    let admin = agent.wait_for("admin on http://");
    until("everything is received", || {
        status(&admin)["total"]["samples"]["received"] == samples
    });
}

/// Waits until the file is there and somebody listens on it.
fn once_there<T>(mut connect: impl FnMut() -> std::io::Result<T>) -> T {
    let mut found = None;
    until("somebody listens", || {
        found = connect().ok();
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn sockets_of_a_unit_are_used_found_by_name_and_by_address() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("datagrams");
    let config = format!("uds: {}\n", path.display());
    let address = free_address();
    let options = [
        "--datagram",
        "--listen",
        &address,
        "--listen",
        path.to_str().unwrap(),
    ];
    let first = path.clone();
    // The unit has another port than the configuration: the name counts. The other socket is where the configuration says.
    let mut agent = activated(&options, "udp:anything", &config, move || {
        let socket = UnixDatagram::unbound().unwrap();
        once_there(|| socket.connect(&first));
        socket.send(b"c:1|c").unwrap();
    });
    assert_eq!(agent.address(), address);
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.send_to(b"c:1|c", &address).unwrap();
    received(&mut agent, 2);
    agent.stop();
    assert!(path.exists(), "the file is the unit's");

    // Listening sockets.
    let path = directory.path().join("stream");
    let config = format!("uds_stream: {}\ntcp: 127.0.0.1:0\n", path.display());
    let address = free_address();
    let options = ["--listen", &address, "--listen", path.to_str().unwrap()];
    let (first, tcp) = (path.clone(), address.clone());
    let mut agent = activated(&options, "tcp:uds_stream", &config, move || {
        once_there(|| UnixStream::connect(&first))
            .write_all(&framed())
            .unwrap();
        once_there(|| TcpStream::connect(&tcp))
            .write_all(&framed())
            .unwrap();
    });
    received(&mut agent, 20);
    agent.stop();
}
