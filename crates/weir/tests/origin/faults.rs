//! Sources that are dead, slow or wrong, and invented ids: counted, explained, harmless.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::time::Instant;

use crate::origin::agent::{Agent, texts, until};
use crate::support::long_bucket;

#[test]
fn sources_that_are_dead_wrong_or_silent_are_named_and_lose_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let answers: [&[u8]; 3] = [
        b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nxyz",
        b"\x00\x01\x02 nonsense",
    ];
    let mut sockets = vec![at("dead"), at("silent")];
    for (number, answer) in answers.into_iter().enumerate() {
        let path = at(&format!("wrong{number}"));
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(answer);
            }
        });
        sockets.push(path);
    }
    let silent = UnixListener::bind(at("silent")).unwrap();
    let mut arguments = vec!["--origin-detection", "--origin-client"];
    arguments.extend(
        sockets
            .iter()
            .flat_map(|socket| ["--origin-docker", socket.as_str()]),
    );
    let mut agent = Agent::start(&arguments);
    agent.wait_for("origins: docker at");
    // Takes the connection and says nothing.
    let (_held, _) = silent.accept().unwrap();
    let sent = Instant::now();
    agent.send("slow:1|c|c:ci-slow\nslow:1|c|c:ci-slow");
    until("it waits or was processed", || {
        let origin = agent.origin();
        origin["waited"].as_u64() >= Some(1) && origin["waiting"].as_u64() == Some(0)
    });
    println!("went on after {:?}", sent.elapsed());
    until("all others have failed", || {
        let origin = agent.origin();
        let sources = origin["resolver"]["sources"].as_array().unwrap().iter();
        let others = sources.filter(|source| source["place"] != sockets[1]);
        others
            .filter(|source| source["failures"].as_u64() > Some(0))
            .count()
            == 4
    });
    agent.wait_for_source("docker", "failures", 2);
    let page = agent.ask(&["status"]);
    assert!(
        page.contains("failing") && page.contains("No such file"),
        "{page}"
    );

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
        agent.send(&format!("invented:1|c|{made_up}"));
        agent.send(&format!("invented:1|c|#dd.internal.entity_id:{}", &made_up[2..]));
    }
    until("the malformed are counted", || {
        agent.origin()["resolver"]["origins"]["malformed"].as_u64() >= Some(4)
    });
    let mut points = agent.points();
    let slow = points.pop();
    assert_eq!(texts(slow.as_slice()), ["slow "]);
    // The comma in some of them begins another tag.
    let sum: f64 = points.iter().map(|(_, _, value)| value * long_bucket()).sum();
    assert!((sum - 16.0).abs() < 1e-6, "{points:?}");
}
