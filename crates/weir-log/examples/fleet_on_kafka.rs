//! Measures how far the owners of a log on Kafka lag behind a fleet, and how long the others need to take over from a killed owner.
//!
//! `cargo run --release -p weir-log --features kafka --example fleet_on_kafka -- [AGENTS] [SERIES] [PARTITIONS] [OWNERS] [BUCKETS]`
//!
//! Starts a broker and the owners, each in its own process, and publishes the records of this many agents: buckets of 10 s, each agent at
//! its own time. Kills the first owner after three quarters, when all agents have sent a bucket and its results are due. Reads results as
//! they are committed, and fails unless they contain every state exactly once.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use weir_broker::Broker;
use weir_log::{Brokers, KafkaLog, unix_milliseconds};
use weir_merge::{Append, BucketResult, Log, Occasion, Owner, Plan, Publisher, Settings, delay_ms};
use weir_protocol::Kind;
use weir_sketch::Sketch;
use weir_state::{
    AgentId, Distribution, ExactSum, Facts, Gauge, Header, Identity, Members, Packer, Publication, Record,
    Samples, State,
};

const WIDTH: i64 = 10;

fn argument(number: usize, default: usize) -> usize {
    let argument = std::env::args().nth(number);
    argument.map_or(default, |text| text.parse().expect("a number"))
}

fn brokers(address: &str, partitions: u32) -> Brokers {
    Brokers {
        addresses: vec![address.to_owned()],
        partitions,
        ..Brokers::default()
    }
}

fn main() {
    if let Ok(address) = std::env::var("WEIR_EXAMPLE_OWNS") {
        own(&address);
    }
    let (agents, series) = (argument(1, 1000), argument(2, 1000));
    let (partitions, owners) = (argument(3, 8) as u32, argument(4, 2));
    // Lag is that of the seventh bucket and those behind it.
    let buckets = argument(5, 12).max(10) as i64;
    let broker = Broker::start();
    let mut log = KafkaLog::open(&brokers(&broker.address(), partitions)).expect("a log");
    log.plan().expect("topics");
    let mut processes: Vec<Child> = (0..owners).map(|_| start_owner(&broker.address())).collect();
    let bodies = bodies(series, partitions);
    let agents: Vec<AgentId> = (0..agents)
        .map(|agent| AgentId((agent as u128).to_le_bytes()))
        .collect();
    let first = (unix_milliseconds() / 1000).div_euclid(WIDTH) * WIDTH + WIDTH;
    let reading = {
        let (address, last) = (broker.address(), first + (buckets - 1) * WIDTH);
        std::thread::spawn(move || arrivals(&address, partitions, last))
    };
    let (mut killed, mut cost) = (None, Cost::default());
    for number in 0..buckets {
        let bucket = first + number * WIDTH;
        let behind = publish(&mut log, &agents, &bodies, bucket, number as u64);
        println!("bucket {number}: sent, at most {behind} ms after the moment of an agent");
        if number == buckets * 3 / 4 && owners > 1 {
            cost.of(&processes, number + 1);
            processes[0].kill().expect("an owner");
            processes[0].wait().expect("it ends");
            killed = Some((bucket, unix_milliseconds()));
        }
    }
    let arrivals = reading.join().expect("a reader");
    if owners == 1 {
        cost.of(&processes, buckets);
    }
    for process in &mut processes {
        let _ = process.kill();
        let _ = process.wait();
    }
    let states = agents.len() as u64 * series as u64;
    cost.report(states);
    report(&arrivals, states, killed);
}

/// CPU time that owners spent on buckets, clients of Kafka included.
#[derive(Default)]
struct Cost {
    spent: Duration,
    buckets: i64,
}

impl Cost {
    fn of(&mut self, processes: &[Child], buckets: i64) {
        self.spent = processes.iter().map(|process| spent(process.id())).sum();
        self.buckets = buckets;
    }

    fn report(&self, states: u64) {
        let merged = states as f64 * self.buckets as f64;
        let nanoseconds = self.spent.as_nanos() as f64 / merged;
        println!(
            "CPU time of the owners, clients of Kafka and start included: {nanoseconds:.0} ns per state"
        );
    }
}

/// CPU time of all threads of a process.
fn spent(pid: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
    let of_thread = |thread: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    Duration::from_nanos(threads.filter_map(of_thread).sum())
}

/// The process of an owner.
fn own(address: &str) -> ! {
    // The parent never writes: the read ends with the parent.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_line(&mut String::new());
        std::process::exit(0);
    });
    let log = KafkaLog::open(&brokers(address, 1)).expect("a log");
    let mut owner = Owner::new(log, Settings::default());
    loop {
        match owner.turn() {
            Ok(turn) if turn.messages == 0 => std::thread::sleep(Duration::from_millis(20)),
            Ok(_) => {}
            Err(error) => eprintln!("an owner: {error}"),
        }
    }
}

fn start_owner(address: &str) -> Child {
    let program = std::env::current_exe().expect("this program");
    let owner = Command::new(program)
        .env("WEIR_EXAMPLE_OWNS", address)
        .stdin(Stdio::piped())
        .spawn();
    owner.expect("a process")
}

/// Of ten series, six are counters; the others are one of each kind.
fn series(at: usize) -> (Identity, State) {
    let values = || (0..10).map(move |value| ((at * 17 + value * 7) % 1000) as f64 / 8.0);
    let (kind, state) = match at % 10 {
        0..6 => (Kind::Counter, State::Counter(ExactSum::from(at as f64))),
        6 => (
            Kind::Gauge,
            State::Gauge(Gauge::new(at as f64, at as i64, AgentId::default())),
        ),
        7 => {
            let mut sketch = Sketch::new();
            values().for_each(|value| sketch.insert_one(value));
            (Kind::Distribution, Distribution::new(&sketch, 0.0).into())
        }
        8 => (
            Kind::Timing,
            State::Samples(Samples::exact(values().map(|value| (value, 1.0)))),
        ),
        _ => {
            let members: Vec<String> = values().take(3).map(|value| value.to_string()).collect();
            (
                Kind::Set,
                State::Set(Members::exact(members.iter().map(String::as_bytes))),
            )
        }
    };
    let tags = [
        format!("endpoint:/api/v1/things/{}", at / 10 % 400),
        format!("status:{}", 200 + at % 5),
        format!("customer:{}", at % 50),
        "env:production".to_owned(),
        "service:checkout".to_owned(),
    ];
    let name = format!("app.component{}.requests", at / 4000);
    let identity = Identity::new(kind, &name, Some(""), None, tags.iter().map(String::as_str));
    (identity, state)
}

/// Per agent, bucket and partition: the body of a record, and its number of series.
fn bodies(count: usize, partitions: u32) -> Vec<(Vec<u8>, u64)> {
    let mut publisher = Publisher::new("", AgentId::default(), 1);
    publisher.begin(0, WIDTH as u32, &Plan::new(partitions));
    for at in 0..count {
        let (identity, state) = series(at);
        let facts = Facts {
            seen: 5,
            suffixes: u32::MAX,
        };
        publisher.add(&identity, facts, &state);
    }
    let closing = publisher.close(false);
    let bodies = closing.records.iter().map(|one| {
        let record = Record::decode(&one.bytes).expect("a record");
        (record.body().to_vec(), record.len() as u64)
    });
    bodies.collect()
}

/// Sends a bucket of the whole fleet, each agent at its own time. Returns the maximum delay in milliseconds.
fn publish(
    log: &mut KafkaLog,
    agents: &[AgentId],
    bodies: &[(Vec<u8>, u64)],
    bucket: i64,
    number: u64,
) -> i64 {
    let mut order: Vec<(i64, AgentId)> = agents
        .iter()
        .map(|agent| {
            (
                (bucket + WIDTH) * 1000 + delay_ms(*agent, WIDTH as u32) as i64,
                *agent,
            )
        })
        .collect();
    order.sort_unstable();
    let (mut behind, packer) = (0, &mut Packer::default());
    // Agents within a tenth of a second send together.
    for group in order.chunk_by(|one, next| one.0 / 100 == next.0 / 100) {
        let due = group[0].0;
        let wait = due - unix_milliseconds();
        std::thread::sleep(Duration::from_millis(wait.max(0) as u64));
        let records: Vec<(u32, Vec<u8>)> = group
            .iter()
            .flat_map(|(_, agent)| records(*agent, bodies, bucket, number, packer))
            .collect();
        let sent = unix_milliseconds();
        let appends: Vec<Append<'_>> = records
            .iter()
            .map(|(partition, bytes)| Append {
                partition: *partition,
                sent,
                bytes,
            })
            .collect();
        for appended in log.append_all(&appends) {
            appended.expect("the broker takes it");
        }
        behind = behind.max(unix_milliseconds() - due);
    }
    behind
}

fn records(
    agent: AgentId,
    bodies: &[(Vec<u8>, u64)],
    bucket: i64,
    number: u64,
    packer: &mut Packer,
) -> Vec<(u32, Vec<u8>)> {
    let of_partition = |(partition, (body, states)): (u32, &(Vec<u8>, u64))| {
        let header = Header {
            agent,
            epoch: 1,
            bucket_start: bucket,
            bucket_width: WIDTH as u32,
            sequence: number,
            parts: 1,
            publication: Some(Publication {
                states_before: number * states,
                partitions: bodies.len() as u32,
                is_last: false,
            }),
            ..Header::default()
        };
        (partition, packer.pack(&header, body))
    };
    (0..).zip(bodies).map(of_partition).collect()
}

/// Arrival of the results of each bucket, by partition: Unix milliseconds, and the number of states.
type Arrivals = BTreeMap<i64, BTreeMap<u32, (i64, u64)>>;

fn arrivals(address: &str, partitions: u32, last: i64) -> Arrivals {
    let mut log = KafkaLog::open(&brokers(address, partitions)).expect("a log");
    let (mut arrivals, mut from, mut late) = (Arrivals::new(), vec![0; partitions as usize], 0);
    let until = Instant::now() + Duration::from_secs(600);
    let is_complete = |arrivals: &Arrivals| {
        arrivals
            .get(&last)
            .is_some_and(|of| of.len() as u32 == partitions)
    };
    while !is_complete(&arrivals) && Instant::now() < until {
        for partition in 0..partitions {
            let results = log.results(partition, from[partition as usize], 1 << 20);
            for (number, bytes) in results.expect("results") {
                from[partition as usize] = number + 1;
                let (closed, _) = BucketResult::decode(&bytes).expect("a result");
                let of = arrivals.entry(closed.bucket_start).or_default();
                let (_, states) = of.entry(partition).or_insert((unix_milliseconds(), 0));
                if closed.part == 0 {
                    *states += closed.states;
                }
                late += u64::from(matches!(closed.occasion, Occasion::Late { .. }));
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    println!("corrections, because agents or owners were later than the grace: {late}");
    arrivals
}

fn report(arrivals: &Arrivals, states: u64, killed: Option<(i64, i64)>) {
    let per_second = states / WIDTH as u64;
    println!("states per bucket: {states}, per second: {per_second}");
    // Owners that begin know no agents, and close buckets by grace alone for the first minute.
    let settled = arrivals
        .keys()
        .next()
        .map_or(0, |first| first + Settings::default().grace);
    let mut worst = 0;
    for (bucket, of) in arrivals {
        // Agents spread their sending over one bucket after its end. Any later arrival is lag.
        let lag = |at: i64| at - (bucket + 2 * WIDTH) * 1000;
        let times: Vec<i64> = of.values().map(|(at, _)| lag(*at)).collect();
        let (first, last) = (times.iter().min().unwrap_or(&0), times.iter().max().unwrap_or(&0));
        let merged: u64 = of.values().map(|(_, states)| states).sum();
        println!(
            "bucket {bucket}: results of the partitions {first} to {last} ms after the last agents, {merged} states"
        );
        assert_eq!(
            merged, states,
            "of bucket {bucket} not every state is merged once"
        );
        if *bucket >= settled && killed.is_none_or(|(of_kill, _)| *bucket < of_kill) {
            worst = worst.max(*last);
        }
    }
    println!("lag: at most {worst} ms after the first minute, while all owners ran");
    if let Some((bucket, at)) = killed {
        let last = arrivals[&bucket].values().map(|(at, _)| *at).max();
        let took = last.unwrap_or(at) - at;
        println!(
            "recovery: the last results of the bucket that was due when an owner was killed came {took} ms later"
        );
    }
}
