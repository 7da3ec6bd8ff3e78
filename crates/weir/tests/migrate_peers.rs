//! The pages of docs/migrate with the real programs: Telegraf, built through the module proxy, which writes to a real InfluxDB, and
//! gostatsd, where there is one. weir gets the converted configuration and the port of the clients, and passes on what comes; what
//! both store is compared series by series; then the switch, and the way back. What differs is named on the page.

use crate::support;
use crate::support::receivers;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use receivers::{Killed, free_address, go_installed};
use support::influxdb::InfluxDb;
use support::{Agent, Starter, configurations, said, until};

/// Stored fields or paths, each with its first value.
type Stored = BTreeMap<String, f64>;

/// Several buckets, and as many flushes of both programs.
const LONG_ENOUGH: Duration = Duration::from_secs(20);

/// weir with this configuration, once it has been checked, on the port of the clients.
fn weir_beside(directory: &Path, config: &str, clients: &str) -> Agent {
    let path = directory.join("weir.yaml");
    std::fs::write(&path, config).unwrap();
    said(&["check", "--config", path.to_str().unwrap()]);
    let agent = Starter::from(config).configured(&["udp", "hostname"]).start();
    assert_eq!(agent.address(), clients);
    agent
}

fn reload(agent: &mut Agent, config: &str) {
    agent.rewrite(config);
    agent.signal("-HUP");
    agent.wait_for("reload");
}

/// The other program with this configuration.
fn started(program: &Path, flag: &str, path: &Path, config: &str) -> Killed {
    std::fs::write(path, config).unwrap();
    let child = Command::new(program)
        .arg(flag)
        .arg(path)
        .env_clear()
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Killed(child.unwrap())
}

fn send(messages: &str, to: &str) {
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.send_to(messages.as_bytes(), to).unwrap();
}

/// The other program's configuration as weir's.
fn converted(peer: &str, path: &Path) -> String {
    said(&["convert", peer, path.to_str().unwrap()])
}

/// The converted configuration with the relay of the page's block.
fn with_relay(converted: &str, page: &str, to: &str) -> String {
    let block = configurations(page)[0];
    let relay = block.lines().skip_while(|line| line.trim() != "relay:");
    let relay: String = relay
        .filter(|line| !line.trim().is_empty())
        .map(|line| line.strip_prefix("   ").unwrap().replace("127.0.0.1:8135", to) + "\n")
        .collect();
    assert!(relay.contains(to), "{relay}");
    assert_eq!(converted.matches("outputs:\n").count(), 1, "{converted}");
    converted.replace("outputs:\n", &format!("outputs:\n{relay}"))
}

/// Differences between the two programs: missing and different values.
fn differences(theirs: &Stored, ours: &Stored) -> Vec<String> {
    let mut found = Vec::new();
    for (name, value) in theirs {
        match ours.get(name) {
            None => found.push(format!("{name} {value} is missing")),
            Some(own) if (own - value).abs() > 1e-9 * value.abs() => {
                found.push(format!("{name} is {own}, there {value}"));
            }
            Some(_) => {}
        }
    }
    let more = ours.iter().filter(|(name, _)| !theirs.contains_key(*name));
    found.extend(more.map(|(name, value)| format!("{name} {value} is not there")));
    found
}

/// Compares until nothing differs but what the page names, and all of that does: each as a part of the difference, and what the page
/// says of it.
fn compare(page: &str, named: &[(&str, &str)], mut stored: impl FnMut() -> [Stored; 2]) -> usize {
    let start = Instant::now();
    loop {
        let [theirs, ours] = stored();
        let found = differences(&theirs, &ours);
        let is_named = |line: &&String| named.iter().any(|(part, _)| line.contains(part));
        let unnamed: Vec<_> = found.iter().filter(|line| !is_named(line)).collect();
        let idle: Vec<_> = named
            .iter()
            .filter(|(part, _)| !found.iter().any(|line| line.contains(part)))
            .collect();
        if unnamed.is_empty() && idle.is_empty() && !theirs.is_empty() {
            named
                .iter()
                .for_each(|(_, said)| assert!(page.contains(said), "the page does not say {said}"));
            return theirs.len();
        }
        assert!(
            start.elapsed() < LONG_ENOUGH,
            "differ: {unnamed:#?}\nnamed and do not differ: {idle:#?}\ntheirs: {theirs:#?}\nours: {ours:#?}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Measurements of both databases without the marker, each with its first value; events have texts.
fn fields(database: &InfluxDb, name: &str) -> Stored {
    let fields = database.fields(name).into_iter();
    let first = fields.map(|(field, values)| (field, values[0].as_f64().unwrap_or(f64::NAN)));
    first.filter(|(field, _)| !field.starts_with("warm{")).collect()
}

const TELEGRAF: &str = include_str!("../../../docs/migrate/telegraf.md");

const TELEGRAF_LINES: &[&str] = &[
    "page.views:5|c|#env:prod",
    "page.views:2|c|#env:prod",
    "page.views:1|c|#env:test,bare",
    "sampled:3|c|@0.1",
    "a.name.of.five.parts:1|c",
    "queue,env=prod:7|g",
    "level:10|g",
    "level:+5|g",
    "level:-3|g",
    "users:ada|s",
    "users:bob|s",
    "users:ada|s",
    "cpu.load.web1:0.5|g",
    "load.time:4|ms",
    "load.time:1|ms",
    "load.time:2|ms",
    "size:0.25|h|#host:db1",
    "sampled.time:100|ms|@0.25",
    // From here on what differs.
    "third:1|c|@0.3",
    "third:1|c|@0.3",
    "thirds.time:100|ms|@0.3",
    "even:4|ms",
    "even:1|ms",
    "even:2|ms",
    "even:3|ms",
    "spread:0.25|d",
    "cpu.user.field.web1:1|g",
    "twice:1|c|#k:1,k:2",
    "empty:1|c|#k:",
    "_e{6,4}:deploy|done",
];

/// Parts of differences, and what the page says of them.
const TELEGRAF_NAMED: &[(&str, &str)] = &[
    (".median", "`median`"),
    (".stddev", "`stddev`"),
    ("third{", "the fraction of a sample rate"),
    ("thirds_time{", "the fraction of a sample rate"),
    ("even{", "rank of a percentile"),
    ("spread{", "each sample of a distribution"),
    ("twice{", "Several values of one key"),
    ("empty{", "without a value"),
    ("deploy{", "Events"),
    ("cpu{", "A template's `field`"),
    ("cpu_user{", "A template's `field`"),
];

fn telegraf_config(address: &str, database: &str) -> String {
    format!(
        "[global_tags]\n  dc = \"x\"\n[agent]\n  interval = \"3s\"\n  flush_interval = \"1s\"\n  hostname = \"here\"\n[[inputs.statsd]]\n  service_address = \"{address}\"\n  \
         percentiles = [50.0, 90.0, 99.9]\n  datadog_extensions = true\n  datadog_distributions = true\n  templates = [\"cpu.load.* measurement.measurement.host\", \"cpu.user.* measurement.field.x.host\"]\n\
         [[outputs.influxdb]]\n  urls = [\"http://{database}\"]\n  database = \"stats\"\n"
    )
}

/// In the gate: migrate_pages::the_commands_of_each_page_produce_a_configuration_that_weir_accepts; influx::, which writes to a real InfluxDB.
#[test]
#[ignore = "nightly: builds Telegraf"]
fn telegraf_and_weir_store_the_same_and_can_take_each_others_place() {
    const PACKAGE: &str = "github.com/influxdata/telegraf/cmd/telegraf@v1.37.2";
    let tags = ["-tags", "custom,inputs.statsd,outputs.influxdb"];
    let Some(program) = go_installed(PACKAGE, &tags) else {
        return;
    };
    let database = InfluxDb::start();
    database.create("weir");
    let directory = tempfile::tempdir().unwrap();
    let (clients, beside) = (free_address(), free_address());
    let path = directory.path().join("telegraf.conf");
    let original = telegraf_config(&clients, &database.address);
    std::fs::write(&path, &original).unwrap();
    let converted = converted("telegraf", &path);

    // Side by side.
    let telegraf = started(
        &program,
        "--config",
        &path,
        &telegraf_config(&beside, &database.address),
    );
    let other_database = TELEGRAF.contains("`database: weir`");
    assert!(other_database, "the page keeps both apart");
    let config = with_relay(&converted, TELEGRAF, &beside).replace("database: stats", "database: weir");
    // However slow the machine is: the gauge is known in the next interval.
    let config = format!("{config}context_expiry: 1h\n");
    let mut agent = weir_beside(directory.path(), &config, &clients);
    until("both have written", || {
        send("warm:1|c", &clients);
        let has = |name| {
            database
                .fields(name)
                .keys()
                .any(|field| field.starts_with("warm{"))
        };
        has("stats") && has("weir")
    });
    // At once behind a flush, so that all of it is in one interval of each.
    send(&TELEGRAF_LINES.join("\n"), &clients);
    let stored = || ["stats", "weir"].map(|name| fields(&database, name));
    let compared = compare(TELEGRAF, TELEGRAF_NAMED, stored);
    assert!(compared >= 50, "only {compared} fields");

    // A change of a gauge in a later interval.
    send("level:+5|g", &clients);
    let last = |name: &str| {
        let fields = database.fields(name);
        let level = fields.iter().find(|(field, _)| field.starts_with("level{"));
        level.and_then(|(_, values)| values.get(1)?.as_f64())
    };
    until("both have the change", || {
        last("stats").is_some() && last("weir").is_some()
    });
    assert_eq!((last("stats"), last("weir")), (Some(5.0), Some(17.0)));
    assert!(TELEGRAF.contains("`delete_gauges`"));

    // The switch: without the relay, to the database that Telegraf wrote to.
    reload(&mut agent, &converted);
    drop(telegraf);
    let count = |name: &str| {
        let fields = database.fields("stats");
        let of_name = fields.iter().filter(|(field, _)| field.starts_with(name));
        of_name.map(|(_, values)| values.len()).max().unwrap_or(0)
    };
    // InfluxDB refuses a field of another type than the one that it has.
    let known = ["sampled{", "queue{", "users{", "size{"];
    let before = known.map(count);
    send(
        "sampled:1|c\nqueue,env=prod:8|g\nusers:eve|s\nsize:1|h|#host:db1",
        &clients,
    );
    until("weir goes on with what Telegraf wrote", || {
        let now = known.map(count);
        now.iter().zip(before).all(|(now, before)| *now > before)
    });

    // And back.
    agent.stop();
    let _telegraf = started(&program, "--config", &path, &original);
    until("Telegraf is back", || {
        send("back:1|c", &clients);
        count("back{") > 0
    });
}

const GOSTATSD: &str = include_str!("../../../docs/migrate/gostatsd.md");

const GOSTATSD_LINES: &[&str] = &[
    "page.views:5|c|#env:prod",
    "page.views:2|c|#env:prod",
    "page.views:1|c|#env:test",
    "sampled:3|c|@0.1",
    "queue:-2|g|#env:prod",
    "absolute:+5|g",
    "packed:3:4|c",
    "of.host:1|c|#host:db1",
    "users:ada|s",
    "users:bob|s",
    "users:ada|s",
    "load.time:4|ms",
    "load.time:1|ms",
    "load.time:2|ms",
    "size:0.25|h",
    "a/b c:1|c",
    "odd!name:1|g",
    "sampled.time:100|ms|@0.25",
    // From here on what differs.
    "several:1|g",
    "several:2|g",
    "third:1|c|@0.3",
    "third:1|c|@0.3",
    "packed.time:1:2:3|ms",
    "spread:0.25|d",
    "bare:1|c|#word",
];

/// Parts of differences, and what the page says of them.
const GOSTATSD_NAMED: &[(&str, &str)] = &[
    ("several", "the first value of a gauge"),
    ("third", "the fraction of a sample rate"),
    ("packed.time.count", "several values in one message"),
    ("spread.", "Distributions"),
];

fn gostatsd_config(mode: &str, address: &str, carbon: &str) -> String {
    format!(
        "metrics-addr='{address}'\nflush-interval='2s'\nbackends='graphite'\nignore-host=true\nmax-workers=1\n[graphite]\naddress='{carbon}'\nmode='{mode}'\n"
    )
}

/// A receiver of Graphite's lines, which keeps them.
#[derive(Clone)]
struct Carbon {
    address: String,
    lines: Arc<Mutex<Vec<(String, f64)>>>,
}

impl Carbon {
    fn start() -> Carbon {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let carbon = Carbon {
            address: listener.local_addr().unwrap().to_string(),
            lines: Arc::default(),
        };
        let taking = carbon.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let taking = taking.clone();
                std::thread::spawn(move || {
                    for line in BufReader::new(stream).lines().map_while(Result::ok) {
                        let mut words = line.split(' ');
                        let (path, value) = (words.next().unwrap(), words.next().unwrap());
                        let mut lines = taking.lines.lock().unwrap();
                        lines.push((path.to_owned(), value.parse().unwrap()));
                    }
                });
            }
        });
        carbon
    }

    /// The first value of each path below a root, without it, but for the program's own series and the markers. In the mode `legacy` counts
    /// are below another.
    fn first(&self, root: &str) -> Stored {
        let mut found = Stored::new();
        for (path, value) in self.lines.lock().unwrap().iter() {
            let is_other = ["statsd.", "warm"].iter().any(|own| path.contains(own));
            let rest = path.strip_prefix(root).filter(|_| !is_other);
            if let Some(rest) = rest.filter(|rest| rest.starts_with(['.', '_'])) {
                found.entry(rest.to_owned()).or_insert(*value);
            }
        }
        found
    }

    fn has(&self, path: &str) -> bool {
        self.lines.lock().unwrap().iter().any(|(known, _)| known == path)
    }
}

/// As exact as what gostatsd writes: six decimals, and rates by a measured time, which is some percent more or less than the interval;
/// these are rounded to powers of two.
fn rounded(stored: Stored) -> Stored {
    assert!(GOSTATSD.contains("measured time"));
    let rounded = stored.into_iter().map(|(path, value)| {
        let name = path.split(';').next().unwrap();
        // In the mode `legacy` a counter's rate has no more than its name.
        let is_plain = ["_counts.", ".counters.", ".gauges.", ".sets.", ".timers."];
        let is_legacy = !is_plain.iter().any(|kind| name.starts_with(kind));
        let is_rate = is_legacy || name.ends_with(".rate") || name.ends_with(".count_ps");
        let rounded = match is_rate {
            true => value.log2().round(),
            false => (value * 1e6).round() / 1e6,
        };
        (path, rounded)
    });
    rounded.collect()
}

/// `GOSTATSD_BIN`, or one in `PATH`: the module proxy does not have its versions.
fn gostatsd() -> Option<PathBuf> {
    let named = std::env::var_os("GOSTATSD_BIN").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|directory| directory.join("gostatsd"));
    let found = named.or_else(|| found.into_iter().find(|program| program.is_file()));
    if found.is_none() {
        eprintln!("skipped: there is no gostatsd in PATH, and GOSTATSD_BIN names none");
    }
    found
}

/// With tags, without them, and with the old names.
/// In the gate: migrate_pages::the_commands_of_each_page_produce_a_configuration_that_weir_accepts; carbon::, which writes to a real carbon;
/// graphite::counters_can_have_statsds_old_names of weir-output.
#[test]
#[ignore = "nightly: needs a gostatsd"]
fn gostatsd_and_weir_store_the_same_and_can_take_each_others_place() {
    beside_gostatsd("tags", ("bare.", "`unnamed=word`"), 70);
    for mode in ["basic", "legacy"] {
        beside_gostatsd(mode, ("page.views", "all but one get a suffix"), 70);
    }
}

/// Named differences are those of all modes and one more.
fn beside_gostatsd(mode: &str, more: (&str, &str), least: usize) {
    let Some(program) = gostatsd() else { return };
    let named: Vec<_> = GOSTATSD_NAMED.iter().copied().chain([more]).collect();
    let carbon = Carbon::start();
    let directory = tempfile::tempdir().unwrap();
    let (clients, beside) = (free_address(), free_address());
    let path = directory.path().join("gostatsd.toml");
    let original = gostatsd_config(mode, &clients, &carbon.address);
    std::fs::write(&path, &original).unwrap();
    let converted = converted("gostatsd", &path);

    // Side by side.
    let gostatsd = started(
        &program,
        "--config-path",
        &path,
        &gostatsd_config(mode, &beside, &carbon.address),
    );
    assert!(GOSTATSD.contains("`prefix: weir`"), "the page keeps both apart");
    let config = with_relay(&converted, GOSTATSD, &beside).replace("prefix: stats", "prefix: weir");
    let mut agent = weir_beside(directory.path(), &config, &clients);
    let path_of = |root: &str, name: &str| match mode {
        "legacy" => format!("{root}_counts.{name}"),
        _ => format!("{root}.counters.{name}.count"),
    };
    until("both have written", || {
        send("warm:1|c", &clients);
        ["stats", "weir"]
            .iter()
            .all(|root| carbon.has(&path_of(root, "warm")))
    });
    send(&GOSTATSD_LINES.join("\n"), &clients);
    let stored = || ["stats", "weir"].map(|root| rounded(carbon.first(root)));
    let compared = compare(GOSTATSD, &named, stored);
    assert!(compared >= least, "only {compared} paths");

    // The switch, and back.
    reload(&mut agent, &converted);
    drop(gostatsd);
    send("switched:1|c", &clients);
    until("weir writes in its place", || {
        carbon.has(&path_of("stats", "switched"))
    });
    agent.stop();
    let _gostatsd = started(&program, "--config-path", &path, &original);
    until("gostatsd is back", || {
        send("back:1|c", &clients);
        carbon.has(&path_of("stats", "back"))
    });
}
