//! From the settings of a log to how it is reached.

use weir_config::{LogConnection, LogReader, LogSasl};
use weir_log::{Brokers, Connection, Mechanism, Sasl, Tls};

pub fn of(reader: &LogReader) -> Connection {
    let log = &reader.log;
    if let Some(path) = &log.directory {
        return Connection::Directory {
            path: path.clone(),
            partitions: log.partitions,
        };
    }
    Connection::Kafka(Brokers {
        addresses: log.brokers.clone(),
        topic: log.topic.clone(),
        group: reader.group.clone(),
        partitions: log.partitions,
        tls: tls(log),
        sasl: sasl(&log.sasl),
        ..Brokers::default()
    })
}

fn tls(log: &LogConnection) -> Option<Tls> {
    let tls = &log.tls;
    tls.is_on().then(|| Tls {
        authorities: tls.ca_file.clone(),
        certificate: tls.certificate_file.clone().zip(tls.key_file.clone()),
    })
}

fn sasl(sasl: &LogSasl) -> Option<Sasl> {
    let mechanism = match sasl.mechanism {
        weir_config::Mechanism::None => return None,
        weir_config::Mechanism::Plain => Mechanism::Plain,
        weir_config::Mechanism::ScramSha256 => Mechanism::ScramSha256,
        weir_config::Mechanism::ScramSha512 => Mechanism::ScramSha512,
    };
    Some(Sasl {
        mechanism,
        user: sasl.username.clone(),
        password: sasl.password.expose().to_owned(),
    })
}
