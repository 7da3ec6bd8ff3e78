//! Starts the ingest workers with their sockets and limits.

use std::sync::mpsc::SyncSender;

use weir_aggregate::AggregatorSettings;
use weir_context::{ContextLimits, HashSecret, Partitioning, Rules};
use weir_ingest::{
    IngestSettings, ListenerSettings, Report, SavedBucket, Sources, WorkerHandle, WorkerSettings,
};
use weir_listener::ListenerConfig;
use weir_origin::Resolver;
use weir_state::AgentId;

use crate::access::Access;
use crate::outputs::Outputs;
use weir_agent::budget::{Budget, Share};
use weir_system::config::Config;
use weir_system::failure::Failure;

/// Settings shared by all workers.
pub struct Start<'a> {
    pub config: &'a Config,
    pub budget: &'a Budget,
    pub listeners: &'a [(ListenerConfig, ListenerSettings)],
    pub rules: &'a Rules,
    pub resolver: Option<&'a Resolver>,
    pub outputs: &'a Outputs,
    pub reports: SyncSender<Report>,
    pub agent: AgentId,
    /// The state that each worker continues.
    pub saved: Vec<SavedBucket>,
}

impl Start<'_> {
    /// One worker for each element of `sources`.
    pub fn workers(mut self, sources: Vec<Sources>) -> Result<Vec<WorkerHandle>, Failure> {
        let secret = HashSecret::random();
        let listeners: Vec<&ListenerConfig> = self.listeners.iter().map(|(listener, _)| listener).collect();
        let admission = Access::admission(self.config, &listeners);
        let mut saved = std::mem::take(&mut self.saved).into_iter();
        let start = |(worker, sources)| {
            let around = WorkerSettings {
                release_memory: weir_system::sys::heap::release_memory,
                flush_open_bucket: self.config.aggregation.flush_open_buckets,
                agent: self.agent,
                batch_bytes_max: self.budget.batches_in_transit(),
                clients_max: self.budget.clients(),
            };
            let link = self.resolver.map(|resolver| {
                resolver
                    .link(worker as u16)
                    .with_rate(self.config.listeners.senders.rate_limit_per_origin)
                    .with_admission(admission.clone())
            });
            weir_ingest::spawn(
                self.settings(worker, secret),
                sources,
                self.budget.of_worker(Share::Frames),
                around,
                self.reports.clone(),
                link,
                self.outputs.relay_links(worker),
                saved.next().unwrap_or_default(),
            )
            .map_err(|error| Failure::runtime(format!("ingest worker {worker}: {error}")))
        };
        sources.into_iter().enumerate().map(start).collect()
    }

    fn settings(&self, worker: usize, secret: HashSecret) -> IngestSettings {
        let config = self.config;
        let per_worker =
            |max: Option<usize>| max.map_or(usize::MAX, |max: usize| max.div_ceil(config.resources.workers));
        IngestSettings {
            worker: worker as u16,
            aggregator: AggregatorSettings {
                bucket_width: config.aggregation.bucket_seconds() as u32,
                counter_expiry: config.aggregation.counter_expiry.as_secs() as u32,
                context_expiry: config.aggregation.context_expiry.as_secs() as u32,
                hostname: config.names.hostname.as_str().into(),
                partitioning: if config.resources.workers == 1 {
                    Partitioning::Id
                } else {
                    Partitioning::Hash
                },
                batch_bytes: self.budget.batch_bytes(),
            },
            rules: self.rules.clone(),
            limits: ContextLimits {
                bytes_max: self.budget.of_worker(Share::Contexts),
                origin_bytes_max: self.budget.of_worker(Share::Senders),
                contexts_max: per_worker(config.resources.contexts_max),
                contexts_per_metric_max: per_worker(config.resources.contexts_per_metric_max),
                contexts_per_origin_max: per_worker(config.resources.contexts_per_origin_max),
                ..ContextLimits::default()
            },
            secret,
            listeners: self.listeners.iter().map(|(_, settings)| *settings).collect(),
        }
    }
}
