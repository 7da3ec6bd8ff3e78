//! The messages between two processes when one takes over from the other.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use crate::life::fixes::{Rule, lacks};
use weir_status::bad_bytes::text;

/// The socket in the state directory.
pub fn socket_path(directory: &Path) -> PathBuf {
    directory.join("hand-over")
}

/// The version of the protocol.
pub const PROTOCOL: u32 = 3;

/// Time limit of a step, with all its messages.
pub const STEP_MAX: Duration = Duration::from_secs(10);

/// Time limit for the new process to start everything that can run beside the old one. The old one may hand over to another process
/// before it answers.
pub const PREPARATION_MAX: Duration = Duration::from_secs(60);

/// Time limit for the old process to send its state, which takes it several steps.
pub const STATE_MAX: Duration = Duration::from_secs(40);

/// Time limit of a request for a new process: it prepares itself and takes over.
pub const UPGRADE_MAX: Duration = Duration::from_secs(120);

/// Time limit of the confirmation that the new process reads, for a process that was asked to stop.
const CONFIRMATION_MAX: Duration = Duration::from_millis(500);

/// Maximum size of a body before the versions are known.
pub const GREETING_BYTES_MAX: u64 = 64 << 10;

/// The side of a connection that sends a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The running process.
    Old,
    /// The process that takes over, or `weir upgrade`.
    New,
}
use Side::{New, Old};

impl Side {
    pub fn other(self) -> Side {
        match self {
            Old => New,
            New => Old,
        }
    }
}

/// The messages in their order: number, senders, content, and what may follow.
macro_rules! messages {
    ($($message:ident = $number:literal $senders:expr, $content:literal => [$($next:ident),*];)*) => {
        /// A message. Its number is its first byte on the connection.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum HandOverMessage {
            $(#[doc = $content] $message = $number,)*
        }

        impl HandOverMessage {
            const ALL: &[HandOverMessage] = &[$(HandOverMessage::$message),*];

            fn senders(self) -> &'static [Side] {
                match self {
                    $(HandOverMessage::$message => &$senders,)*
                }
            }

            fn next(self) -> &'static [HandOverMessage] {
                match self {
                    $(HandOverMessage::$message => &[$(HandOverMessage::$next),*],)*
                }
            }

            #[cfg(test)]
            fn content(self) -> &'static str {
                match self {
                    $(HandOverMessage::$message => $content,)*
                }
            }
        }
    };
}

messages! {
    Hello = 1 [New], "versions, and whether it takes over or requests a new process" => [Greeting, Done, Refused];
    Greeting = 2 [Old], "versions, and the process id" => [Sockets, Admin, SocketsEnd, Refused];
    Sockets = 4 [Old], "a listener and its sockets" => [Sockets, Admin, SocketsEnd, Refused];
    Admin = 5 [Old], "the sockets of the admin address" => [SocketsEnd, Refused];
    SocketsEnd = 6 [Old], "those were all sockets" => [Begin, Refused];
    Begin = 7 [New], "everything that needs no state is ready" => [Again, Refused];
    Again = 8 [Old], "connections and state follow, in place of those sent before"
        => [Again, Connections, State, Refused];
    Connections = 9 [Old], "connections with their partial frames" => [Again, Connections, State, Refused];
    State = 10 [Old], "a file in the format of `state`" => [End, Refused];
    End = 11 [Old], "the start of the pause, the lock of the directory, and the socket `hand-over`" => [Commit, Refused];
    Commit = 12 [New], "it has read all of it" => [Go, Refused];
    Go = 13 [Old], "it does not read the sockets any more" => [Running, Refused];
    Running = 14 [New], "it reads the sockets; whether it wants the history" => [Points, Books, HistoryEnd];
    Points = 16 [Old], "a part of the history of points" => [Points, Books, HistoryEnd];
    Books = 17 [Old], "a part of the history of the books" => [Points, Books, HistoryEnd];
    HistoryEnd = 18 [Old], "the end of both" => [];
    Done = 15 [Old], "the id of the new process, for the command that requested it" => [];
    Refused = 3 [Old, New], "the reason" => [];
}

impl HandOverMessage {
    /// `None`: there is no such message.
    pub fn of(number: u8) -> Option<HandOverMessage> {
        Self::ALL.iter().copied().find(|message| *message as u8 == number)
    }

    /// Whether this side may send it after another message, or as the first one.
    pub fn may_follow(self, last: Option<HandOverMessage>, from: Side) -> bool {
        let next = last.map_or(FIRST, HandOverMessage::next);
        next.contains(&self) && self.senders().contains(&from)
    }
}

/// Why a side gets no further message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// The other process has ended.
    Ended,
    /// It does not answer in time, or this one was asked to stop.
    TimedOut,
    /// It has refused, or broken the order.
    Refused,
}

/// The way out of a hand-over that breaks off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WayOut {
    /// The running process continues, or stops if it was asked to.
    Continue,
    /// The running process ends: the other one may read the sockets by now, and two processes must not.
    End,
    /// The new process waits for the lock of the directory, and starts with what the other one has saved. What it has received is not
    /// used: the other one may have continued before its end.
    StartAlone,
    /// The new process ends with an error.
    GiveUp,
}

impl WayOut {
    /// `last`: the last message of either side.
    pub fn of(side: Side, last: Option<HandOverMessage>, silence: Silence) -> WayOut {
        match (side, silence) {
            (Old, Silence::TimedOut) if last == Some(HandOverMessage::Go) => WayOut::End,
            (Old, _) => WayOut::Continue,
            (New, Silence::Ended) if !lacks(Rule::DeadPeersAreReplaced) => WayOut::StartAlone,
            (New, _) => WayOut::GiveUp,
        }
    }
}

/// Longest wait of a process that was asked to stop. Once it has told the other one to read, it waits a moment for the confirmation.
pub fn patience_after_stop(last: Option<HandOverMessage>) -> Duration {
    match last {
        Some(HandOverMessage::Commit | HandOverMessage::Go) => CONFIRMATION_MAX,
        _ if lacks(Rule::StopsEndHandOvers) => PREPARATION_MAX,
        _ => Duration::ZERO,
    }
}

/// A process of another user is refused before it says anything.
const FIRST: &[HandOverMessage] = &[HandOverMessage::Hello, HandOverMessage::Refused];

/// Body of [`HandOverMessage::Running`] from a new process with a history.
pub const WANTS_HISTORY: &[u8] = b"history";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    #[serde(deserialize_with = "visible")]
    pub weir: String,
    pub protocol: u32,
    /// The newest version of state that it can read.
    pub state: u8,
    pub asks: HandOverRequest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandOverRequest {
    TakeOver,
    /// Start the program on disk and let it take over.
    Upgrade,
}

impl Hello {
    pub fn new(asks: HandOverRequest) -> Hello {
        Hello {
            weir: env!("CARGO_PKG_VERSION").into(),
            protocol: PROTOCOL,
            state: crate::state::VERSION,
            asks,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    #[serde(deserialize_with = "visible")]
    pub weir: String,
    pub protocol: u32,
    pub state: u8,
    pub pid: u32,
}

/// Text of the other process as visible characters on one line: it is logged.
fn visible<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let found = String::deserialize(deserializer)?;
    Ok(text(found.as_bytes()))
}

/// One listener; its sockets are attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandedListener {
    /// The address as configured.
    pub address: String,
    /// Opened by a service manager's socket unit.
    pub of_unit: bool,
}

/// One of the attached connections, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandedConnection {
    /// The listener's address as configured.
    pub address: String,
    /// Length-prefixed frames if true, otherwise lines.
    pub lengths: bool,
    pub partial: Vec<u8>,
    pub skipping: bool,
}

/// Progress of a hand-over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Monotonic nanoseconds at which the first worker stopped reading.
    pub since: u64,
    pub connections: u64,
    /// TLS connections: they end with the old process.
    pub encrypted: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_the_messages() {
        let names = |messages: &[HandOverMessage]| {
            let named = messages.iter().map(|message| format!("{message:?}"));
            named.collect::<Vec<_>>().join(", ")
        };
        let mut table =
            "| message | number | from | content | what may follow |\n| --- | --- | --- | --- | --- |\n"
                .to_owned();
        for message in HandOverMessage::ALL {
            let from = match message.senders() {
                [Old] => "old",
                [New] => "new",
                _ => "either",
            };
            table += &format!(
                "| {message:?} | {} | {from} | {} | {} |\n",
                *message as u8,
                message.content(),
                names(message.next())
            );
        }
        let page = include_str!("../../../docs/restart.md");
        assert!(page.contains(&table), "docs/restart.md must have:\n{table}");
    }

    #[test]
    fn numbers_are_known_and_different() {
        for message in HandOverMessage::ALL {
            assert_eq!(HandOverMessage::of(*message as u8), Some(*message));
        }
        assert_eq!([0, 19, 255].map(HandOverMessage::of), [None; 3]);
    }

    /// Every way through the order ends, and nothing follows an end.
    #[test]
    fn every_message_can_be_reached_and_leads_to_an_end() {
        let reached = |from: &[HandOverMessage]| {
            let mut found = from.to_vec();
            let mut next = 0;
            while let Some(message) = found.get(next).copied() {
                next += 1;
                for follower in message.next() {
                    if !found.contains(follower) {
                        found.push(*follower);
                    }
                }
            }
            found
        };
        let all = reached(FIRST);
        assert!(HandOverMessage::ALL.iter().all(|message| all.contains(message)));
        for message in HandOverMessage::ALL {
            let ends = |message: &HandOverMessage| message.next().is_empty();
            assert!(reached(&[*message]).iter().any(ends), "{message:?}");
        }
    }

    /// Both processes of a hand-over in every order of messages, with faults at any of them.
    mod both_sides {
        use super::*;
        use crate::life::fixes::take_out;
        use std::collections::{BTreeSet, VecDeque};

        /// Faults in one hand-over.
        const FAULTS_MAX: u8 = 2;
        /// Messages on their way to a process, which may be slow.
        const SENT_MAX: usize = 2;

        #[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
        struct Process {
            is_dead: bool,
            /// By a fault.
            is_killed: bool,
            /// It does nothing any more, and keeps what it has.
            hangs: bool,
            reads: bool,
            /// It has left the connection.
            is_out: bool,
            /// The number of the last message of either side, as far as it knows.
            last: u8,
            inbox: VecDeque<u8>,
        }

        impl Process {
            fn last(&self) -> Option<HandOverMessage> {
                HandOverMessage::of(self.last)
            }

            fn die(&mut self) {
                (self.is_dead, self.is_out, self.reads) = (true, true, false);
            }

            fn kill(&mut self) {
                self.die();
                self.is_killed = true;
            }

            fn acts(&self) -> bool {
                !self.is_out && !self.hangs
            }
        }

        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
        struct Both {
            old: Process,
            new: Process,
            is_asked_to_stop: bool,
            faults: u8,
        }

        impl Both {
            fn sides(&mut self, side: Side) -> (&mut Process, &mut Process) {
                match side {
                    Old => (&mut self.old, &mut self.new),
                    New => (&mut self.new, &mut self.old),
                }
            }

            /// This side leaves the connection as production does.
            fn leave(&mut self, side: Side, silence: Silence) {
                let is_asked_to_stop = self.is_asked_to_stop;
                let (own, other) = self.sides(side);
                own.is_out = true;
                match WayOut::of(side, own.last(), silence) {
                    WayOut::Continue => {
                        other.inbox.push_back(HandOverMessage::Refused as u8);
                        match is_asked_to_stop {
                            true => own.die(),
                            false => own.reads = true,
                        }
                    }
                    // The lock of a process that lives is not free.
                    WayOut::StartAlone if other.is_dead => own.reads = true,
                    WayOut::StartAlone | WayOut::End | WayOut::GiveUp => own.die(),
                }
            }

            /// All that can happen to this side without a fault.
            fn steps(&self, side: Side) -> Vec<Both> {
                let mut next = Vec::new();
                let (own, other) = match side {
                    Old => (&self.old, &self.new),
                    New => (&self.new, &self.old),
                };
                if !own.acts() {
                    return next;
                }
                let mut with = |change: &dyn Fn(&mut Both)| {
                    let mut changed = self.clone();
                    change(&mut changed);
                    next.push(changed);
                };
                if let Some(number) = own.inbox.front() {
                    let received = HandOverMessage::of(*number).unwrap();
                    assert!(received.may_follow(own.last(), side.other()), "{self:?}");
                    with(&|both| both.receive(side, received));
                    return next;
                }
                // A stop goes before anything that it can still say.
                let patience = patience_after_stop(own.last());
                let is_stopped =
                    side == Old && self.is_asked_to_stop && own.last() != Some(HandOverMessage::Go);
                if is_stopped && patience <= CONFIRMATION_MAX {
                    with(&|both| both.leave(side, Silence::TimedOut));
                    return next;
                }
                for message in own.last().map_or(FIRST, HandOverMessage::next) {
                    let is_wanted = !matches!(message, HandOverMessage::Refused | HandOverMessage::Done);
                    if is_wanted && message.senders().contains(&side) && other.inbox.len() < SENT_MAX {
                        with(&|both| both.send(side, *message));
                    }
                }
                if other.is_out {
                    with(&|both| both.leave(side, Silence::Ended));
                } else if other.hangs {
                    with(&|both| both.leave(side, Silence::TimedOut));
                }
                next
            }

            fn send(&mut self, side: Side, message: HandOverMessage) {
                let (own, other) = self.sides(side);
                own.last = message as u8;
                if message == HandOverMessage::Again {
                    own.reads = false;
                }
                if message == HandOverMessage::Running {
                    own.is_out = true;
                }
                if !other.is_out {
                    other.inbox.push_back(message as u8);
                }
            }

            fn receive(&mut self, side: Side, message: HandOverMessage) {
                let (own, _) = self.sides(side);
                own.inbox.pop_front();
                own.last = message as u8;
                match message {
                    HandOverMessage::Go => own.reads = true,
                    // The history, which follows, changes nothing here.
                    HandOverMessage::Running => own.die(),
                    HandOverMessage::Refused => self.leave(side, Silence::Refused),
                    _ => {}
                }
            }

            fn faults(&self) -> Vec<Both> {
                let faults: [fn(&mut Both); 5] = [
                    |both| both.old.kill(),
                    |both| both.new.kill(),
                    |both| both.old.hangs = true,
                    |both| both.new.hangs = true,
                    |both| both.is_asked_to_stop = true,
                ];
                let with = |fault: fn(&mut Both)| {
                    let mut changed = self.clone();
                    fault(&mut changed);
                    changed.faults += 1;
                    changed
                };
                faults.into_iter().map(with).collect()
            }

            /// `ends`: nothing further happens by itself.
            fn check(&self, ends: bool) -> Result<(), String> {
                let (old, new) = (&self.old, &self.new);
                if old.reads && new.reads {
                    return Err(format!("two processes read: {self:?}"));
                }
                let waits_for_long = patience_after_stop(old.last()) > CONFIRMATION_MAX;
                if self.is_asked_to_stop && old.acts() && new.hangs && waits_for_long {
                    return Err(format!("a stop waits for a process that hangs: {self:?}"));
                }
                // A process that hangs may go on.
                let new_may_read = new.hangs && (old.is_killed || old.last() == Some(HandOverMessage::Go));
                let is_excused = self.is_asked_to_stop || old.hangs || new_may_read;
                let has_handed_over = old.last() == Some(HandOverMessage::Running);
                let are_gone = new.is_killed && (old.is_killed || has_handed_over);
                if ends && !old.reads && !new.reads && !is_excused && !are_gone {
                    return Err(format!("nobody reads: {self:?}"));
                }
                Ok(())
            }
        }

        /// Goes through all orders. `Err`: the first that is wrong.
        fn all_orders() -> Result<usize, String> {
            let reads = Process {
                reads: true,
                ..Process::default()
            };
            let first = Both {
                old: reads,
                new: Process::default(),
                is_asked_to_stop: false,
                faults: 0,
            };
            let (mut seen, mut open) = (BTreeSet::new(), vec![first]);
            while let Some(both) = open.pop() {
                if !seen.insert(both.clone()) {
                    continue;
                }
                let steps: Vec<Both> = [Old, New].into_iter().flat_map(|side| both.steps(side)).collect();
                both.check(steps.is_empty())?;
                open.extend(steps);
                if both.faults < FAULTS_MAX {
                    open.extend(both.faults());
                }
            }
            Ok(seen.len())
        }

        #[test]
        fn one_process_reads_in_every_order_unless_both_are_gone() {
            let orders = all_orders().unwrap();
            assert!(orders > 1000, "{orders}");
        }

        #[test]
        fn a_rule_that_is_taken_out_is_missed() {
            for (rule, found) in [
                (Rule::StopsEndHandOvers, "a stop waits for a process that hangs"),
                (Rule::DeadPeersAreReplaced, "nobody reads"),
            ] {
                take_out(Some(rule));
                let wrong = all_orders();
                take_out(None);
                let reason = wrong.expect_err("an order that is wrong");
                assert!(reason.starts_with(found), "{rule:?}: {reason}");
            }
        }
    }
}
