//! The log of a fleet: records of mergeable state, numbered without gaps, that `weir merge` reads. Or points, for programs of
//! others.

mod encode;
mod index;
mod influx;
mod plan;
mod producer;
mod rules;
mod settings;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use weir_aggregate::{Batch, Expansion};
use weir_config::LogConnection;
use weir_log::{AnyLog, Connection};
use weir_merge::{Log as _, Plan};
use weir_state::AgentId;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

pub use encode::FleetEncoder;
pub(crate) use settings::TYPE;
pub use settings::{CLIENT, Format, KafkaSettings, connection};

use crate::StartError;
use crate::delivery::{AgentIdentity, Clock, Delivery, Encode, Endpoint, Order, OutputEnvironment};
use crate::json_lines::LinesEncoder;
use crate::preview;
use crate::probe::{BROKERS_PATIENCE, Destination, Route};
use crate::settings::{DeliverySettings, Start};

use encode::Settings;
use influx::InfluxLines;
use plan::Planned;
use producer::{ANY_PARTITION, Producer};
use rules::FleetRules;

/// Bytes of lines after which a record ends, below what brokers take.
const LINES_BYTES: usize = 800_000;

/// Maximum encoders that a process may start, each with its own epoch.
const ENCODERS_BITS: u32 = 20;

/// Number of encoders started by this process.
static ENCODERS: AtomicU64 = AtomicU64::new(0);

impl Start for KafkaSettings {
    fn preview(&self, batch: &Batch, expansion: &Arc<Expansion>) -> Vec<String> {
        match self.format {
            Format::Merge => {
                let mut rules = FleetRules::new(self);
                let names = batch.series().filter_map(|series| {
                    rules.named(&series, batch, |name| {
                        preview::tagged(name.name, name.tags.iter().copied())
                    })
                });
                preview::each_once(names.collect())
            }
            Format::Json => {
                let encoder = LinesEncoder::new(expansion.clone(), LINES_BYTES);
                preview::of_lines(&preview::payloads(encoder, batch), preview::of_json)
            }
            Format::Influx => InfluxLines::new().map_or(Vec::new(), |lines| {
                preview::of_lines(&preview::payloads(lines, batch), crate::influx::series_of)
            }),
        }
    }

    fn start(
        &self,
        name: &str,
        expansion: &Arc<Expansion>,
        environment: &OutputEnvironment,
    ) -> Result<Delivery, StartError> {
        // The log's own error says more than that there was no answer in time.
        let patience = self.delivery.timeout.mul_f64(0.9);
        let mut log = AnyLog::open(&connection(&self.log, "", patience))?;
        let file = plan_file(&self.log).filter(|_| self.format == Format::Merge);
        let kept = environment.state_path.as_ref().zip(file);
        let planned = kept.map_or_else(Planned::default, |(state_path, file)| {
            Planned::kept_in(state_path.join(file))
        });
        let planned = Arc::new(planned);
        if self.log.directory.is_some() {
            planned.set(log.plan()?);
        }
        let agent = own(name, environment.agent);
        let is_merged = self.format == Format::Merge;
        let producer = Producer {
            log: Arc::new(Mutex::new(log)),
            planned: planned.clone(),
            clock: environment.clock.clone(),
            agent: is_merged.then_some(agent.id),
        };
        let encoder: Box<dyn Encode> = match self.format {
            Format::Merge => Box::new(self.fleet_encoder(name, agent, planned, environment)),
            Format::Json => Box::new(LinesEncoder::new(expansion.clone(), LINES_BYTES).routed(ANY_PARTITION)),
            Format::Influx => Box::new(InfluxLines::new().ok_or(StartError::Lines)?),
        };
        let endpoint = Endpoint {
            label: label(&self.log),
            directory: directory(&self.log),
            family: None,
            transport: Arc::new(producer),
        };
        let delivery = DeliverySettings::from(self.delivery.clone());
        // Numbers without gaps are merged soonest in their order.
        let order = Order::TimeOrder;
        let started = Delivery::start(name, &delivery, order, encoder, vec![endpoint], environment);
        Ok(started?)
    }

    /// The cluster with the topic, and each broker. A directory is on this machine.
    fn destinations(&self) -> Result<Vec<Destination>, StartError> {
        let Connection::Kafka(brokers) = connection(&self.log, "", BROKERS_PATIENCE) else {
            return Ok(Vec::new());
        };
        let mut destinations = vec![Destination {
            label: label(&self.log),
            route: Route::Brokers(Box::new(brokers)),
        }];
        for broker in &self.log.brokers {
            destinations.push(Destination::at(format!("tcp://{broker}").parse()?));
        }
        Ok(destinations)
    }
}

impl KafkaSettings {
    /// The encoder for a log with this division.
    pub fn encoder(&self, agent: AgentIdentity, plan: Plan, state_bytes_max: u64) -> FleetEncoder {
        let planned = Arc::new(Planned::default());
        planned.set(plan);
        let settings = self.of(agent, Arc::default(), state_bytes_max, Clock::system());
        FleetEncoder::new(settings, planned, agent.epoch)
    }

    fn of(&self, agent: AgentIdentity, host: Arc<str>, state_bytes_max: u64, clock: Clock) -> Settings {
        Settings {
            place: directory(&self.log),
            tenant: self.log.tenant.clone(),
            host,
            agent,
            rules: FleetRules::new(self),
            state_bytes_max,
            clock,
        }
    }

    fn fleet_encoder(
        &self,
        name: &str,
        agent: AgentIdentity,
        planned: Arc<Planned>,
        environment: &OutputEnvironment,
    ) -> FleetEncoder {
        if !agent.is_kept && environment.replaces.is_none() {
            tracing::info!(
                output = name,
                agent = %agent.id,
                "without state_path every start is a new agent in the fleet"
            );
        }
        let number = ENCODERS.fetch_add(1, Ordering::Relaxed);
        let host = environment.hostname.clone();
        let clock = environment.clock.clone();
        let settings = self.of(agent, host, environment.state_bytes_max, clock);
        FleetEncoder::new(settings, planned, agent.epoch << ENCODERS_BITS | number)
    }
}

/// The agent of one output. Records are numbered per output, so each output is an agent. The output with the name of its type has the id of
/// the process.
fn own(name: &str, agent: AgentIdentity) -> AgentIdentity {
    if name == TYPE.name {
        return agent;
    }
    let id = xxh3_128(&[&agent.id.0, name.as_bytes()].concat());
    AgentIdentity {
        id: AgentId(id.to_be_bytes()),
        ..agent
    }
}

/// The name of the file with the plan of brokers.
fn plan_file(log: &LogConnection) -> Option<String> {
    let place = format!("{}@{}", log.topic, log.brokers.join(","));
    (!log.brokers.is_empty()).then(|| format!("plan-{:016x}", xxh3_64(place.as_bytes())))
}

/// As people are shown it.
fn label(log: &LogConnection) -> String {
    match &log.directory {
        Some(directory) => directory.display().to_string(),
        None => format!("{} at {}", log.topic, log.brokers.join(", ")),
    }
}

/// The name of the disk queue's directory, from the log's identity.
fn directory(log: &LogConnection) -> String {
    match &log.directory {
        Some(directory) => {
            let path = directory.as_os_str().as_encoded_bytes();
            format!("directory-{:016x}", xxh3_64(path))
        }
        None => format!("topic-{}", log.topic),
    }
}
