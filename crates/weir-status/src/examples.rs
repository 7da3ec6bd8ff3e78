//! Statuses for tests: those of this crate, and of what shows a status.

use std::collections::BTreeMap;

use weir_counters::{Counter, CounterInfo, Counts};
use weir_ingest::{IngestCounter, SampleDrop};
use weir_listener::ListenerCounter;
use weir_origin::SourceStatus;
use weir_output::delivery::Reason;
use weir_output::relay::RelayLoss;
use weir_protocol::ErrorClass;

use crate::counters::TABLES;
use crate::fleet::{FleetStatus, SentRow};
use crate::status::{ListenerStatus, OriginReport, OutputStatus, PointBooks, Status};

/// One listener, one output, and something of everything.
pub fn balanced() -> Status {
    let mut status = Status {
        listeners: vec![ListenerStatus {
            address: "udp://127.0.0.1:8125".to_owned(),
            ..Default::default()
        }],
        ..Default::default()
    };
    let mut socket = Counts::default();
    socket[ListenerCounter::Packets] = 7;
    socket[ListenerCounter::KernelDropped] = 3;
    socket[ListenerCounter::Bytes] = 100;
    status.add(Some(0), &socket);
    let mut ingest = Counts::default();
    ingest[IngestCounter::Packets] = 7;
    ingest[IngestCounter::Messages] = 20;
    ingest[IngestCounter::Metrics] = 19;
    ingest[IngestCounter::Samples] = 30;
    ingest[IngestCounter::SamplesAggregated] = 24;
    ingest[IngestCounter::SamplesOverflowed] = 5;
    status.add(Some(0), &ingest);
    let mut rejected = Counts::default();
    rejected[ErrorClass::BadType] = 1;
    status.add(Some(0), &rejected);
    let mut dropped = Counts::default();
    dropped[SampleDrop::NoMemory] = 1;
    status.add(Some(0), &dropped);
    status.add_up();
    status.outputs.push(OutputStatus {
        name: "datadog".to_owned(),
        points: PointBooks {
            produced: 9,
            delivered: 4,
            pending: 3,
            pending_where: [("disk".to_owned(), 3)].into(),
            dropped: [("too_old".to_owned(), 2)].into(),
        },
        ..Default::default()
    });
    status
}

/// Every counter at one, as one worker and one listener would count it.
pub fn everything() -> Status {
    let mut status = balanced();
    status.origin = Some(OriginReport::default());
    status.fleet = Some(FleetStatus::default());
    status.memory.parts.insert("contexts".to_owned(), 1);
    let numbers = TABLES.iter().copied().flatten();
    for info in numbers.filter(|info| !info.series.path.contains('{')) {
        let section = info.series.path.split('.').next().unwrap();
        match section {
            "listeners" => status.listeners[0].numbers.put(info, 1),
            "outputs" => status.outputs[0].numbers.put(info, 1),
            "origin" => status.origin.as_mut().unwrap().numbers.put(info, 1),
            "fleet" => status.fleet.as_mut().unwrap().numbers.put(info, 1),
            "limits" => status.limits.numbers.put(info, 1),
            "clients" => status.clients.numbers.put(info, 1),
            _ => status.numbers.put(info, 1),
        }
    }
    status
}

/// Every number at one, those of lists too, and every reason of every output.
pub fn all_lost() -> Status {
    let mut status = everything();
    let reasons = |infos: &[CounterInfo]| infos.iter().map(|info| (info.as_str().to_owned(), 1)).collect();
    let books = PointBooks {
        dropped: reasons(Reason::INFO),
        ..PointBooks::default()
    };
    let relayed = PointBooks {
        dropped: reasons(RelayLoss::INFO),
        ..PointBooks::default()
    };
    let output = |name: &str| OutputStatus {
        name: name.to_owned(),
        last_error: Some("connection refused by 127.0.0.1:2003".to_owned()),
        ..OutputStatus::default()
    };
    status.outputs.push(OutputStatus {
        points: books.clone(),
        events: books.clone(),
        checks: books,
        ..output("graphite")
    });
    status.outputs.push(OutputStatus {
        messages: relayed,
        ..output("relay")
    });
    let state = &mut status.state;
    (state.contexts_refused, state.set_aside, state.killed.samples_lost) = (1, 1, 1);
    (
        state.killed.files_damaged,
        state.killed.kills,
        state.outputs_reset,
    ) = (1, 1, 1);
    state.saves.saves_failed = 1;
    state.killed.samples_undelivered = BTreeMap::from([("graphite".to_owned(), 1)]);
    state.hand_over.failed = 1;
    let origin = status.origin.as_mut().unwrap();
    origin.resolver.sources.push(SourceStatus {
        name: "docker".to_owned(),
        failures: 1,
        last_error: Some("permission denied".to_owned()),
        ..SourceStatus::default()
    });
    status.fleet.as_mut().unwrap().sent.push(SentRow {
        output: "graphite".to_owned(),
        deleted: 1,
        not_corrected: 1,
        ..SentRow::default()
    });
    status
}
