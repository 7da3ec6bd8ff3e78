//! A new process takes over from the running one: no sender sees an error, no sample is lost, no bucket is split.

use crate::support;
use crate::support::receivers;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use support::hand_over::{AGAIN, BEGIN, COMMIT, END, GO, HELLO, PROTOCOL, Peer, REFUSED, SOCKETS_END};
use support::place::{Place, received, replace_by_a_file, wait_for_bucket};
use support::ports::Refusing;
use support::senders::{
    Senders, assert_one_point_per_bucket, framed, in_halves, number, over_udp, over_unixgram, total,
};
use support::{Starter, get, long_bucket, signal, status, until};

/// Hand-overs in a row; `WEIR_TEST_HAND_OVERS` in a long run.
fn hand_overs() -> usize {
    number("WEIR_TEST_HAND_OVERS", 3)
}

const STDOUT: &str = "bucket_width: 1s\noutputs:\n  stdout: {enabled: true}\n";

fn upgrade(state: &str) -> (bool, String) {
    support::weir(&["upgrade", "--state-path", state])
}

/// The sum of `c` over all that the history has.
fn in_history(admin: &str) -> f64 {
    let (code, answer) = get(admin, "/api/v1/query?metric=c&fn=sum&from=-1h&step=1m");
    assert_eq!(code, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let values = answer["groups"][0]["values"].as_array().unwrap();
    values.iter().filter_map(Value::as_f64).sum()
}

/// Through sockets and connections that each process reads in its turn, and one that is in the middle of a frame each time.
#[test]
fn a_hand_over_loses_nothing_and_splits_no_bucket_and_no_frame() {
    let place = Place::new();
    let config = place.configuration("bucket_width: LONG\noutputs:\n  stdout: {enabled: true}\n");
    let mut agent = place.start(&config);
    let tcp = agent.wait_for("listening on tcp://");
    let mut senders = [
        over_udp(agent.address()),
        over_unixgram(&place.path("datagrams")),
        in_halves(UnixStream::connect(place.path("stream")).unwrap()),
        in_halves(TcpStream::connect(&tcp).unwrap()),
    ];
    let mut send = || senders.iter_mut().for_each(|send| send());
    let (mut cut, frame) = (UnixStream::connect(place.path("stream")).unwrap(), framed());
    for round in 1..4 {
        send();
        cut.write_all(&frame[..9]).unwrap();
        until("all is received", || {
            let listeners = status(&agent.admin)["listeners"].to_string();
            received(&agent.admin) == 50 * round - 10 && listeners.contains("\"partial_bytes\":9")
        });
        let next = place.take_over(&config);
        let (ended, stdout, log) = agent.end();
        assert!(ended.success() && stdout.is_empty(), "{log}{stdout}");
        assert!(
            log.contains("took over from this one, with 3 connections"),
            "{log}"
        );
        agent = next;
        cut.write_all(&frame[9..]).unwrap();
        until("the frame is whole", || received(&agent.admin) == 50 * round);
    }
    send();
    until("all is received", || received(&agent.admin) == 190);
    // Nothing can be kept, so the bucket is flushed.
    replace_by_a_file(&place.path("state"));
    let (stdout, _) = agent.stop();
    assert_eq!((total(&stdout, "c") * long_bucket()).round(), 190.0, "{stdout}");
    assert_one_point_per_bucket(&stdout, "c");
}

/// In the gate: [`a_hand_over_loses_nothing_and_splits_no_bucket_and_no_frame`].
#[test]
#[ignore = "nightly: hand-overs in rounds under load"]
fn hand_overs_under_load_lose_nothing_and_split_no_bucket() {
    let place = Place::new();
    let config = place.configuration(STDOUT);
    let mut agent = place.start(&config);
    let tcp = agent.wait_for("listening on tcp://");
    let senders = Senders::start(
        vec![
            over_udp(agent.address()),
            over_unixgram(&place.path("datagrams")),
            in_halves(UnixStream::connect(place.path("stream")).unwrap()),
            in_halves(TcpStream::connect(&tcp).unwrap()),
        ],
        Duration::from_millis(1),
    );
    let mut stdout = String::new();
    for round in 0..hand_overs() {
        senders.wait_for_more();
        let next = place.take_over(&config);
        let (ended, out, log) = agent.end();
        assert!(ended.success(), "{log}");
        assert!(
            log.contains("took over from this one, with 2 connections"),
            "{log}"
        );
        stdout += &out;
        agent = next;
        println!("hand-over {round} done");
    }
    senders.wait_for_more();
    let sent = senders.end();
    let admin = agent.wait_for("admin on http://");
    until("everything is received", || received(&admin) >= sent);
    wait_for_bucket(&admin);
    let found = status(&admin);
    assert_eq!(found["total"]["samples"]["received"], sent);
    let hand_over = &found["state"]["hand_over"];
    assert_eq!(hand_over["completed"], hand_overs());
    assert_eq!(hand_over["failed"], 0);
    assert_eq!(hand_over["connections"], 2 * hand_overs());
    println!("the last pause: {} s", hand_over["pause_seconds"]);
    until("the history has all of it", || in_history(&admin) == sent as f64);
    stdout += &agent.stop().0;
    assert_eq!(total(&stdout, "c"), sent as f64);
    assert_one_point_per_bucket(&stdout, "c");
    assert!(
        !place.path("datagrams").exists(),
        "the last one ends in the ordinary way"
    );
}

/// If the new process fails, the old one continues with all its data.
#[test]
fn a_new_process_that_fails_at_any_step_changes_nothing() {
    let place = Place::new();
    let config = place.configuration(STDOUT);
    let mut agent = place.start(&config);
    let tcp = agent.wait_for("listening on tcp://");
    let admin = agent.wait_for("admin on http://");
    let mode = std::fs::metadata(place.path("state/hand-over"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let senders = Senders::start(
        vec![
            over_udp(agent.address()),
            over_unixgram(&place.path("datagrams")),
            in_halves(UnixStream::connect(place.path("stream")).unwrap()),
            in_halves(TcpStream::connect(&tcp).unwrap()),
        ],
        Duration::from_millis(2),
    );
    let failures = |number: u64| {
        until("the failure is counted", || {
            status(&admin)["state"]["hand_over"]["failed"] == number
        });
        senders.wait_for_more();
    };
    let steps: [&dyn Fn(&mut Peer); 4] = [
        &|new| drop(new.until(SOCKETS_END)),
        &|new| {
            new.until(SOCKETS_END);
            new.say(BEGIN, "");
            new.until(AGAIN);
        },
        &|new| {
            new.until(SOCKETS_END);
            new.say(BEGIN, "");
            assert!(new.until(END).contains("\"connections\":2"));
        },
        &|new| {
            new.until(SOCKETS_END);
            new.say(BEGIN, "");
            new.until(END);
            new.say(COMMIT, "");
            new.until(GO);
        },
    ];
    for (number, step) in steps.iter().enumerate() {
        let mut new = Peer::connect(&place.state());
        new.hello(PROTOCOL, 1);
        step(&mut new);
        drop(new);
        failures(number as u64 + 1);
        agent.wait_for("hand-over failed; this process continues");
    }
    // Text of a peer is one line of visible characters.
    let hello = |version: &str, asks: &str| {
        let mut new = Peer::connect(&place.state());
        new.say(
            HELLO,
            &format!("{{\"weir\": \"{version}\", \"protocol\": 0, \"state\": 1, \"asks\": \"{asks}\"}}"),
        );
        new
    };
    let reason = hello("9\\nERROR forged\\u202e", "take_over").until(REFUSED);
    assert!(
        reason.starts_with("weir 9\\nERROR forged\\u{202e} speaks version 0 of the hand-over"),
        "{reason}"
    );
    failures(5);
    agent.wait_for("hand-over: weir 9\\nERROR forged\\u{202e} (process ");
    agent.wait_for("hand-over failed; this process continues: weir 9\\nERROR forged");
    hello("9", "x\\nERROR forged");
    agent.wait_for("hand-over: a connection failed: ");
    let mut old = Peer::connect(&place.state());
    old.hello(PROTOCOL, 0);
    assert!(old.until(REFUSED).contains("reads state up to version 0"));
    failures(6);
    // One that cannot bind what is new in its configuration.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let (succeeded, said) = support::weir(&[
        "run",
        "--take-over",
        "--state-path",
        &place.state(),
        "--tcp",
        &taken.local_addr().unwrap().to_string(),
    ]);
    assert!(!succeeded && said.contains("the port is in use"), "{said}");
    failures(7);
    let sent = senders.end();
    until("everything is received", || received(&admin) >= sent);
    wait_for_bucket(&admin);
    assert_eq!(received(&admin), sent);
    let next = place.take_over(&config);
    let (_, mut stdout, log) = agent.end();
    assert!(!log.lines().any(|line| line.starts_with("ERROR forged")), "{log}");
    stdout += &next.stop().0;
    assert_eq!(total(&stdout, "c"), sent as f64);
    assert_one_point_per_bucket(&stdout, "c");
}

/// Ends a process that is nobody's child here.
fn stop(pid: &str) {
    signal(pid.parse().unwrap(), "-TERM");
    until("it ends", || !Path::new("/proc").join(pid).exists());
}

/// Taking over without a running process is an ordinary start. Its socket is private, whatever the mask of modes.
#[test]
fn upgrade_starts_the_program_on_disk_or_reports_why_not() {
    let (succeeded, said) = support::weir(&["run", "--take-over", "--admin", "off"]);
    assert!(
        !succeeded && said.contains("--take-over: state_path is not set"),
        "{said}"
    );
    let place = Place::new();
    let (succeeded, said) = upgrade(&place.state());
    assert!(!succeeded && said.contains("no weir can be reached"), "{said}");
    let config = place.configuration("bucket_width: LONG\n");
    let starter = Starter::by_shell("umask 0 && exec \"$0\" \"$@\"").config(&config);
    let starter = starter.environment(&[("WEIR_STATE_PATH", &place.state())]);
    let mut agent = starter.arguments(["--take-over"]).start();
    agent.wait_for("no weir runs in ");
    let admin = agent.admin.clone();
    let socket = place.path("state/hand-over");
    until("its socket is there", || socket.exists());
    assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
    // The address stays, the port that the kernel chose included.
    let pid = || status(&admin)["pid"].as_u64().unwrap();
    let first = pid();
    agent.send("c:1|c");
    until("it is counted", || received(&admin) == 1);

    agent.rewrite("nonsense: 1\n");
    let (succeeded, said) = upgrade(&place.state());
    assert!(!succeeded, "{said}");
    assert!(
        said.contains("the running process continues") && said.contains("exit code 2"),
        "{said}"
    );
    assert_eq!(pid(), first);

    // One that fails when it has begun to take over counts once, too.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = config.replace("127.0.0.1:0", &taken.local_addr().unwrap().to_string());
    agent.rewrite(&taken);
    let (succeeded, said) = upgrade(&place.state());
    assert!(!succeeded && said.contains("could not prepare itself"), "{said}");

    agent.rewrite(&config);
    let (succeeded, said) = upgrade(&place.state());
    assert!(succeeded, "{said}");
    let second = pid();
    assert_eq!(said, format!("process {second} took over\n"));
    assert_ne!(first, second);
    assert_eq!(received(&admin), 1);
    assert_eq!(status(&admin)["state"]["samples_open"], 1);
    assert_eq!(status(&admin)["state"]["hand_over"]["failed"], 2);

    signal(second as u32, "-USR2");
    until("another one took over", || {
        let found = std::panic::catch_unwind(pid);
        found.is_ok_and(|found| found != second)
    });
    agent.send("c:1|c");
    until("it is counted", || received(&admin) == 2);
    stop(&pid().to_string());
    agent.wait_for("state saved for the next process: 1 contexts, 2 samples");
}

/// The next process delivers payloads that waited in memory or on disk for a dead backend, once.
#[test]
fn queues_and_sums_continue() {
    let place = Place::new();
    let backends = [Refusing::new(), Refusing::new()];
    let config = place.configuration(&format!(
        "bucket_width: 1s\noutputs:\n  prometheus: {{}}\n  graphite: {{address: 'tcp://{}', counters: [count], confirm: false, delivery: {{backoff_max: 80ms}}}}\n  \
         kept: {{type: graphite, address: 'tcp://{}', counters: [count], confirm: false, delivery: {{disk_path: {}, backoff_max: 80ms}}}}\n",
        backends[0].address,
        backends[1].address,
        place.path("queue").display()
    ));
    let mut agent = place.start(&config);
    let mut sum = 0;
    for (number, value) in (0..).zip([1, 2, 4]) {
        sum += value;
        agent.send(format!("c:{value}|c"));
        until("it waits in memory and on disk", || {
            let kept = agent.output("kept");
            let notes = kept["notes"].to_string();
            assert!(
                notes.contains("tcp://") && !notes.contains("disk queue fails"),
                "{kept}"
            );
            assert!(!notes.contains("in memory only"), "{kept}");
            let mut pending = ["graphite", "kept"]
                .iter()
                .map(|output| agent.points(output).pending);
            pending.all(|pending| pending > number) && kept["disk_bytes"].as_u64() > Some(0)
        });
        until("the sum continues", || {
            get(&agent.admin, "/metrics")
                .1
                .contains(&format!("\nc_total {sum}"))
        });
        let next = place.take_over(&config);
        agent.end();
        agent = next;
    }
    let received = backends.map(|backend| {
        let (backend, (line, lines)) = (backend.listen(), std::sync::mpsc::channel());
        std::thread::spawn(move || {
            for stream in backend.incoming().map_while(Result::ok) {
                let line = line.clone();
                std::thread::spawn(move || {
                    let lines = BufReader::new(stream).lines().map_while(Result::ok);
                    lines.for_each(|text| drop(line.send(text)));
                });
            }
        });
        lines
    });
    until("everything is delivered", || {
        let mut pending = ["graphite", "kept"]
            .iter()
            .map(|output| agent.points(output).pending);
        pending.all(|pending| pending == 0)
    });
    let (_, log) = agent.stop();
    assert!(!log.contains("lost"), "{log}");
    for lines in received {
        let mut sum = 0.0;
        while sum < 7.0 {
            let text = lines.recv_timeout(support::PATIENCE).unwrap();
            if text.starts_with('c') {
                sum += text.split(' ').nth(1).unwrap().parse::<f64>().unwrap();
            }
        }
        assert_eq!(sum, 7.0);
    }
}

/// It scrapes one address all the time, whichever process answers there.
#[test]
fn a_real_prometheus_sees_neither_reset_nor_jump() {
    let place = Place::new();
    let config = place.configuration("bucket_width: 1s\noutputs:\n  prometheus: {enabled: true}\n");
    let mut agent = place.start(&config);
    let admin = agent.wait_for("admin on http://");
    let mut prometheus = receivers::Prometheus::start(&[("weir", &admin)], &[]);
    prometheus.expect("sum(up)", &[("", 1.0)]);
    let senders = Senders::start(
        vec![
            over_unixgram(&place.path("datagrams")),
            in_halves(UnixStream::connect(place.path("stream")).unwrap()),
        ],
        Duration::from_millis(3),
    );
    let scrapes = |prometheus: &mut receivers::Prometheus| {
        let found = prometheus
            .query("count_over_time(c_total[1h])")
            .unwrap_or_default();
        found.values().sum::<f64>()
    };
    for _ in 0..hand_overs() {
        let before = scrapes(&mut prometheus);
        until("it is scraped", || scrapes(&mut prometheus) > before + 1.0);
        let next = place.take_over(&config);
        agent.end();
        agent = next;
    }
    let sent = senders.end() as f64;
    // It has never been less than before, so that no step was larger than the truth either.
    prometheus.expect("c_total", &[("__name__=c_total", sent)]);
    prometheus.expect("resets(c_total[1h])", &[("", 0.0)]);
    prometheus.expect("resets(weir_samples_received_total[1h]) > 0", &[]);
    agent.stop();
}
