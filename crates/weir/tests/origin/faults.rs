//! Sources that are dead, slow or wrong: counted, explained, harmless.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::time::Instant;

use crate::origin::agent::{Agent, texts, until};
use crate::support::long_bucket;

#[test]
fn a_dead_socket_is_named_and_costs_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let dead = directory.path().join("docker.sock");
    let mut agent = Agent::start(&[
        "--origin-detection",
        "--origin-client",
        "--origin-docker",
        dead.to_str().unwrap(),
    ]);
    agent.wait_for("origins: docker at");
    agent.send("a:1|c|c:ci-whoever");
    agent.wait_for_source("docker", "failures", 2);
    let page = agent.ask(&["status"]);
    assert!(
        page.contains("failing") && page.contains("No such file"),
        "{page}"
    );
    assert_eq!(texts(&agent.points()), ["a "]);
}

#[test]
fn a_source_that_never_answers_delays_a_message_for_a_second_and_loses_none() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("docker.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let agent = Agent::start(&["--origin-client", "--origin-docker", path.to_str().unwrap()]);
    // Takes the connection and says nothing.
    let (_held, _) = listener.accept().unwrap();
    let sent = Instant::now();
    agent.send("a:1|c|c:ci-slow\na:1|c|c:ci-slow");
    until("it waits or was processed", || {
        let origin = agent.origin();
        origin["waited"].as_u64() >= Some(1) && origin["waiting"].as_u64() == Some(0)
    });
    println!("went on after {:?}", sent.elapsed());
    assert_eq!(texts(&agent.points()), ["a "]);
}

#[test]
fn a_source_with_invalid_answers_is_named() {
    let answers: [&[u8]; 3] = [
        b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nxyz",
        b"\x00\x01\x02 nonsense",
    ];
    for answer in answers {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("docker.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            for _ in 0..2 {
                let Ok((mut stream, _)) = listener.accept() else {
                    return;
                };
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(answer);
            }
        });
        let agent = Agent::start(&["--origin-client", "--origin-docker", path.to_str().unwrap()]);
        agent.wait_for_source("docker", "failures", 1);
        agent.send("a:1|c|c:ci-x");
        assert_eq!(texts(&agent.points()), ["a "]);
        drop(std::os::unix::net::UnixStream::connect(&path));
        drop(std::os::unix::net::UnixStream::connect(&path));
        server.join().unwrap();
    }
}

#[test]
fn invented_ids_match_no_container() {
    let agent = Agent::start(&["--origin-client", "--origin-detection"]);
    let long = "x".repeat(5000);
    for made_up in [
        "c:ci-../../../etc/passwd",
        "c:ci-%2e%2e%2f",
        "c:in--1",
        "c:,,,,",
        "c:ci-,in-",
        "e:pu-../..,cn-x",
        "c:ci-\u{0}\u{1}",
        &format!("c:ci-{long}"),
    ] {
        agent.send(&format!("a:1|c|{made_up}"));
        agent.send(&format!("a:1|c|#dd.internal.entity_id:{}", &made_up[2..]));
    }
    until("the malformed are counted", || {
        agent.origin()["resolver"]["origins"]["malformed"].as_u64() >= Some(4)
    });
    let points = agent.points();
    let sum: f64 = points.iter().map(|(_, _, value)| value * long_bucket()).sum();
    // The comma in some of them begins another tag.
    assert!((sum - 16.0).abs() < 1e-6, "{points:?}");
}
