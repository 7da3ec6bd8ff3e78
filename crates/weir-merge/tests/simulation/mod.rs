//! Simulates agents, a log, owners, clocks and faults in one thread with one clock: thousands of schedules, each from a seed. In each, no
//! record is merged twice, every missing record is counted, and the ledger closes.
//!
//! A failing schedule prints its seed. `WEIR_SIMULATION_SEED=N` runs only that one, `WEIR_SIMULATION_SCHEDULES=N` runs more;
//! with `WEIR_SIMULATION_TRACE` they print what happens.

// The crate may do none of this. Its tests take a seed from outside and print a failing one.
#![allow(clippy::disallowed_methods, clippy::disallowed_macros)]

mod agents;
mod cases;
mod check;
mod outputs;
mod random;
mod schedule;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Schedules of a test run.
const SCHEDULES: u64 = 300;

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{variable}={value}: a number is wanted")),
    )
}

/// Case 21 of many: the generator knows the truth.
#[test]
fn case_21_the_ledger_closes_in_every_schedule() {
    if let Some(seed) = number("WEIR_SIMULATION_SEED") {
        return schedule::run(seed);
    }
    let first = std::time::UNIX_EPOCH
        .elapsed()
        .map_or(0, |now| now.as_nanos() as u64)
        >> 8;
    for seed in first..first + number("WEIR_SIMULATION_SCHEDULES").unwrap_or(SCHEDULES) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| schedule::run(seed))) {
            eprintln!("this schedule failed: WEIR_SIMULATION_SEED={seed}");
            resume_unwind(panic);
        }
    }
}
