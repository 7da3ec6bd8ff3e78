//! Hand-overs that end before their time: by a stop, a kill or a silent peer. Each test chooses the order of events.

use crate::support;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::inotify;
use support::hand_over::{
    ADMIN, AGAIN, BEGIN, Between, COMMIT, END, GO, GREETING, HELLO, PROTOCOL, Peer, REFUSED, RUNNING,
    SOCKETS, SOCKETS_END, STATE, socket, sockets_at,
};
use support::place::{Place, received};
use support::{Agent, status, until};

const CONFIG: &str = "bucket_width: LONG\noutputs:\n  stdout: {enabled: true}\n";

/// Samples that are in the open bucket before a hand-over.
const SAMPLES: u64 = 10;

/// A running process with samples in its open bucket, and its admin address.
fn with_samples(place: &Place) -> (Agent, String) {
    let agent = place.start(&place.configuration(CONFIG));
    let admin = agent.admin.clone();
    agent.send("c:1|c\n".repeat(SAMPLES as usize));
    until("they are received", || received(&admin) == SAMPLES);
    (agent, admin)
}

/// A locked state directory, in the place of a process that does not listen.
struct Locked {
    _lock: File,
    /// Notices each process that opens the lock.
    opened: OwnedFd,
}

impl Locked {
    fn directory_of(place: &Place) -> Locked {
        std::fs::create_dir(place.state()).unwrap();
        let path = place.path("state").join("lock");
        let lock = File::create(&path).unwrap();
        lock.lock().unwrap();
        let opened = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&opened, &path, inotify::WatchFlags::OPEN).unwrap();
        Locked { _lock: lock, opened }
    }

    /// Waits for a process that waits for the lock: it looks again and again.
    fn until_waited_for(&self) {
        for _ in 0..2 {
            let patience = Timespec::try_from(support::PATIENCE).unwrap();
            let mut polled = [PollFd::new(&self.opened, PollFlags::IN)];
            assert_eq!(
                rustix::event::poll(&mut polled, Some(&patience)),
                Ok(1),
                "it does not look"
            );
            rustix::io::read(&self.opened, &mut [0; 4096]).unwrap();
        }
    }
}

#[test]
fn a_process_that_takes_over_waits_ten_seconds_for_the_lock_or_the_other_ones_socket() {
    let forgotten = Place::new();
    let _locked = Locked::directory_of(&forgotten);
    let begun = Instant::now();
    let in_vain = forgotten.ask_to_take_over(&forgotten.configuration(CONFIG));

    let place = Place::new();
    let locked = Locked::directory_of(&place);
    let mut agent = place.ask_to_take_over(&place.configuration(CONFIG));
    locked.until_waited_for();
    drop(locked);
    agent.wait_for("does not listen yet, or ends; waiting for it");
    agent.wait_for("no weir runs in ");
    agent.listens();
    agent.stop();

    let place = Place::new();
    let locked = Locked::directory_of(&place);
    let agent = place.ask_to_take_over(&place.configuration(CONFIG));
    locked.until_waited_for();
    let listener = UnixListener::bind(socket(&place.state())).unwrap();
    let mut asked = Peer::new(listener.accept().unwrap().0);
    asked.until(HELLO);
    asked.say(REFUSED, "it is\nnoon");
    let (ended, _, log) = agent.end();
    assert_eq!(ended.code(), Some(1), "{log}");
    assert!(log.contains("the running process: it is\\nnoon"), "{log}");

    let (ended, _, log) = in_vain.end();
    assert_eq!(ended.code(), Some(1), "{log}");
    assert!(log.contains("another weir uses it"), "{log}");
    assert!(begun.elapsed() >= Duration::from_secs(10));
}

/// The socket passes to the next process with the lock: a process that connects to it is served by one or the other.
#[test]
fn processes_that_ask_are_served_in_turn_and_one_that_is_stopped_meanwhile_changes_nothing() {
    let place = Place::new();
    let (mut agent, admin) = with_samples(&place);
    let config = place.configuration(CONFIG);
    let between = Between::processes(&place.state());
    let next = place.ask_to_take_over(&config);
    let mut link = between.accept();
    link.pass_until(BEGIN);
    let log = stop_in_time(next);
    assert!(
        log.contains("SIGTERM: this process ends before it took over"),
        "{log}"
    );
    drop(link);
    agent.wait_for("hand-over failed; this process continues");
    agent.send("c:1|c");
    until("it receives", || received(&admin) == SAMPLES + 1);

    let mut first = Peer::connect(&place.state());
    first.hello(PROTOCOL, 1);
    first.until(SOCKETS_END);
    let mut processes: Vec<Agent> = (0..2).map(|_| place.ask_to_take_over(&config)).collect();
    until("both wait", || sockets_at(&socket(&place.state())) >= 4);
    drop(first);
    let (ended, _, log) = agent.end();
    assert!(ended.success(), "{log}");
    // One of them takes over from the other.
    until("one has ended", || {
        processes.iter_mut().any(|process| process.ended().is_some())
    });
    let at = processes.iter_mut().position(|process| process.ended().is_some());
    let (ended, _, log) = processes.swap_remove(at.unwrap()).end();
    assert!(
        ended.success() && log.contains("took over from this one"),
        "{log}"
    );
    let mut last = processes.remove(0);
    last.wait_for("hand-over: took over from weir ");
    last.serves();
    let state = &last.status()["state"];
    assert_eq!(state["hand_over"]["completed"], 2, "{state}");
    assert_eq!(state["samples_open"], SAMPLES + 1, "{state}");
    last.stop();
}

/// The running process is killed before it sends, or receives, the message `tag`. Returns the new process and its admin address.
fn killed_at(place: &Place, tag: u8) -> (Agent, String) {
    let (agent, _) = with_samples(place);
    let between = Between::processes(&place.state());
    let mut next = place.ask_to_take_over(&place.configuration(CONFIG));
    let mut link = between.accept();
    link.pass_until(tag);
    agent.signal("-KILL");
    agent.end();
    drop(link);
    next.listens();
    next.serves();
    let admin = next.admin.clone();
    // It has the sockets.
    next.send("c:1|c");
    until("it receives", || {
        let state = &status(&admin)["state"];
        state["samples_open"].as_u64() == state["samples_restored"].as_u64().map(|restored| restored + 1)
    });
    (next, admin)
}

fn starts_as_after_a_kill(tag: u8) {
    let place = Place::new();
    let (next, admin) = killed_at(&place, tag);
    let state = status(&admin)["state"].clone();
    let number = |key: &str| state[key].as_u64().unwrap();
    assert_eq!(number("kills"), 1, "{tag}: {state}");
    assert_eq!(
        number("samples_restored") + number("samples_lost"),
        SAMPLES,
        "{tag}: {state}"
    );
    let (_, log) = next.stop();
    assert!(log.contains("starting with its saved state"), "{tag}: {log}");
}

/// The new process runs already.
fn loses_nothing_once_the_new_one_starts() {
    let place = Place::new();
    let (next, admin) = killed_at(&place, RUNNING);
    let state = status(&admin)["state"].clone();
    assert_eq!(state["kills"], 0, "{state}");
    assert_eq!(state["hand_over"]["completed"], 1, "{state}");
    until("all are counted", || received(&admin) == SAMPLES + 1);
    next.stop();
}

#[test]
fn a_process_that_is_killed_at_any_step_of_a_hand_over_is_replaced() {
    let steps: [&[u8]; 3] = [
        &[HELLO, GREETING, SOCKETS, ADMIN, SOCKETS_END],
        &[BEGIN, AGAIN, STATE],
        &[END, COMMIT, GO],
    ];
    std::thread::scope(|scope| {
        for tags in steps {
            scope.spawn(move || tags.iter().for_each(|tag| starts_as_after_a_kill(*tag)));
        }
        loses_nothing_once_the_new_one_starts();
    });
}

/// As documented: the grace period and a second.
const GRACE: Duration = Duration::from_secs(5);
const STOP_MAX: Duration = Duration::from_secs(6);

fn with_grace(place: &Place) -> String {
    place.configuration(&format!("grace_period: {}s\n{CONFIG}", GRACE.as_secs()))
}

/// Stops the running process, and returns its log.
fn stop_in_time(agent: Agent) -> String {
    let begun = Instant::now();
    let (_, log) = agent.stop();
    let took = begun.elapsed();
    assert!(took < STOP_MAX, "{took:?}:\n{log}");
    log
}

/// One that was told to start may read the sockets: it is not waited for.
#[test]
fn a_stop_refuses_the_hand_over_in_progress_and_waits_for_no_new_process() {
    let to_the_end = |new: &mut Peer| {
        new.until(SOCKETS_END);
        new.say(BEGIN, "");
        new.until(END);
    };
    let steps: [&dyn Fn(&mut Peer); 4] = [
        &|new| drop(new.until(SOCKETS_END)),
        // The head of a message, in part.
        &|new| {
            new.until(SOCKETS_END);
            new.say_some(BEGIN);
        },
        &to_the_end,
        &|new| {
            to_the_end(new);
            new.say(COMMIT, "");
            new.until(GO);
        },
    ];
    for (number, step) in steps.iter().enumerate() {
        let place = Place::new();
        let agent = place.start(&with_grace(&place));
        agent.send("c:1|c");
        let mut new = Peer::connect(&place.state());
        new.hello(PROTOCOL, 1);
        step(&mut new);
        let log = stop_in_time(agent);
        if number == 3 {
            let said = "does not confirm that it runs; this one ends anyway";
            assert!(log.contains(said) && !log.contains("state saved"), "{log}");
            continue;
        }
        assert_eq!(new.until(REFUSED), "this process is stopping");
        assert!(
            log.contains("hand-over failed: this process is stopping"),
            "{log}"
        );
        assert_eq!(support::place::saved(&log), 1, "{log}");
    }
}

/// The refusal waits for a process that was suspended meanwhile.
#[test]
fn a_suspended_process_learns_that_the_running_one_has_stopped() {
    let place = Place::new();
    let config = with_grace(&place);
    let agent = place.start(&config);
    let between = Between::processes(&place.state());
    let next = place.ask_to_take_over(&config);
    let mut link = between.accept();
    let end = link.pass_until(END);
    next.signal("-STOP");
    link.new.send(&end);
    stop_in_time(agent);
    let refused = link.old.receive().unwrap();
    assert_eq!(refused.tag, REFUSED);
    link.new.send(&refused);
    drop(link);
    next.signal("-CONT");
    let (ended, _, log) = next.end();
    assert_eq!(ended.code(), Some(1), "{log}");
    assert!(log.contains("this process is stopping"), "{log}");
}
