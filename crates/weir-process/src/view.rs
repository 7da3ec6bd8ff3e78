//! The running agent as seen by the admin address and by reloads.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use weir_context::Rules;
use weir_origin::Origins;

use crate::access::Access;
use crate::columns::Columns;
use crate::explain;
use crate::health;
use crate::log::LastFlush;
use crate::outputs::Outputs;
use crate::signals::ReloadRequest;
use crate::unix_now;
use weir_admin::history::Recent;
use weir_admin::tap::{TapListener, Taps};
use weir_admin::{AdminSource, Exposition, NotReady, ResponseFuture, ScrapeRequest};
use weir_agent::books::{self, BoundListener};
use weir_agent::budget::Budget;
use weir_agent::clients::Clients;
use weir_agent::ledger;
use weir_agent::life::{Life, LifeState};
use weir_agent::pipeline::Shared;
use weir_agent::state::checkpoints::SaveFailures;
use weir_agent::supervision::Health;
use weir_agent::usage::Usage;
use weir_status::contexts::ContextReport;
use weir_status::counters::PipelineCounter;
use weir_status::explain::{ExplainError, ExplainRequest, Explanation};
use weir_status::status::Reloaded;
use weir_status::status::{HandOverStatus, OriginReport, ProcessStatus, ReloadStatus, StateStatus, Status};
use weir_system::config::Config;
use weir_system::sandbox::SandboxStatus;

/// Access to the running agent.
pub struct View {
    pub shared: Arc<Shared>,
    /// The last flush.
    pub last_flush: Arc<Mutex<LastFlush>>,
    pub health: Arc<Health>,
    pub listeners: Vec<BoundListener>,
    pub outputs: Arc<Outputs>,
    /// `None`: the last minutes are disabled.
    pub recent: Option<Arc<Recent>>,
    pub senders: Senders,
    /// `None`: there are no listeners of columns.
    pub columns: Option<Arc<Columns>>,
    /// Each listener's reading of messages, for explanations.
    pub tap_listeners: Vec<TapListener>,
    pub rules: Arc<Mutex<Rules>>,
    /// `None`: messages are confidential.
    pub taps: Option<Arc<Taps>>,
    pub facts: AgentFacts,
    pub course: Course,
}

/// The senders, and which of them may send.
pub struct Senders {
    pub origins: Option<Origins>,
    pub usage: Arc<Usage>,
    pub clients: Arc<Clients>,
    pub access: Access,
}

/// Facts that stay as they are while the process runs.
pub struct AgentFacts {
    pub hostname: String,
    pub workers: usize,
    pub budget: Budget,
    pub bucket_seconds: u64,
    /// Unix seconds.
    pub started_at: u64,
    pub sandbox: SandboxStatus,
    /// The continued state, and the books of the previous processes.
    pub state: StateStatus,
    /// Attempts to write the state.
    pub failures: Arc<SaveFailures>,
    pub earlier: Option<Box<Status>>,
}

impl AgentFacts {
    pub fn of(config: &Config, workers: usize, budget: Budget) -> AgentFacts {
        AgentFacts {
            hostname: config.names.hostname.clone(),
            workers,
            budget,
            bucket_seconds: config.aggregation.bucket_seconds(),
            started_at: unix_now(),
            sandbox: SandboxStatus::default(),
            state: StateStatus::default(),
            failures: Arc::default(),
            earlier: None,
        }
    }
}

/// The events in the life of the process: reloads, hand-overs, its end.
#[derive(Default)]
pub struct Course {
    pub life: Life,
    /// Results of reloads.
    pub reload: Mutex<ReloadStatus>,
    /// Requests of the admin server for a reload.
    pub reloads: OnceLock<tokio::sync::mpsc::Sender<ReloadRequest>>,
    /// Results of hand-overs to other processes, and from one.
    pub hand_over: Mutex<HandOverStatus>,
}

impl Course {
    pub fn after(hand_over: HandOverStatus) -> Course {
        Course {
            hand_over: Mutex::new(hand_over),
            ..Course::default()
        }
    }
}

impl View {
    /// The current books, including those of earlier processes.
    pub fn snapshot(&self) -> Status {
        let mut status = self.own();
        if let Some(earlier) = &self.facts.earlier {
            status.add_earlier(earlier);
        }
        status
    }

    /// The books of this process.
    pub fn own(&self) -> Status {
        let mut state = self.shared.lock().clone();
        state.counts[PipelineCounter::BucketSeconds] = self.facts.bucket_seconds;
        let flush = self
            .last_flush
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let mut status = Status {
            process: ProcessStatus {
                version: weir_admin::version::VERSION.into(),
                pid: std::process::id(),
                hostname: self.facts.hostname.clone(),
                started: self.facts.started_at,
                as_of: 0,
            },
            not_ready: self.readiness().err().map(|reason| reason.to_string()),
            rates: flush.rates,
            sandbox: self.facts.sandbox.clone(),
            state: StateStatus {
                hand_over: self.hand_over().clone(),
                ..self.facts.state.clone()
            },
            origin: self.origin_report(),
            reload: self
                .course
                .reload
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
            ..Status::default()
        };
        self.facts.failures.report(&mut status.state.saves);
        self.outputs.report(&mut status);
        status.memory.parts.insert(
            "summaries".into(),
            self.senders.usage.heap_bytes() + self.senders.clients.heap_bytes(),
        );
        for (part, bytes) in self.senders.access.heap_bytes() {
            status.memory.parts.insert(part.into(), bytes);
        }
        if let Some(columns) = &self.columns {
            status.memory.parts.insert("columns".into(), columns.bytes_held());
        }
        books::fill(&mut status, &self.listeners, &state);
        if let Some(columns) = &self.columns {
            for number in 0..self.listeners.len() {
                status.add(Some(number), &columns.counts(number));
            }
        }
        self.health.fill(&mut status);
        health::fill_program(&mut status);
        self.senders.usage.fill(&mut status.limits);
        self.senders.clients.report(&mut status);
        status.limits.rates = self.senders.access.limited(&state);
        status.limits.senders_refused = Access::refused(&state);
        if let Some(recent) = &self.recent {
            recent.report(&mut status);
        }
        if let Some(taps) = &self.taps {
            taps.report(&mut status);
        }
        if let Some(scrape) = self.outputs.scrape() {
            scrape.report(&mut status);
        }
        ledger::fill(&mut status, &self.facts.budget, &state, &self.outputs.fullest());
        status
    }

    pub fn hand_over(&self) -> MutexGuard<'_, HandOverStatus> {
        self.course
            .hand_over
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn origin_report(&self) -> Option<OriginReport> {
        let origins = self.senders.origins.as_ref()?;
        Some(OriginReport {
            resolver: origins.status(),
            ..OriginReport::default()
        })
    }
}

impl AdminSource for View {
    fn readiness(&self) -> Result<(), NotReady> {
        if self.course.life.state() == LifeState::Stopping {
            return Err(NotReady::Stopping);
        }
        let running = self.shared.lock().workers.iter().flatten().count();
        if running < self.facts.workers {
            return Err(NotReady::Workers);
        }
        match self.health.error() {
            None => Ok(()),
            Some(error) => Err(NotReady::Failed(error)),
        }
    }

    fn status(&self) -> ResponseFuture<'_, Status> {
        Box::pin(async { self.snapshot() })
    }

    fn reload(&self) -> ResponseFuture<'_, Option<Reloaded>> {
        Box::pin(async {
            let (answer, answered) = tokio::sync::oneshot::channel();
            self.course.reloads.get()?.send(answer).await.ok()?;
            answered.await.ok()
        })
    }

    fn contexts(&self, top: usize) -> ResponseFuture<'_, Option<ContextReport>> {
        Box::pin(async move { self.senders.usage.report(top) })
    }

    fn recent(&self) -> Option<Arc<Recent>> {
        self.recent.clone()
    }

    fn taps(&self) -> Option<Arc<Taps>> {
        self.taps.clone()
    }

    fn explain(&self, request: ExplainRequest) -> ResponseFuture<'_, Result<Explanation, ExplainError>> {
        let rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let origins = self.senders.origins.clone();
        Box::pin(async move {
            let about = explain::ExplainedListener::choose(&self.tap_listeners, &request)?;
            // Look-ups of origins read files; no other request may wait for that.
            let outputs = self.outputs.clone();
            let explained = tokio::task::spawn_blocking(move || {
                let mut explanation = explain::explain(&request, &about, &rules, origins.as_ref());
                let reading = &about.listener.reading;
                if explanation.context.is_some()
                    && let Some(batch) =
                        explain::batch(&request.line, reading, &explanation.origin.tags, &rules)
                {
                    explanation.outputs = outputs.preview(&batch);
                }
                explanation
            });
            explained
                .await
                .map_err(|error| ExplainError::Failed(error.to_string()))
        })
    }

    fn scrape(&self, request: ScrapeRequest) -> ResponseFuture<'_, Option<Exposition>> {
        Box::pin(async move {
            let scrape = self.outputs.scrape()?;
            Some(scrape.answer(&request, &self.snapshot()))
        })
    }
}
