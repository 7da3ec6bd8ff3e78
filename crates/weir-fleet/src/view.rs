//! The admin address's view of a running merge.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use weir_output::settings::PrometheusSettings;

use super::shared::Shared;
use weir_admin::{AdminSource, Exposition, NotReady, ResponseFuture, ScrapeRequest};
use weir_agent::budget::{Budget, Share};
use weir_agent::ledger;
use weir_agent::pipeline::PipelineState;
use weir_process::health;
use weir_process::scrape::ScrapeOutput;
use weir_status::fleet::FleetCounter;
use weir_status::status::Reloaded;
use weir_status::status::{MemoryShare, ProcessStatus, ReloadStatus, Status};
use weir_system::sandbox::SandboxStatus;

pub struct View {
    pub shared: Arc<Shared>,
    pub budget: Budget,
    pub hostname: String,
    pub started: u64,
    pub sandbox: SandboxStatus,
    pub stopping: AtomicBool,
    /// Shows the merge's own numbers if this process has no metrics of the fleet.
    own: ScrapeOutput,
}

impl View {
    pub fn new(shared: Arc<Shared>, budget: Budget, hostname: String, sandbox: SandboxStatus) -> Self {
        let settings = PrometheusSettings::default();
        View {
            shared,
            budget,
            hostname,
            started: weir_process::unix_now(),
            sandbox,
            stopping: AtomicBool::new(false),
            own: ScrapeOutput::new("prometheus", settings, weir_aggregate::Weights::Exact, 0),
        }
    }

    pub fn snapshot(&self) -> Status {
        let mut fleet = self.shared.report();
        let bytes = fleet.partitions.iter().map(|row| row.bytes).sum();
        fleet.partitions.sort_by_key(|row| row.partition);
        let mut status = Status {
            process: ProcessStatus {
                version: weir_admin::version::VERSION.into(),
                pid: std::process::id(),
                hostname: self.hostname.clone(),
                started: self.started,
                as_of: weir_process::unix_now(),
            },
            not_ready: self.readiness().err().map(|reason| reason.to_string()),
            sandbox: self.sandbox.clone(),
            reload: ReloadStatus::default(),
            fleet: Some(fleet),
            ..Status::default()
        };
        health::fill_program(&mut status);
        status.memory.parts.insert("open_buckets".into(), bytes);
        let results = self.shared.bytes_of_results();
        status.memory.parts.insert("results".into(), results);
        let mut fullest = Vec::new();
        for outputs in self.shared.outputs() {
            fullest.extend(outputs.fullest());
            outputs.report(&mut status);
            if let Some(scrape) = outputs.scrape() {
                scrape.report(&mut status);
            }
        }
        status.memory.used = status.memory.parts.values().sum();
        ledger::fill(&mut status, &self.budget, &PipelineState::default(), &fullest);
        overflows(&mut status);
        status
    }
}

/// Effects of a full memory budget.
fn overflows(status: &mut Status) {
    let Some(fleet) = &status.fleet else { return };
    let of = |counter| fleet.numbers.of(counter);
    let events = [
        ("states_overflowed", of(FleetCounter::Overflowed)),
        ("states_dropped", of(FleetCounter::DroppedStates)),
    ];
    if let Some(MemoryShare { events: of_share, .. }) = status.memory.shares.get_mut(Share::Contexts as usize)
    {
        *of_share = events.map(|(event, number)| (event.to_owned(), number)).into();
    }
}

impl AdminSource for View {
    fn readiness(&self) -> Result<(), NotReady> {
        if self.stopping.load(Ordering::Acquire) {
            return Err(NotReady::Stopping);
        }
        self.shared.readiness()
    }

    fn status(&self) -> ResponseFuture<'_, Status> {
        Box::pin(async { self.snapshot() })
    }

    fn reload(&self) -> ResponseFuture<'_, Option<Reloaded>> {
        Box::pin(async {
            Some(Reloaded {
                errors: vec![
                    "a merge applies a new configuration at a restart, which neither loses nor doubles anything"
                        .into(),
                ],
                ..Reloaded::default()
            })
        })
    }

    fn scrape(&self, request: ScrapeRequest) -> ResponseFuture<'_, Option<Exposition>> {
        Box::pin(async move {
            let scrape = self.shared.outputs().iter().find_map(|outputs| outputs.scrape());
            let scrape = scrape.unwrap_or_else(|| self.own.clone());
            Some(scrape.answer(&request, &self.snapshot()))
        })
    }
}
