//! The life of the agent across processes: what a start continues, what a running process saves, and what an end leaves.
//!
//! Nothing here reads a clock, opens a file or a socket, starts a thread or draws a random number: time is an argument, and files are
//! behind [`weir_system::disk::Disk`]. So [`simulation`] can run the same code through thousands of lives from a seed.

#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod resume;
#[cfg(test)]
mod simulation;

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

pub use resume::{LifeSettings, Resumed, StateSaver};

/// Where a process is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LifeState {
    #[default]
    Starting,
    Running,
    HandingOver,
    TakenOver,
    Stopping,
}

use LifeState::{HandingOver, Running, Starting, Stopping, TakenOver};

impl LifeState {
    /// All moves. A kill ends a process in any state.
    fn next(self) -> &'static [LifeState] {
        match self {
            Starting => &[Running],
            Running => &[HandingOver, Stopping],
            // Back if the other process fails.
            HandingOver => &[Running, TakenOver],
            TakenOver | Stopping => &[],
        }
    }
}

/// The life of this process.
#[derive(Debug, Default)]
pub struct Life {
    state: Mutex<LifeState>,
    moved: Condvar,
}

impl Life {
    pub fn state(&self) -> LifeState {
        *self.lock()
    }

    /// Everything is there.
    pub fn run(&self) {
        let moved = Life::enter(&mut self.lock(), Running);
        debug_assert_eq!(moved, Ok(()), "a process starts once");
    }

    /// Begins to hand over. `Err`: the state in which that is impossible.
    pub fn hand_over(&self) -> Result<HandOverTurn<'_>, LifeState> {
        Life::enter(&mut self.lock(), HandingOver)?;
        Ok(HandOverTurn { life: self })
    }

    /// Waits for the end of a hand-over, then begins to stop. `Err`: the state in which that is impossible.
    pub fn stop(&self) -> Result<(), LifeState> {
        let waited = self.moved.wait_while(self.lock(), |state| *state == HandingOver);
        Life::enter(&mut waited.unwrap_or_else(PoisonError::into_inner), Stopping)
    }

    fn enter(state: &mut LifeState, next: LifeState) -> Result<(), LifeState> {
        match state.next().contains(&next) {
            true => *state = next,
            false => return Err(*state),
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, LifeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A hand-over. At its end the process runs again, unless the other one has taken over.
#[derive(Debug)]
pub struct HandOverTurn<'a> {
    life: &'a Life,
}

impl HandOverTurn<'_> {
    pub fn taken_over(self) {
        let moved = Life::enter(&mut self.life.lock(), TakenOver);
        debug_assert_eq!(moved, Ok(()), "nothing else moves meanwhile");
    }
}

impl Drop for HandOverTurn<'_> {
    fn drop(&mut self) {
        // It cannot after it was taken over.
        let _ = Life::enter(&mut self.life.lock(), Running);
        self.life.moved.notify_all();
    }
}

/// Rules of the life that once were missing. A test takes one out, to see that the simulation finds its absence.
pub mod fixes {
    /// A rule.
    #[cfg_attr(not(test), allow(dead_code, reason = "a test takes them out"))]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Rule {
        /// A bucket of which something may have left the process does not continue.
        BegunBucketsEnd,
        /// A worker stores the end of a bucket before it hands over a part of it.
        EndsAreStoredFirst,
        /// A small file that cannot be read costs only what is in it.
        OtherFilesCount,
        /// A stop looks whether there is room for the state, as long as it can do something else.
        RoomIsTakenFirst,
        /// A number whose points have left with an ended bucket is known, though no checkpoint has it.
        NotedNumbersCount,
        /// A number whose points died with the process is not known.
        NumbersCountWithTheirPoints,
        /// A checkpoint has the numbers of the points in it.
        CheckpointsHaveNumbers,
        /// A checkpoint has the points that leave with the bucket and have their own timestamp.
        CheckpointsHaveTimestampedPoints,
        /// A process hands over once its own files say what a kill leaves.
        HandOversWaitForOwnFiles,
        /// The state at a stop has the numbers.
        StopsKeepNumbers,
        /// A stop ends the wait for the other process of a hand-over.
        StopsEndHandOvers,
        /// A new process takes the place of one that died while it handed over.
        DeadPeersAreReplaced,
    }

    /// Whether a test has taken the rule out.
    #[cfg(test)]
    pub fn lacks(rule: Rule) -> bool {
        OUT.with(|out| out.get() == Some(rule))
    }

    #[cfg(not(test))]
    pub fn lacks(_: Rule) -> bool {
        false
    }

    #[cfg(test)]
    thread_local! {
        static OUT: std::cell::Cell<Option<Rule>> = const { std::cell::Cell::new(None) };
    }

    /// Takes a rule out of all lives on this thread, or puts it back.
    #[cfg(test)]
    pub fn take_out(rule: Option<Rule>) {
        OUT.with(|out| out.set(rule));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [(LifeState, &str); 5] = [
        (
            Starting,
            "reads what the previous process left, or takes it over from the running one; receives nothing",
        ),
        (
            Running,
            "receives, delivers, reloads, and saves its state every second",
        ),
        (
            HandingOver,
            "sends its sockets and its state to another process; still receives until `Again`",
        ),
        (
            TakenOver,
            "the other process receives; sends the history, answers open requests, and ends",
        ),
        (
            Stopping,
            "delivers its queues, reads what has arrived, saves its state, and ends",
        ),
    ];

    #[test]
    fn the_page_has_the_states() {
        let mut table = "| state | the process | next |\n| --- | --- | --- |\n".to_owned();
        for (state, what) in ALL {
            let next = state.next().iter().map(|next| format!("{next:?}"));
            let next = next.collect::<Vec<_>>().join(", ");
            table += &format!("| {state:?} | {what} | {next} |\n");
        }
        let page = include_str!("../../../../docs/restart.md");
        assert!(page.contains(&table), "docs/restart.md must have:\n{table}");
    }

    #[test]
    fn a_stop_waits_for_the_end_of_a_hand_over() {
        let ends: [fn(HandOverTurn<'_>); 2] = [|turn| drop(turn), |turn| turn.taken_over()];
        for (end, stopped) in ends.into_iter().zip([Ok(()), Err(TakenOver)]) {
            let life = Life::default();
            assert_eq!(life.hand_over().err(), Some(Starting));
            life.run();
            let turn = life.hand_over().unwrap();
            assert_eq!(life.hand_over().err(), Some(HandingOver));
            std::thread::scope(|scope| {
                let stop = scope.spawn(|| life.stop());
                end(turn);
                assert_eq!(stop.join().unwrap(), stopped);
            });
            // Neither has a way back.
            assert_eq!(life.hand_over().err(), Some(life.state()));
            assert_eq!(life.stop(), Err(life.state()));
        }
    }
}
