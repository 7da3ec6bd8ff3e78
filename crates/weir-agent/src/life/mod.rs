//! The life of the agent across processes: what a start continues, what a running process saves, and what an end leaves.
//!
//! Nothing here reads a clock, opens a file or a socket, starts a thread or draws a random number: time is an argument, and files are
//! behind [`crate::state::disk::Disk`]. So [`simulation`] can run the same code through thousands of lives from a seed.

#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod resume;
#[cfg(test)]
mod simulation;

pub use resume::{LifeSettings, Resumed, StateSaver};

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
