//! The thread that reads the log, merges and commits.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use weir_merge::{CommitError, Owner, Settings, Turn};

use super::report::{self, Totals};
use super::sending::Sender;
use super::shared::Shared;
use super::{FleetLog, unix_ms};
use crate::failure::Failure;

/// How long to wait when there was nothing to read.
const IDLE: Duration = Duration::from_millis(100);

/// How long to wait after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// How often the status is written without a request, and the share of time that it may take at most.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
const REPORT_PART: u32 = 20;

/// How often files that are no longer needed are removed.
const PRUNE_INTERVAL: Duration = Duration::from_secs(60);

pub struct Reading {
    owner: Owner<FleetLog>,
    sender: Sender,
    shared: Arc<Shared>,
    totals: Totals,
    next_report: Instant,
    next_prune: Instant,
}

impl Reading {
    pub fn new(log: FleetLog, settings: Settings, sender: Sender, shared: Arc<Shared>) -> Self {
        Reading {
            owner: Owner::new(log, settings),
            sender,
            shared,
            totals: Totals::default(),
            next_report: Instant::now(),
            next_prune: Instant::now() + PRUNE_INTERVAL,
        }
    }

    /// Until the process is to end. Then what has arrived is read and what is due is closed; what is open is in the log, for the
    /// next owner. An error: an output could not be started.
    pub fn run(mut self) -> Result<(), Failure> {
        while !self.shared.is_stopping() {
            let pause = self.turn()?;
            if !pause.is_zero() {
                std::thread::park_timeout(pause);
            }
        }
        self.turn()?;
        self.sender.stop();
        self.note_sent();
        self.report();
        Ok(())
    }

    /// Returns how long to wait for the next one.
    fn turn(&mut self) -> Result<Duration, Failure> {
        let turned = self.owner.turn();
        self.shared.turned_at.store(unix_ms(), Ordering::Relaxed);
        let pause = match turned {
            Ok(turn) => self.after(turn),
            Err(error) => {
                self.shared.failed(&format!("log: {error}"));
                RETRY
            }
        };
        let held = self.owner.merges().map(|(partition, _)| partition).collect();
        self.sender.follow(held, self.owner.log())?;
        if Instant::now() >= self.next_report || self.shared.is_asked() && self.may_report() {
            self.note_sent();
            self.report();
        }
        if Instant::now() >= self.next_prune {
            self.next_prune = Instant::now() + PRUNE_INTERVAL;
            self.prune();
        }
        Ok(pause)
    }

    fn after(&mut self, turn: Turn) -> Duration {
        self.totals.add(turn);
        self.shared.succeeded();
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
        let report = report::report(&self.owner, &self.totals, self.shared.log_errors());
        self.shared.publish(report);
        let took = begun.elapsed();
        self.next_report = Instant::now() + REPORT_INTERVAL.max(took * REPORT_PART);
    }

    /// Notes in the log what all outputs have, for the next owner of a partition.
    fn note_sent(&mut self) {
        for (partition, before) in self.sender.news() {
            match self.owner.note_results_sent(partition, before) {
                // Another process owns it, and continues from what was noted last.
                Ok(()) | Err(CommitError::Fenced) => {}
                Err(CommitError::Log(error)) => self.shared.failed(&format!("log: {error}")),
            }
        }
    }

    fn prune(&mut self) {
        let partitions: Vec<u32> = self.owner.merges().map(|(partition, _)| partition).collect();
        for partition in partitions {
            let Some(read) = self.sender.read_by_all(partition) else {
                continue;
            };
            if let Err(error) = self.owner.log().prune(partition, read) {
                self.shared
                    .failed(&format!("old files of the log cannot be removed: {error}"));
            }
        }
    }
}
