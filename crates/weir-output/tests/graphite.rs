//! The Graphite output: lines, collisions of names, and receivers that misbehave.

use crate::support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use weir_aggregate::Expansion;
use weir_output::delivery::{Clock, Delivery, OutputStatus, Reason};
use weir_output::graphite::{Aggregate, CounterForm, GraphiteSettings, Host, Tags};
use weir_output::settings::Start;

fn start(name: &str, settings: &GraphiteSettings, clock: Clock) -> Delivery {
    settings
        .start(name, &Arc::new(Expansion::default()), &environment(clock))
        .unwrap()
}

#[derive(Clone, Copy)]
enum Manner {
    /// Reads everything and closes, as carbon does.
    Take,
    /// Reads everything and keeps the connection.
    Keep,
    /// Never reads.
    Hang,
    /// A byte now and then.
    Trickle,
    /// Closes before it has read anything.
    Close,
    /// Reads a little and closes.
    Half,
    /// Answers, which no receiver of this protocol does, then takes everything.
    Chat,
}

/// A receiver whose manners a script decides, connection by connection.
#[derive(Clone)]
struct Receiver {
    address: String,
    /// Data of whole connections.
    taken: Arc<Mutex<Vec<String>>>,
}

impl Receiver {
    async fn start(script: impl Fn() -> Manner + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let receiver = Self {
            address: format!("tcp://{}", listener.local_addr().unwrap()),
            taken: Arc::default(),
        };
        let server = receiver.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(server.clone().serve(socket, script()));
            }
        });
        receiver
    }

    async fn serve(self, mut socket: TcpStream, manner: Manner) {
        let mut text = String::new();
        match manner {
            Manner::Hang => std::future::pending().await,
            Manner::Close => return,
            Manner::Half => return drop(socket.read(&mut [0; 10]).await),
            Manner::Trickle => loop {
                if !socket.read(&mut [0; 1]).await.is_ok_and(|n| n > 0) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            },
            Manner::Chat => drop(socket.write_all(b"hello, who are you?\n").await),
            Manner::Take | Manner::Keep => {}
        }
        if socket.read_to_string(&mut text).await.is_ok() {
            self.taken.lock().unwrap().push(text);
        }
        if let Manner::Keep = manner {
            std::future::pending().await
        }
    }

    /// Lines of all connections: path to value and time.
    fn lines(&self) -> BTreeMap<(String, i64), f64> {
        self.taken
            .lock()
            .unwrap()
            .iter()
            .flat_map(|text| parse(text))
            .collect()
    }
}

/// Every line is one that carbon takes.
fn parse(text: &str) -> Vec<((String, i64), f64)> {
    assert!(text.is_empty() || text.ends_with('\n'));
    let line = |line: &str| {
        let parts: Vec<&str> = line.split_whitespace().collect();
        let [path, value, time] = parts[..] else {
            panic!("{line:?}")
        };
        ((path.to_owned(), time.parse().unwrap()), value.parse().unwrap())
    };
    text.lines().map(line).collect()
}

/// Path and value of each point of one bucket.
async fn encode(settings: GraphiteSettings, messages: &str) -> (BTreeMap<String, f64>, OutputStatus) {
    let receiver = Receiver::start(|| Manner::Take).await;
    let settings = GraphiteSettings {
        address: receiver.address.clone(),
        ..settings
    };
    let output = start("graphite", &settings, Clock::system());
    batches(messages).iter().for_each(|batch| output.submit(batch));
    output.shutdown(DEADLINE).await;
    let status = output.status();
    assert!(status.balances() && idle(&status), "{status:#?}");
    let lines = receiver.lines();
    assert_eq!(
        status.endpoints[0].delivered.points,
        lines.len() as u64,
        "no path twice"
    );
    let lines = lines.into_iter().map(|((path, time), value)| {
        assert!(time >= BUCKET);
        (path, value)
    });
    (lines.collect(), status)
}

fn shown(lines: &BTreeMap<String, f64>) -> Vec<String> {
    lines
        .iter()
        .map(|(path, value)| format!("{path} {value}"))
        .collect()
}

/// Names as a StatsD server writes them: equal names of different kinds are different paths.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_kind_has_its_prefix() {
    let kinds = [("counter", "counters"), ("timing", "timers"), ("set", "")];
    let settings = GraphiteSettings {
        prefix: "stats".into(),
        kind_prefixes: kinds.map(|(kind, prefix)| (kind.into(), prefix.into())).into(),
        aggregates: vec![Aggregate::Count],
        percentiles: vec![],
        host: Host::None,
        ..graphite("")
    };
    let (lines, _) = encode(settings, "a:1|c\na:2|ms\na:3|s\nb:4|g\n").await;
    assert_eq!(
        shown(&lines),
        [
            "stats.a 1",
            "stats.b 4",
            "stats.counters.a.count 1",
            "stats.timers.a.count 1"
        ]
    );
}

/// The names that StatsD once gave counters, which are those of `legacyNamespace` and of gostatsd's mode `legacy`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_can_have_statsds_old_names() {
    let all = [
        CounterForm::LegacyCount,
        CounterForm::Rate,
        CounterForm::LegacyRate,
        CounterForm::Count,
    ];
    let settings = GraphiteSettings {
        prefix: "stats".into(),
        kind_prefixes: [("counter".into(), "counters".into())].into(),
        counters: all.into(),
        ..graphite("")
    };
    let messages = "a.b:5|c|#env:x\nb:4|g\n";
    let (lines, status) = encode(settings.clone(), messages).await;
    assert_eq!(
        shown(&lines),
        [
            "stats.a.b;env=x;host=agent-host 0.5",
            "stats.b;host=agent-host 4",
            "stats.counters.a.b.count;env=x;host=agent-host 5",
            "stats.counters.a.b.rate;env=x;host=agent-host 0.5",
            "stats_counts.a.b;env=x;host=agent-host 5",
        ]
    );
    assert!(status.balances());
    let without = GraphiteSettings {
        prefix: String::new(),
        tags: Tags::None,
        ..settings
    };
    let (lines, _) = encode(without, messages).await;
    let first = ["a.b 0.5", "b 4", "counters.a.b.count 5"];
    assert_eq!(shown(&lines)[..3], first);
    assert_eq!(shown(&lines).last().unwrap(), "counts.a.b 5");
    // A name of its own that is the same path gets another one.
    let lines = encode(
        GraphiteSettings {
            prefix: "stats".into(),
            counters: vec![CounterForm::LegacyRate],
            host: Host::None,
            ..graphite("")
        },
        "a:5|c\na:4|g\n",
    );
    assert_eq!(lines.await.0.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_kind_in_each_form() {
    let messages = "page.views:1|c|@0.5|#env:prod,role:a/b\nqueue.size:-1.5|g|#host:db1\nusers:x|s\nusers:y|s\nt:1:2:3:4|ms|#bare,empty:,k:1,k:2\n_sc|c|0\n_e{1,1}:a|b\n";
    let (lines, status) = encode(graphite(""), messages).await;
    assert_eq!(
        shown(&lines),
        [
            "page.views.count;env=prod;host=agent-host;role=a/b 2",
            "queue.size;host=db1 -1.5",
            "t.avg;bare=true;host=agent-host;k=1,2 2.5",
            "t.count;bare=true;host=agent-host;k=1,2 4",
            "t.max;bare=true;host=agent-host;k=1,2 4",
            "t.min;bare=true;host=agent-host;k=1,2 1",
            "t.p50;bare=true;host=agent-host;k=1,2 2",
            "t.p95;bare=true;host=agent-host;k=1,2 4",
            "t.sum;bare=true;host=agent-host;k=1,2 10",
            "users;host=agent-host 2",
        ]
    );
    let dropped = status.endpoints[0].dropped[&Reason::Unsupported];
    assert_eq!((dropped.points, dropped.events, dropped.checks), (0, 1, 1));

    let form = GraphiteSettings {
        tags: Tags::Path,
        prefix: "stats.web".into(),
        host: Host::Named,
        counters: vec![CounterForm::Count, CounterForm::Rate],
        aggregates: vec![Aggregate::Count],
        percentiles: vec![0.999],
        ..graphite("")
    };
    let (lines, _) = encode(form, messages).await;
    assert_eq!(
        shown(&lines),
        [
            "stats.web.page.views.env.prod.role.a_b.count 2",
            "stats.web.page.views.env.prod.role.a_b.rate 0.2",
            "stats.web.queue.size.host.db1 -1.5",
            "stats.web.t.bare.true.k.1.2.count 4",
            "stats.web.t.bare.true.k.1.2.p99_9 4",
            "stats.web.users 2",
        ]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_distribution_is_within_its_sketchs_error() {
    let messages: String = (1..=1000).map(|i| format!("d:{i}|d\n")).collect();
    let (lines, _) = encode(graphite(""), &messages).await;
    let at = |suffix: &str| lines[&format!("d.{suffix};host=agent-host")];
    assert_eq!(
        (at("count"), at("min"), at("max"), at("sum"), at("avg")),
        (1000.0, 1.0, 1000.0, 500_500.0, 500.5)
    );
    for (suffix, expected) in [("p50", 500.0), ("p95", 950.0)] {
        assert!(
            (at(suffix) / expected - 1.0).abs() < 0.01,
            "{suffix}: {}",
            at(suffix)
        );
    }
}

/// Names that become one path are distinguished in the same way in any order, and the status says so.
/// A long node was cut to 250 bytes and then got the nine of a collision: with `.wsp` that is no name for a file, carbon dropped the
/// line, and it counted as delivered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_names_of_files_in_collisions_too() {
    let long = "n".repeat(300);
    let messages = format!(
        "{long}:1|g\n{long}:2|s\n{long}x:3|g\na.{long}.b:4|g\na.{long}x.b:5|g\nt:6|g|#k:{long}\nt:7|g|#k:{long}x\nt:8|g|#{long}:v\nt:9|g|#{long}x:v\n"
    );
    for tags in [Tags::Path, Tags::Tagged, Tags::None] {
        let settings = GraphiteSettings {
            tags,
            host: Host::None,
            ..graphite("")
        };
        let (lines, _) = encode(settings, &messages).await;
        assert_eq!(lines.len(), 9, "{tags:?}: {lines:?}");
        for path in lines.keys() {
            // Values of tags are no nodes, but in the path.
            let name = path.split(';').next().unwrap();
            let longest = name.split('.').map(str::len).max().unwrap();
            assert!(
                longest + ".wsp".len() <= 255,
                "{tags:?}: {longest} bytes in {path}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn collisions_are_resolved_by_rank_and_counted() {
    let one = "a b:1|g\n";
    let two = "a_b:2|g\n";
    let three = "a_b:x|s\n";
    let mut outcomes = BTreeSet::new();
    for order in [[one, two, three], [three, two, one], [two, three, one]] {
        let receiver = Receiver::start(|| Manner::Take).await;
        let output = start("graphite", &graphite(&receiver.address), Clock::system());
        for round in 0..2 {
            // Batches of a bucket come in an order of their own, so each message has a batch, the last one ends the bucket.
            for text in order {
                let batch = &batches_at(BUCKET + round * 10, text)[0];
                let mut batch = (**batch).clone();
                batch.last = text == order[2];
                output.submit(&Arc::new(batch));
            }
        }
        output.shutdown(DEADLINE).await;
        let lines = receiver.lines();
        assert_eq!(lines.len(), 6, "no line overwrites another: {lines:?}");
        let second: Vec<String> = lines
            .iter()
            .filter(|((_, time), _)| *time == BUCKET + 10)
            .map(|((path, _), value)| format!("{path} {value}"))
            .collect();
        assert!(
            second.contains(&"a_b;host=agent-host 2".to_owned()),
            "the unchanged gauge: {second:?}"
        );
        outcomes.insert(second);
        let details = &output.status().endpoints[0].details["renamed"];
        assert!(details.starts_with("2 lines of the last flush"), "{details}");
    }
    assert_eq!(outcomes.len(), 1, "the order did not matter: {outcomes:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_and_lines_that_cannot_be_sent_are_counted() {
    let huge = "x".repeat(5000);
    let (lines, status) = encode(
        graphite(""),
        &format!("a:1|g|#k:{huge}\nc:1e308:1e308|c\nb:1e-300|g\n"),
    )
    .await;
    assert_eq!(
        lines.into_iter().collect::<Vec<_>>(),
        [("b;host=agent-host".to_owned(), 1e-300)]
    );
    let dropped = &status.endpoints[0].dropped;
    assert_eq!(
        (
            dropped[&Reason::TooLarge].points,
            dropped[&Reason::NotFinite].points
        ),
        (1, 1)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_udp_in_whole_lines_within_the_size_of_a_datagram() {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let form = GraphiteSettings {
        datagram_bytes_max: 200,
        ..graphite(&format!("udp://{}", socket.local_addr().unwrap()))
    };
    let output = start("graphite", &form, Clock::system());
    let messages: String = (0..50).map(|i| format!("metric.{i}:{i}|g\n")).collect();
    batches(&(messages + &format!("large:1|g|#k:{}\n", "x".repeat(200))))
        .iter()
        .for_each(|batch| output.submit(batch));
    let mut lines = Vec::new();
    while lines.len() < 50 {
        let mut buffer = [0; 2048];
        let received = tokio::time::timeout(DEADLINE, socket.recv(&mut buffer))
            .await
            .unwrap()
            .unwrap();
        assert!(received <= 200);
        lines.extend(parse(std::str::from_utf8(&buffer[..received]).unwrap()));
    }
    output.shutdown(DEADLINE).await;
    let status = output.status();
    assert_eq!(
        (
            status.endpoints[0].delivered.points,
            status.endpoints[0].dropped[&Reason::TooLarge].points
        ),
        (50, 1)
    );
    assert!(
        status.balances()
            && lines
                .iter()
                .all(|((path, _), value)| *path == format!("metric.{value};host=agent-host"))
    );
}

/// One output for each fault beside a healthy one: the healthy one delivers everything, the others name their fault and keep
/// everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_healthy_output_delivers_beside_every_fault() {
    let good = Receiver::start(|| Manner::Take).await;
    let chatty = Receiver::start(|| Manner::Chat).await;
    let keeping = Receiver::start(|| Manner::Keep).await;
    let hanging = Receiver::start(|| Manner::Hang).await;
    let trickling = Receiver::start(|| Manner::Trickle).await;
    let closing = Receiver::start(|| Manner::Close).await;
    let halving = Receiver::start(|| Manner::Half).await;
    let faults: [(&str, String, &str); 7] = [
        (
            "nothing listens",
            format!("tcp://{}", dead_address()),
            "cannot connect: Connection refused",
        ),
        (
            "no such name",
            "tcp://carbon.invalid:2003".into(),
            // A machine whose name server is out of reach does not learn that there is none.
            "cannot connect|no answer within 0.3 s",
        ),
        ("never closes", keeping.address.clone(), "no answer within 0.3 s"),
        ("hangs", hanging.address.clone(), "no answer within 0.3 s"),
        ("trickles", trickling.address.clone(), "no answer within 0.3 s"),
        ("closes", closing.address.clone(), "broke off"),
        ("reads half", halving.address.clone(), "broke off"),
    ];
    let batches = batches("a:1|c\nb:2|g\nd:3|d\n");
    let mut outputs = Vec::new();
    for (name, address, _) in &faults {
        let mut settings = graphite(address);
        settings.delivery.timeout = Duration::from_millis(300);
        outputs.push(start(name, &settings, Clock::system()));
    }
    let healthy = [
        start("healthy", &graphite(&good.address), Clock::system()),
        start("chatty", &graphite(&chatty.address), Clock::system()),
    ];
    for _ in 0..20 {
        outputs
            .iter()
            .chain(&healthy)
            .for_each(|output| batches.iter().for_each(|batch| output.submit(batch)));
    }
    for output in &healthy {
        let status = wait(output, "the healthy output delivers", |status| {
            status.received.points == 180 && idle(status)
        })
        .await;
        assert_eq!(status.endpoints[0].delivered.points, 180);
    }
    for (output, (name, _, error)) in outputs.iter().zip(&faults) {
        wait_for_fault(output, name, error, 180).await;
    }
    for output in outputs.iter().chain(&healthy) {
        output.shutdown(Duration::ZERO).await;
        let status = output.status();
        assert!(status.balances() && idle(&status), "{status:#?}");
        let lost = status.endpoints[0]
            .dropped
            .get(&Reason::Shutdown)
            .map_or(0, |items| items.points);
        assert_eq!(
            lost + status.endpoints[0].delivered.points,
            180,
            "what memory alone held is counted"
        );
    }
    // Without confirmation the kernel's word counts.
    let form = GraphiteSettings {
        confirm: false,
        ..graphite(&keeping.address)
    };
    let output = start("never closes", &form, Clock::system());
    batches.iter().for_each(|batch| output.submit(batch));
    wait(&output, "delivered", |status| {
        status.endpoints[0].delivered.points == 9
    })
    .await;
    output.shutdown(DEADLINE).await;
}

/// The receiver is down for an hour of driven time while a flush closes every ten seconds; afterwards nothing is missing, and what
/// came twice came to the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_hour_without_receiver() {
    for on_disk in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let reachable = Arc::new(AtomicBool::new(true));
        let attempts = Arc::new(AtomicUsize::new(0));
        let (script, counted) = (reachable.clone(), attempts.clone());
        let receiver = Receiver::start(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            if script.load(Ordering::SeqCst) {
                Manner::Take
            } else {
                Manner::Half
            }
        })
        .await;
        let (clock, driver) = Clock::driven(BUCKET);
        let mut form = graphite(&receiver.address);
        form.delivery.backoff_max = Duration::from_secs(64);
        let mut around = environment(clock);
        if on_disk {
            form.delivery.disk_path = directory.path().display().to_string();
            form.delivery.disk_bytes_max = 64 << 20;
            // A queue that memory could not hold.
            around.memory_bytes_max = 8192;
        }
        let output = form
            .start("graphite", &Arc::new(Expansion::default()), &around)
            .unwrap();
        let (buckets, outage) = (400, 20..380);
        let mut during = 0;
        for i in 0..buckets {
            reachable.store(!outage.contains(&i), Ordering::SeqCst);
            let before = attempts.load(Ordering::SeqCst);
            batches_at(BUCKET + i * 10, &format!("a:{i}|c\nb:{i}|g|#k:v\n"))
                .iter()
                .for_each(|batch| output.submit(batch));
            settle(&output, &driver, (i as u64 + 1) * 2).await;
            if outage.contains(&i) {
                during += attempts.load(Ordering::SeqCst) - before;
            }
        }
        // An hour at 32 to 64 s between attempts; hammering would be thousands.
        assert!((50..250).contains(&during), "{during} attempts in an hour");
        let total = buckets as u64 * 2;
        while output.status().endpoints[0].delivered.points < total {
            settle(&output, &driver, total).await;
        }
        let status = output.status();
        assert!(
            status.balances() && idle(&status) && status.healthy,
            "{status:#?}"
        );
        assert!(status.endpoints[0].dropped.is_empty(), "{status:#?}");
        let held = receiver.lines();
        assert_eq!(held.len() as u64, total);
        for i in 0..buckets {
            let at = |path: &str| held[&(path.to_owned(), BUCKET + i * 10)];
            assert_eq!(
                (at("a.count;host=agent-host"), at("b;host=agent-host;k=v")),
                (i as f64, i as f64)
            );
        }
        output.shutdown(DEADLINE).await;
    }
}
