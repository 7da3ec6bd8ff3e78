//! Graphite: no receiver sees a line that was cut as if it were whole; with a disk queue nothing that was written down is lost, and
//! at most the payload that was under way comes twice.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Kills, narrow};
use crate::support::{Agent, until};

const CONTEXTS: u64 = 3000;
/// So that every digit that is cut off makes another value.
const BASE: u64 = 1_000_000_000;

/// Makes a flush more than kernels hold on the way.
const PADDING: &str =
    "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789";

/// Data of one connection.
struct Said {
    text: String,
    /// The stream came to its end, which says that this is all; otherwise it was reset.
    complete: bool,
}

/// Reads slowly, so that most of what comes waits for it, until `hurry`.
fn receive(mut stream: TcpStream, hurry: &AtomicBool) -> Said {
    let (mut text, mut buffer) = (Vec::new(), [0; 2048]);
    let complete = loop {
        match stream.read(&mut buffer) {
            Ok(0) => break true,
            Ok(length) => text.extend_from_slice(&buffer[..length]),
            Err(_) => break false,
        }
        if !hurry.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    let text = String::from_utf8(text).unwrap();
    Said { text, complete }
}

pub(super) fn killed(mut kills: Kills) {
    let listener = narrow(TcpListener::bind("127.0.0.1:0").unwrap());
    let address = listener.local_addr().unwrap();
    let hurry = Arc::new(AtomicBool::new(false));
    let (said, open) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(0)));
    let (server_said, server_open, server_hurry) = (said.clone(), open.clone(), hurry.clone());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (said, open, hurry) = (server_said.clone(), server_open.clone(), server_hurry.clone());
            *open.lock().unwrap() += 1;
            std::thread::spawn(move || {
                let heard = receive(stream, &hurry);
                said.lock().unwrap().push(heard);
                *open.lock().unwrap() -= 1;
            });
        }
    });
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("weir.yaml");
    let text = format!(
        "bucket_width: 1s\noutputs:\n  prometheus: {{enabled: false}}\n  graphite:\n    address: tcp://{address}\n    host: none\n    delivery:\n      \
         disk_path: {}\n      backoff_max: 80ms\n",
        directory.path().join("queue").display()
    );
    std::fs::write(&config, text).unwrap();
    let start = || Agent::start(&["--config", config.to_str().unwrap()], &[]);
    for round in 0..kills.rounds {
        let agent = start();
        let found = agent.points("graphite");
        for first in (0..CONTEXTS).step_by(50) {
            let message = |i: u64| {
                let value = BASE + round * CONTEXTS + i;
                format!("level:{value}|g|#i:{i},padding:{PADDING}\n")
            };
            agent.send((first..first + 50).map(message).collect::<String>());
        }
        until("flushed and written down", || {
            let books = agent.points("graphite");
            let is_there = books.produced == found.produced + CONTEXTS && books.to_write == 0;
            let shown = format!("{books:?}, {found:?} at first");
            is_there.then_some(()).ok_or(shown)
        });
        kills.kill(agent);
    }
    hurry.store(true, Ordering::SeqCst);
    let agent = start();
    until("everything delivered", || match agent.points("graphite") {
        books if books.pending == 0 && books.dropped == 0 => Ok(()),
        books => Err(format!("{books:?}")),
    });
    agent.finish();
    until("every connection has ended", || match *open.lock().unwrap() {
        0 => Ok(()),
        open => Err(format!("{open} are open")),
    });

    let sent: BTreeSet<(u64, u64)> = (0..kills.rounds)
        .flat_map(|round| (0..CONTEXTS).map(move |i| (i, BASE + round * CONTEXTS + i)))
        .collect();
    let said = said.lock().unwrap();
    let (mut held, mut came, mut longest, mut cut) = (BTreeSet::new(), 0, 0, 0);
    for Said { text, complete } in said.iter() {
        // A reset signals the peer that the last line may be partial.
        let whole = match complete {
            true => text.len(),
            false => text.rfind('\n').map_or(0, |at| at + 1),
        };
        cut += u64::from(whole < text.len());
        let whole = &text[..whole];
        assert!(
            whole.is_empty() || whole.ends_with('\n'),
            "an orderly end within {:?}",
            whole.lines().last()
        );
        let mut lines = 0;
        for line in whole.lines() {
            let parts: Vec<&str> = line.split(' ').collect();
            let [path, value, time] = parts[..] else {
                panic!("{line:?}")
            };
            let path = path.strip_suffix(PADDING).expect(line);
            let i = path
                .strip_prefix("level;i=")
                .and_then(|path| path.strip_suffix(";padding="));
            let i: u64 = i.expect(line).parse().unwrap();
            let point = (i, value.parse().unwrap());
            assert!(sent.contains(&point), "{line:?} was never sent");
            assert!(time.len() == 10, "{line:?}");
            if *complete {
                held.insert(point);
                came += 1;
                lines += 1;
            }
        }
        longest = longest.max(lines);
    }
    assert_eq!(held.len(), sent.len(), "what was written down has arrived");
    let twice = came - held.len();
    assert!(
        twice as u64 <= kills.rounds * longest,
        "{twice} lines came twice; a payload has {longest} at most"
    );
    let reset = said.iter().filter(|said| !said.complete).count();
    println!(
        "{} connections, {reset} of them reset, {cut} within a line; {twice} lines came twice",
        said.len()
    );
    assert!(!kills.are_random() || reset > 0, "no kill fell into a payload");
}
