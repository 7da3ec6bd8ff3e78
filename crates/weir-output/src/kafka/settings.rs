//! Settings of the output to a fleet's log.

use std::time::Duration;

use weir_config::{
    KafkaClient, LogConnection, Mechanism, Rule, SettingProblem, choices, rules_of_output, settings,
};
use weir_log::{Brokers, Connection};

use crate::settings::{BatchOutput, OutputType, QueueSettings};

settings! {
    /// The log, and the content of records.
    pub struct KafkaSettings {
        log: LogConnection = "{}".flat();
        format: Format = "merge"
            .effect("The content of records: state for `weir merge` (`merge`), or points, which `weir merge` does not read: the lines of standard output (`json`), or those of the output `influx` with its defaults (`influx`).")
            .change("if you want points in a topic for other programs.");
        keep_host: bool = "false"
            .effect("Series keep their host. Otherwise series of all agents with equal name and tags become one.")
            .change("if you want a fleet's series by host.");
        rules: Vec<Rule> = "[]"
            .effect("Rules for this output only, with the syntax of the agent's `rules` and applied after them: series that they make equal become one series of the fleet. `aggregates`, `percentiles` and `dry_run` are not available here.")
            .zero("An empty list: tags stay as they are.")
            .change("if you remove tags before series of many machines are merged, such as the name of a pod.");
        delivery: QueueSettings = "{}";
    }
}

choices! {
    /// Content of the records.
    pub enum Format {
        /// Mergeable state.
        Merge: "merge",
        /// Points, one JSON object each.
        Json: "json",
        /// Points, in InfluxDB's line protocol.
        Influx: "influx",
    }
}

/// The logs that this program can connect to.
pub const CLIENT: KafkaClient = if cfg!(feature = "kafka") {
    KafkaClient::BuiltIn
} else {
    KafkaClient::Missing
};

pub(crate) const TYPE: OutputType = OutputType {
    name: "kafka",
    summary: "Publishes state to the log of a fleet: Apache Kafka, or a directory. `weir merge` makes one series for many machines from it.",
    on_by_default: false,
    settings: KafkaSettings::SETTINGS,
    removed: &[QueueSettings::REMOVED],
    read: |output| {
        BatchOutput::read(
            output,
            |settings: &mut KafkaSettings, files| settings.log.read(files),
            check,
        )
    },
};

fn check(settings: &KafkaSettings) -> Result<(), SettingProblem> {
    settings.log.check(CLIENT)?;
    if settings.format != Format::Merge && (settings.keep_host || !settings.rules.is_empty()) {
        let key = if settings.keep_host { "keep_host" } else { "rules" };
        return Err(SettingProblem::new(
            key,
            "needs `format: merge`: the other formats carry the points that other outputs get",
        ));
    }
    match rules_of_output(&settings.rules) {
        Ok(_) => Ok(()),
        Err(errors) => {
            let errors = errors.into_iter().next();
            Err(errors.map_or_else(
                || SettingProblem::new("rules", "cannot be used"),
                |error| SettingProblem::new(error.path, error.message),
            ))
        }
    }
}

/// The connection that settings describe. `timeout`: how long one call waits for the brokers.
pub fn connection(log: &LogConnection, group: &str, timeout: Duration) -> Connection {
    if let Some(path) = &log.directory {
        return Connection::Directory {
            path: path.clone(),
            partitions: log.partitions,
        };
    }
    Connection::Kafka(Brokers {
        addresses: log.brokers.clone(),
        topic: log.topic.clone(),
        group: group.to_owned(),
        partitions: log.partitions,
        tls: log.tls.is_on().then(|| weir_log::Tls {
            authorities: log.tls.ca_file.clone(),
            certificate: log.tls.certificate_file.clone().zip(log.tls.key_file.clone()),
        }),
        sasl: mechanism(log.sasl.mechanism).map(|mechanism| weir_log::Sasl {
            mechanism,
            user: log.sasl.username.clone(),
            password: log.sasl.password.expose().to_owned(),
            token_file: log.sasl.token_file.clone(),
        }),
        properties: weir_log::Properties(
            log.properties
                .iter()
                .map(|(name, value)| (name.clone(), value.expose().to_owned()))
                .collect(),
        ),
        timeout,
        ..Brokers::default()
    })
}

fn mechanism(chosen: Mechanism) -> Option<weir_log::Mechanism> {
    match chosen {
        Mechanism::None => None,
        Mechanism::Plain => Some(weir_log::Mechanism::Plain),
        Mechanism::ScramSha256 => Some(weir_log::Mechanism::ScramSha256),
        Mechanism::ScramSha512 => Some(weir_log::Mechanism::ScramSha512),
        Mechanism::OAuthBearer => Some(weir_log::Mechanism::OAuthBearer),
    }
}
