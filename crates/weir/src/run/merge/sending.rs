//! The outputs of a merge while this process sends: started at their stored positions, and stopped together.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use weir_merge::Log as _;
use weir_output::delivery::SavedStates;

use super::correction_policy::CorrectionPolicy;
use super::follower::Follower;
use super::place::{self, PositionFile, StoredPosition};
use super::rounds::Rounds;
use super::shared::{OutputProgress, Sending, Shared};
use super::{FleetLog, open, unix_ms};
use crate::budget::Budget;
use crate::config::Config;
use crate::failure::Failure;
use crate::run::outputs::{Output, Outputs};
use crate::run::resume::Resumed;
use crate::run::rules::Fixed;

pub struct Sender {
    pub config: Config,
    pub budget: Budget,
    /// Directory of the outputs' positions.
    pub directory: PathBuf,
    pub handle: Handle,
    pub shared: Arc<Shared>,
    pub held: BTreeSet<u32>,
    pub running: Option<(Sending, Vec<JoinHandle<()>>)>,
    /// Progress of stopped outputs, until it is stored.
    pub ended: Vec<Arc<OutputProgress>>,
    /// The progress that the log has.
    pub noted: BTreeMap<u32, u64>,
}

impl Sender {
    /// Sends the results of these partitions. Sums belong to partitions: with other partitions, outputs that add up start from zero, which
    /// their receivers see as a restart. Fails if an output cannot be started.
    pub fn follow(&mut self, held: BTreeSet<u32>, log: &mut FleetLog) -> Result<(), Failure> {
        if self.held == held {
            return Ok(());
        }
        if self.running.is_some() {
            tracing::info!("the partitions of this process have changed: it sends the results of {held:?}");
            self.stop();
        }
        let mut noted = BTreeMap::new();
        for partition in &held {
            match log.results_sent(*partition) {
                Ok(before) => drop(noted.insert(*partition, before)),
                // The next turn tries again.
                Err(error) => {
                    self.shared.failed(&format!("log: {error}"));
                    return Ok(());
                }
            }
        }
        if !held.is_empty() {
            self.start(&noted)?;
        }
        self.held = held;
        Ok(())
    }

    /// `noted`: the last process's position in each partition, or slightly less.
    fn start(&mut self, noted: &BTreeMap<u32, u64>) -> Result<(), Failure> {
        let at = |path: &Path| {
            let path = path.display().to_string();
            move |error: io::Error| Failure::runtime(format!("{path}: {error}"))
        };
        place::directory(&self.directory).map_err(at(&self.directory))?;
        let mut written = BTreeMap::new();
        for output in &self.config.outputs {
            let found = PositionFile::new(&self.directory, &output.name).read();
            let found = found.map_err(at(&self.directory.join(&output.name)))?;
            written.insert(output.name.clone(), found.unwrap_or_default().at(noted));
        }
        let outputs = self.outputs(&mut written)?;
        let mut sending = Sending {
            outputs: outputs.clone(),
            sent: Vec::new(),
        };
        let mut threads = Vec::new();
        for (name, output_type, output) in outputs.each() {
            let policy = CorrectionPolicy::of(output_type, &output);
            let sent = Arc::new(OutputProgress::new(&name, policy.repeats_are()));
            sending.sent.push(sent.clone());
            let written = written.remove(&name).unwrap_or_default();
            let follower = self.follower(name.clone(), output, policy, written, sent, noted)?;
            let thread = std::thread::Builder::new().name(format!("to {name}"));
            let started = thread.spawn(move || follower.run());
            threads.push(started.map_err(|error| Failure::thread(&error))?);
        }
        self.shared.set_sending(Some(sending.clone()));
        self.running = Some((sending, threads));
        Ok(())
    }

    /// Each output continues with its sums at its position.
    fn outputs(&self, written: &mut BTreeMap<String, StoredPosition>) -> Result<Arc<Outputs>, Failure> {
        let newest = written.values().map(|written| written.at_ms).max().unwrap_or(0);
        let away = Duration::from_millis((unix_ms() - newest).max(0) as u64);
        let sums = written.iter_mut();
        let sums = sums.filter_map(|(name, written)| Some((name.clone(), written.sums.take()?)));
        let saved = Arc::new(SavedStates::new(sums.collect(), away));
        let fixed = Fixed::new(&self.config);
        let handle = self.handle.clone();
        let agent = Resumed::default().publisher()?;
        let outputs = Outputs::start(
            &self.config,
            &self.budget,
            &fixed.expansion,
            handle,
            saved.clone(),
            agent,
        )?;
        for error in saved.finish() {
            let (output, reason) = (error.output, error.reason);
            tracing::warn!("output {output} starts its sums from zero: {reason}");
        }
        Ok(outputs)
    }

    fn follower(
        &self,
        name: String,
        output: Output,
        policy: CorrectionPolicy,
        written: StoredPosition,
        sent: Arc<OutputProgress>,
        noted: &BTreeMap<u32, u64>,
    ) -> Result<Follower, Failure> {
        let merge = self.config.merge.as_ref();
        let merge = merge.ok_or_else(|| Failure::runtime("no merge is configured"))?;
        Ok(Follower {
            log: open(&merge.log)?,
            rounds: Rounds::new(
                merge.grace.as_secs() as i64,
                noted.keys().copied(),
                written.position.clone(),
            ),
            place: PositionFile::new(&self.directory, &name),
            name,
            output,
            policy,
            written,
            suffix_mask: Fixed::new(&self.config).default_mask(&self.config),
            handle: self.handle.clone(),
            sent,
            shared: self.shared.clone(),
            grace: self.config.running.grace_period,
            sequence: 0,
        })
    }

    /// Every output finishes its current bucket; the next process gives it the others.
    pub fn stop(&mut self) {
        let Some((sending, threads)) = self.running.take() else {
            return;
        };
        let deadline = Instant::now() + self.config.running.grace_period;
        sending.sent.iter().for_each(|sent| sent.stop());
        sending.outputs.keep_state();
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread that sends results to an output panicked");
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        for (_, _, output) in sending.outputs.each() {
            if let Output::Delivered(_, delivery) = output {
                self.handle.block_on(delivery.shutdown(left));
            }
        }
        self.shared.set_sending(None);
        self.held.clear();
        self.ended = sending.sent;
    }

    /// For each partition, the result up to which every output has delivered, if that has changed.
    pub fn news(&mut self) -> Vec<(u32, u64)> {
        let sent = match &self.running {
            Some((sending, _)) => sending.sent.clone(),
            None => std::mem::take(&mut self.ended),
        };
        let mut news = Vec::new();
        let partitions = sent.first().map(|sent| sent.partitions());
        for partition in partitions.into_iter().flatten() {
            let before = sent.iter().map(|sent| sent.next(partition)).min().unwrap_or(0);
            if self.noted.insert(partition, before) != Some(before) {
                news.push((partition, before));
            }
        }
        news
    }

    /// The result up to which every output has read a partition; `None`: an output's position is unknown, or there are no outputs.
    pub fn read_by_all(&self, partition: u32) -> Option<u64> {
        let (sending, _) = self.running.as_ref()?;
        sending.sent.iter().map(|sent| sent.next(partition)).min()
    }
}
