//! The thread that reads the log, merges and commits.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_merge::{Owner, OwnerTurn, Settings};

use super::FleetLog;
use super::follower;
use super::report::{self, Totals};
use super::shared::{LOG, Shared};
use weir_system::failure::Failure;

/// Wait after a read without records.
const IDLE: Duration = Duration::from_millis(100);

/// Interval of commits without a closed bucket.
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);

/// Wait after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// Interval of the status without a request, and its largest share of time.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
const REPORT_PART: u32 = 20;

/// Interval of removing files that are no longer needed.
const PRUNE_INTERVAL: Duration = Duration::from_secs(60);

pub struct Reading {
    owner: Owner<FleetLog>,
    /// The outputs' threads, and their names.
    threads: Vec<JoinHandle<()>>,
    outputs: Vec<String>,
    shared: Arc<Shared>,
    totals: Totals,
    next_report: Instant,
    next_prune: Instant,
}

impl Reading {
    pub fn new(
        log: FleetLog,
        settings: Settings,
        threads: Vec<JoinHandle<()>>,
        outputs: Vec<String>,
        shared: Arc<Shared>,
    ) -> Self {
        let mut owner = Owner::new(log, settings);
        owner.set_commit_interval(COMMIT_INTERVAL.as_millis() as i64);
        Reading {
            owner,
            threads,
            outputs,
            shared,
            totals: Totals::default(),
            next_report: Instant::now(),
            next_prune: Instant::now() + PRUNE_INTERVAL,
        }
    }

    /// Runs until the process has to stop. Then it reads the records that have arrived and closes due buckets; open buckets are in the log
    /// for the next owner. Fails if an output cannot be started.
    pub fn run(mut self) -> Result<(), Failure> {
        while !self.shared.is_stopping() {
            let pause = self.turn()?;
            if !pause.is_zero() {
                std::thread::park_timeout(pause);
            }
        }
        self.owner.set_commit_interval(0);
        self.turn()?;
        follower::join(std::mem::take(&mut self.threads));
        self.report();
        Ok(())
    }

    /// Returns the wait before the next turn.
    fn turn(&mut self) -> Result<Duration, Failure> {
        let turned = self.owner.turn();
        self.shared.turned();
        let pause = match turned {
            Ok(turn) => self.after(turn),
            Err(error) => {
                self.shared.failed(LOG, &format!("log: {error}"));
                RETRY
            }
        };
        if let Some(failure) = self.shared.failure() {
            return Err(failure);
        }
        if Instant::now() >= self.next_report || self.shared.is_asked() && self.may_report() {
            self.report();
        }
        if Instant::now() >= self.next_prune {
            self.next_prune = Instant::now() + PRUNE_INTERVAL;
            self.prune();
        }
        Ok(pause)
    }

    fn after(&mut self, turn: OwnerTurn) -> Duration {
        self.totals.add(turn);
        match self.owner.refused().next() {
            None => self.shared.succeeded(LOG),
            Some((partition, error)) => {
                let reason = format!("log: partition {partition} is not merged: {error}");
                self.shared.failed(LOG, &reason);
            }
        }
        if turn.fenced > 0 {
            tracing::warn!("another process took over {} partitions of this one", turn.fenced);
        }
        if turn.commits > 0 {
            self.shared.committed(turn.commits);
        }
        match turn.behind {
            0 => IDLE,
            _ => Duration::ZERO,
        }
    }

    fn may_report(&self) -> bool {
        Instant::now() + REPORT_INTERVAL - IDLE >= self.next_report
    }

    fn report(&mut self) {
        let begun = Instant::now();
        self.shared.found_damage(self.owner.log().damage());
        match self.owner.log().torn_bytes() {
            Ok(bytes) => self.shared.found_torn(bytes),
            Err(error) => self.shared.failed(LOG, &format!("log: {error}")),
        }
        let report = report::report(&self.owner, &self.totals, self.shared.log_errors());
        self.shared.publish(report);
        let took = begun.elapsed();
        self.next_report = Instant::now() + REPORT_INTERVAL.max(took * REPORT_PART);
    }

    fn prune(&mut self) {
        let partitions: Vec<u32> = self.owner.merges().map(|(partition, _)| partition).collect();
        for partition in partitions {
            if let Err(error) = self.owner.log().prune(partition, &self.outputs) {
                let reason = format!("old files of the log cannot be removed: {error}");
                self.shared.failed(LOG, &reason);
            }
        }
    }
}
