//! The pages of docs/migrate: their commands on a configuration of the other program, and their way side by side with whatever listens
//! where the other program would.

use crate::support;
use std::io::{BufRead as _, BufReader};
use std::net::UdpSocket;
use std::process::{Command, Stdio};

use support::ports::free_address;
use support::{Agent, PATIENCE, Starter, configurations, status, until};

struct Page {
    text: &'static str,
    /// The command and the name of the other program's file on the page.
    command: &'static str,
    /// A file that the other program takes.
    theirs: &'static str,
    /// Required parts of the result.
    ours: &'static [&'static str],
}

const PAGES: &[Page] = &[
    Page {
        text: include_str!("../../../docs/migrate/datadog-agent.md"),
        command: "weir convert datadog /etc/datadog-agent/datadog.yaml > weir.yaml",
        theirs: "api_key: 0123456789abcdef0123456789abcdef\nsite: datadoghq.eu\ndogstatsd_port: 8125\ntags: [team:x]\nproxy:\n  https: http://proxy:3128\n",
        ours: &[
            "site: datadoghq.eu",
            "udp: [127.0.0.1:8125]",
            "team:x",
            "proxy: http://proxy:3128",
        ],
    },
    Page {
        text: include_str!("../../../docs/migrate/statsd_exporter.md"),
        command: "weir convert statsd-exporter mapping.yml -- --statsd.listen-udp=:9125 --web.listen-address=:9102 > weir.yaml",
        theirs: "mappings:\n- match: jobs.*\n  name: jobs\n  labels: {job: $1}\n  ttl: 1m\n",
        ours: &[
            "udp: ['*:9125']",
            "admin: '*:9102'",
            "listener: udp://*:9125",
            "listener: tcp://*:9125",
            "gauge_deltas: true",
            "sample_lists: true",
            "total_suffix: false",
            "merge_names: true",
        ],
    },
    Page {
        text: include_str!("../../../docs/migrate/telegraf.md"),
        command: "weir convert telegraf /etc/telegraf/telegraf.conf > weir.yaml",
        theirs: "[agent]\n  interval = \"5s\"\n[[inputs.statsd]]\n  service_address = \":8125\"\n  percentiles = [90.0]\n  templates = [\"jobs.* measurement.job\"]\n[[outputs.influxdb_v2]]\n  urls = [\"http://influx:8086\"]\n  bucket = \"b\"\n  organization = \"o\"\n  token = \"secret\"\n",
        ours: &[
            "bucket_width: 5s",
            "udp: ['*:8125']",
            "tag_styles: [influx]",
            "url: http://influx:8086",
            "bucket: b",
            "integers: true",
            "statsd_gauge_deltas: true",
        ],
    },
    Page {
        text: include_str!("../../../docs/migrate/gostatsd.md"),
        command: "weir convert gostatsd gostatsd.toml > weir.yaml",
        theirs: "metrics-addr=':8125'\nflush-interval='10s'\nbackends='graphite influxdb'\n\n[influxdb]\napi-endpoint='http://influx:8086'\napi-version=1\ndatabase='stats'\n\n[graphite]\naddress='carbon:2003'\n\n[filter.x]\nmatch-metrics='noisy.*'\ndrop-metric=true\n",
        ours: &[
            "bucket_width: 10s",
            "udp: ['*:8125']",
            "address: tcp://carbon:2003",
            "url: http://influx:8086",
            "database: stats",
        ],
    },
    Page {
        text: include_str!("../../../docs/migrate/dogstatsd.md"),
        command: "weir convert datadog /etc/datadog-dogstatsd/dogstatsd.yaml > weir.yaml",
        theirs: "api_key:\nskip_ssl_validation: no\nhostname: box\nuse_dogstatsd: yes\ndogstatsd_port: 9125\ndogstatsd_socket: /tmp/weir-dogstatsd.socket\n\
                 dogstatsd_non_local_traffic: no\ndogstatsd_buffer_size: 1024\nenable_metadata_collection: true\nlog_level: info\n",
        ours: &[
            "udp: [127.0.0.1:9125]",
            "hostname: box",
            "/tmp/weir-dogstatsd.socket",
        ],
    },
    Page {
        text: include_str!("../../../docs/migrate/veneur.md"),
        command: "",
        theirs: "",
        ours: &[],
    },
];

fn sh(directory: &std::path::Path, command: &str) -> String {
    let output = Command::new("sh")
        .args(["-ec", command])
        .current_dir(directory)
        .env_clear()
        .env("PATH", format!("{}:/usr/bin:/bin", directory.display()))
        .env("DD_API_KEY", "0123456789abcdef0123456789abcdef")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{command}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_commands_of_each_page_produce_a_configuration_that_weir_accepts() {
    for page in PAGES.iter().filter(|page| !page.command.is_empty()) {
        assert!(page.text.contains(page.command), "{}", page.command);
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_weir"), directory.path().join("weir")).unwrap();
        let file = page.command.split_whitespace().nth(3).unwrap();
        let here = file.rsplit('/').next().unwrap();
        std::fs::write(directory.path().join(here), page.theirs).unwrap();
        sh(directory.path(), &page.command.replace(file, here));
        let checked = sh(directory.path(), "weir check --config weir.yaml");
        let converted = std::fs::read_to_string(directory.path().join("weir.yaml")).unwrap();
        for part in page.ours {
            let is_there = checked.contains(part) || converted.contains(part);
            assert!(is_there, "{part}: {converted}\n{checked}");
        }
    }
}

/// A command of the page, as the shell splits it.
fn command<'a>(page: &'a Page, begins: &str) -> Vec<&'a str> {
    let line = page.text.lines().find(|line| line.trim().starts_with(begins));
    line.expect(begins).split_whitespace().skip(1).collect()
}

/// The page's capture and replay: what was captured arrives at the other program again. The end of the agent ends the capture: all that
/// it counts is then in the file, where an interrupt would come before what is on its way.
fn replayed(page: &Page, beside: Agent, admin: &str, target: &UdpSocket) {
    let directory = tempfile::tempdir().unwrap();
    let mut capturing = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(command(page, "weir capture"))
        .args(["--admin", admin])
        .current_dir(directory.path())
        .env_clear()
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(capturing.stderr.take().unwrap())
        .read_line(&mut said)
        .unwrap();
    assert!(said.starts_with("capturing for"), "{said}");
    let line = "captured:1|c|#a:b";
    beside.send(line);
    let mut bytes = [0; 1500];
    let length = target.recv(&mut bytes).unwrap();
    assert_eq!(
        std::str::from_utf8(&bytes[..length]).unwrap().trim_end(),
        line,
        "as it came"
    );
    until("it is captured", || status(admin)["taps"]["packets"] == 1);
    beside.stop();
    assert!(capturing.wait().unwrap().success());
    let mut replay = command(page, "weir replay");
    let to = format!("udp://{}", target.local_addr().unwrap());
    *replay.last_mut().unwrap() = &to;
    let replayed = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(replay)
        .current_dir(directory.path())
        .env_clear()
        .output()
        .unwrap();
    assert!(
        replayed.status.success(),
        "{}",
        String::from_utf8_lossy(&replayed.stderr)
    );
    let length = target.recv(&mut bytes).unwrap();
    assert_eq!(&bytes[..length], line.as_bytes(), "replayed");
}

#[test]
fn side_by_side_the_other_program_receives_all_traffic_and_can_take_over_again() {
    for page in PAGES {
        let target = UdpSocket::bind("127.0.0.1:0").unwrap();
        target.set_read_timeout(Some(PATIENCE)).unwrap();
        let configs = configurations(page.text);
        // Blocks of a list stand further in.
        let indented = page.text.split("```yaml\n").count() - 1;
        assert_eq!(indented, 1, "a page has one configuration for side by side");
        let config: String = configs[0]
            .lines()
            .map(|line| line.strip_prefix("   ").unwrap_or(line).to_owned() + "\n")
            .collect();
        let place = config.split("udp://").nth(1).unwrap().split('\'').next().unwrap();
        let config = config.replace(place, &target.local_addr().unwrap().to_string());
        // The test lets go of the port and takes it again, when nobody else may have it.
        let starter = Starter::from(&config);
        let mut beside = starter.arguments(["--udp", free_address().as_str()]).start();
        let admin = beside.wait_for("admin on http://");
        let line = "page.views:3|c|#a:b";
        beside.send(line);
        let mut bytes = [0; 1500];
        let length = target.recv(&mut bytes).unwrap();
        assert_eq!(std::str::from_utf8(&bytes[..length]).unwrap().trim_end(), line);
        until("weir counts it too", || {
            status(&admin)["total"]["messages"]["received"] == 1
        });
        let address = beside.address().to_owned();
        replayed(page, beside, &admin, &target);
        // Back: the other program takes the clients' port.
        let back = UdpSocket::bind(&address).unwrap();
        back.set_read_timeout(Some(PATIENCE)).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.send_to(line.as_bytes(), &address).unwrap();
        assert_eq!(back.recv(&mut bytes).unwrap(), line.len());
    }
}
