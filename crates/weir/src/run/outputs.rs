//! The outputs of the configuration, started.

use std::sync::Arc;

use weir_aggregate::Expansion;
use weir_output::delivery::{Clock, Delivery, Surroundings};
use weir_output::relay::Relay;
use weir_output::settings::OutputSettings;

use super::delivery::DeliverySink;
use super::pipeline::BatchSink;
use super::relay::{self, RelaySink};
use super::scrape::ScrapeOutput;
use crate::config::Config;
use crate::failure::Failure;

/// One part in this many of the memory budget is for payloads that wait, per output that delivers batches.
const QUEUE_SHARE: u64 = 8;

/// One part in this many of the memory budget is for what a scrape shows.
const SCRAPE_SHARE: u64 = 4;

pub struct Outputs {
    /// What they run on. One thread: they wait more than they work.
    pub runtime: tokio::runtime::Runtime,
    /// Where the pipeline hands over what is flushed, one of each output.
    pub sinks: Vec<Box<dyn BatchSink>>,
    /// Outputs that deliver batches, with the name of their type.
    pub deliveries: Vec<(&'static str, Arc<Delivery>)>,
    pub relays: Vec<Arc<Relay>>,
    pub scrape: Option<ScrapeOutput>,
}

impl Outputs {
    /// Starts all of them. `expansion` says which series a histogram becomes.
    pub fn start(config: &Config, expansion: &Expansion) -> Result<Outputs, Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("outputs")
            .enable_all()
            .build()
            .map_err(|error| Failure::runtime(format!("the outputs' runtime cannot be started: {error}")))?;
        let mut outputs = Outputs {
            runtime,
            sinks: Vec::new(),
            deliveries: Vec::new(),
            relays: Vec::new(),
            scrape: None,
        };
        let surroundings = Surroundings {
            clock: Clock::system(),
            memory_bytes_max: config.memory / QUEUE_SHARE,
            state_bytes_max: config.memory / SCRAPE_SHARE,
            host_tags: config.names.tags.clone().into(),
        };
        let expansion = Arc::new(expansion.clone());
        let handle = outputs.runtime.handle().clone();
        let _entered = handle.enter();
        for output in &config.outputs {
            match &output.settings {
                OutputSettings::Prometheus(settings) => {
                    let bytes_max = surroundings.state_bytes_max as usize;
                    let scrape =
                        ScrapeOutput::new(&output.name, settings.clone(), expansion.weights(), bytes_max);
                    outputs.sinks.push(Box::new(scrape.clone()));
                    outputs.scrape = Some(scrape);
                }
                OutputSettings::Delivered(settings) => {
                    let delivery = settings
                        .start(&output.name, &expansion, &surroundings)
                        .map_err(|error| Failure::runtime(format!("output {}: {error}", output.name)))?;
                    let delivery = Arc::new(delivery);
                    outputs.sinks.push(Box::new(DeliverySink {
                        delivery: delivery.clone(),
                        runtime: handle.clone(),
                        grace: config.grace_period,
                    }));
                    outputs.deliveries.push((output.output_type, delivery));
                }
                OutputSettings::Relay(settings) => {
                    let relay = relay::start(
                        &output.name,
                        settings,
                        config.workers,
                        surroundings.memory_bytes_max,
                    );
                    outputs.sinks.push(Box::new(RelaySink {
                        relay: relay.clone(),
                        runtime: handle.clone(),
                        grace: config.grace_period,
                    }));
                    outputs.relays.push(relay);
                }
            }
        }
        outputs.warn_of_idle();
        Ok(outputs)
    }

    /// A relay that takes everything leaves nothing for the others.
    fn warn_of_idle(&self) {
        if let Some(relay) = self.relays.iter().find(|relay| relay.settings().only)
            && let Some((_, delivery)) = self.deliveries.first()
        {
            let (relay, output) = (relay.name(), delivery.name());
            tracing::warn!(
                "with outputs.{relay}.only nothing is aggregated; {output} and the like get nothing"
            );
        }
    }
}
