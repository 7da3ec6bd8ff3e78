//! A worker with a control plane that does what a test says: its thread with a socket, and its core, step by step.

use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use weir_aggregate::{AggregateCounter, AggregatorSettings, Value};
use weir_context::{ContextLimits, HashSecret, Rules};
use weir_ingest::{
    CheckpointLink, Core, IngestCounter, IngestSettings, Readings, Received, RelayLinks, Report, SampleDrop,
    SavedBucket, Sources, WorkerHandle, WorkerSettings, WorkerSnapshot, spawn,
};
use weir_listener::{Address, ListenerConfig, ListenerId, bind};
use weir_protocol::ParseOptions;
use weir_state::AgentId;

/// No wait is longer.
const PATIENCE: Duration = Duration::from_secs(60);

const BUCKET: Duration = Duration::from_secs(1);

/// The part of a step of a sender that is not a pause of the machine.
const STEP_MAX: Duration = Duration::from_millis(50);

struct Running {
    worker: WorkerHandle,
    reports: Receiver<Report>,
    socket: UnixDatagram,
    _directory: tempfile::TempDir,
}

fn settings() -> IngestSettings {
    IngestSettings {
        worker: 0,
        aggregator: AggregatorSettings {
            bucket_width: BUCKET.as_secs() as u32,
            ..AggregatorSettings::default()
        },
        rules: Rules::default(),
        limits: ContextLimits::default(),
        secret: HashSecret::from_random(1, 2),
        listeners: vec![
            ParseOptions {
                timestamps: true,
                ..ParseOptions::default()
            }
            .into(),
        ],
    }
}

fn around() -> WorkerSettings {
    WorkerSettings {
        release_memory: || {},
        flush_open_bucket: true,
        agent: AgentId::default(),
        batch_bytes_max: 1 << 20,
        clients_max: 100,
    }
}

/// A worker whose pipeline has room for one report, and takes none until it is read.
fn start() -> Running {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let address: Address = format!("unixgram://{}", path.display()).parse().unwrap();
    let bound = bind(&ListenerConfig::new(address)).unwrap();
    let sources = Sources {
        sockets: vec![(bound, ListenerId(0))],
        ..Sources::default()
    };
    let (send, reports) = sync_channel(1);
    let (relays, saved) = (RelayLinks::default(), SavedBucket::default());
    let worker = spawn(settings(), sources, 1 << 20, around(), send, None, relays, saved).unwrap();
    let socket = UnixDatagram::unbound().unwrap();
    // A worker that does not read shows as a send that ends with an error.
    socket.set_write_timeout(Some(PATIENCE)).unwrap();
    socket.connect(&path).unwrap();
    Running {
        worker,
        reports,
        socket,
        _directory: directory,
    }
}

/// Reports of a worker until its end.
struct Ended {
    /// The sum of each bucket with its start, in the order of arrival.
    sums: Vec<(i64, f64)>,
    timestamped: u64,
    last: WorkerSnapshot,
}

/// Stops the worker, and reads what it reports.
fn stop(running: Running) -> Ended {
    running.worker.stop();
    let (mut sums, mut timestamped, mut last) = (Vec::<(i64, f64)>::new(), 0, None);
    loop {
        match running.reports.recv_timeout(PATIENCE).unwrap() {
            Report::Batch(batch) => {
                for series in batch.series() {
                    let Value::Counter(value) = series.value() else {
                        continue;
                    };
                    if series.is_timestamped() {
                        timestamped += 1;
                    } else if value != 0.0 {
                        sums.push((batch.bucket.start, value));
                    }
                }
            }
            Report::Snapshot(snapshot) => last = Some(*snapshot),
            Report::Done(_) => break,
            _ => {}
        }
    }
    running.worker.join().unwrap();
    Ended {
        sums,
        timestamped,
        last: last.unwrap(),
    }
}

/// Whole buckets pass in which the pipeline takes nothing. The worker receives meanwhile, loses nothing, and says that buckets are longer.
#[test]
fn a_worker_receives_while_the_pipeline_takes_nothing_for_buckets() {
    let running = start();
    let mut sent = 0.0;
    // Time in which both threads run. A pause of either makes a step long, and buckets in it are not seen to go by.
    let mut awake = Duration::ZERO;
    // The first bucket ends, the second one waits for it to be handed over, the third one for the second, and the others go by.
    while awake < 5 * BUCKET {
        let step = Instant::now();
        for _ in 0..100 {
            // The kernel queues a few; the others need a reader.
            running.socket.send(b"a:1|c\nb:1|c").unwrap();
            sent += 2.0;
        }
        std::thread::park_timeout(Duration::from_millis(1));
        awake += step.elapsed().min(STEP_MAX);
    }
    let ended = stop(running);
    let total: f64 = ended.sums.iter().map(|(_, sum)| sum).sum();
    assert_eq!(total, sent);
    assert!(
        ended.sums.is_sorted_by_key(|(start, _)| *start),
        "{:?}",
        ended.sums
    );
    let joined = ended.last.aggregate[AggregateCounter::BucketsJoined];
    assert!(joined >= 1, "{joined} buckets joined: {:?}", ended.sums);
    let listener = &ended.last.listeners[0].ingest;
    assert!(listener.balance());
    assert_eq!(listener[IngestCounter::SamplesAggregated] as f64, sent);
}

/// Samples that cannot be merged wait up to a limit, and are dropped and counted beyond it.
#[test]
fn a_worker_receives_while_the_pipeline_takes_no_timestamped_samples() {
    let running = start();
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let (mut sent, filler) = (0u64, "x".repeat(1000));
    // Far more than may wait.
    for _ in 0..3000 {
        let mut packet = String::new();
        for _ in 0..6 {
            packet += &format!("late.{sent}:1|c|T{now}|#{filler}\n");
            sent += 1;
        }
        running.socket.send(packet.as_bytes()).unwrap();
    }
    let ended = stop(running);
    let listener = &ended.last.listeners[0].ingest;
    assert!(listener.balance());
    let dropped = listener.samples_dropped[SampleDrop::QueueFull];
    assert_eq!(ended.timestamped + dropped, sent);
    assert_eq!(listener[IngestCounter::SamplesTimestamped], ended.timestamped);
    assert!(
        dropped > 0 && ended.timestamped > 1000,
        "{dropped} of {sent} dropped"
    );
}

/// Names of which a summary has more than one slice.
const NAMES: usize = 9000;

/// Does what a worker does between two receive turns. Returns whether a bucket was handed over to its end.
fn step(core: &mut Core) -> bool {
    let batch = core.next_batch();
    let ended = batch.as_ref().is_some_and(|batch| batch.last);
    if let Some(batch) = batch {
        core.offer(batch);
    }
    core.pass_on();
    core.summarise();
    core.proceed_with_checkpoint();
    ended
}

/// Goes on until the rest needs somebody else.
fn proceed(core: &mut Core) {
    // A bucket and a checkpoint have far fewer slices.
    for _ in 0..10_000 {
        step(core);
        if !core.can_proceed() {
            return;
        }
    }
    panic!("nothing is received, and there is always something to do");
}

/// While the control plane takes nothing, neither reports nor checkpoints, a worker leaves the core to it: also with a summary that the end of
/// the next bucket interrupted. What it waits with is handed over when there is room.
#[test]
fn a_worker_waits_for_a_control_plane_that_is_behind() {
    let at = |bucket: u64| Readings {
        wall_ms: 1_700_000_000_000 + (bucket * 1000) as i64,
        monotonic: bucket * BUCKET.as_nanos() as u64,
    };
    let (send, reports) = sync_channel(1);
    let (send_pieces, pieces) = sync_channel(1);
    let checkpoints = CheckpointLink {
        pieces: send_pieces,
        bytes_in_transit: Arc::default(),
        bytes_max: 1,
        tally: Box::new(|_| {}),
        starts_over: Arc::default(),
        numbers: None,
    };
    let around = WorkerSettings {
        batch_bytes_max: 64 << 20,
        ..around()
    };
    let saved = SavedBucket::default();
    let mut taken = Vec::new();
    let mut core = Core::new(settings(), around, send, Some(checkpoints), saved, at(0), |_| {});
    core.begin();
    core.begin_checkpoint();
    let lines: String = (0..NAMES).map(|name| format!("name.{name}:1|c\n")).collect();
    for bucket in 1..6 {
        core.ingest_mut().packet(Received {
            bytes: lines.as_bytes(),
            listener: 0,
            truncated: false,
            received: at(bucket).monotonic,
        });
        core.turn_ended(at(bucket));
        core.advance();
        core.begin_checkpoint();
        if bucket == 1 {
            // The control plane takes what comes until the first slice of the summary, at which the next bucket ends.
            while !step(&mut core) {
                taken.extend(reports.try_recv());
            }
            assert!(core.can_proceed(), "the summary has one slice only");
        } else {
            proceed(&mut core);
        }
        assert_eq!(core.waits_for_room(), bucket > 1);
    }

    let mut sum = 0.0;
    let mut read_all = |core: &mut Core| {
        while let Some(report) = taken.pop().or_else(|| reports.try_recv().ok()) {
            if let Report::Batch(batch) = report {
                for series in batch.series() {
                    let Value::Counter(value) = series.value() else {
                        panic!("not a counter: {:?}", series.value());
                    };
                    sum += value;
                }
            }
            drop(pieces.try_recv());
            proceed(core);
        }
        assert!(!core.waits_for_room());
    };
    read_all(&mut core);
    // The open bucket took in those after it, and ends now.
    core.advance();
    proceed(&mut core);
    read_all(&mut core);
    assert_eq!(sum, (5 * NAMES) as f64);
}
