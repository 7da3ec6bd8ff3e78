//! The real binary: configuration from every source, its errors and exit codes, and each command on real
//! sockets.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;
use weir_config::{Setting, SettingType, leaves};
use weir_output::settings::OUTPUT_TYPES;

use crate::support::ports::{Refusing, free_address};
use crate::support::{Agent, PATIENCE, Ran, get, run as run_with, signal, until};

const KEY: &str = "0123456789abcdefFEDCBA9876543210";

/// Nothing of this process's environment reaches the binary.
fn binary(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(arguments).env_clear().stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Ran {
    run_with(arguments, &[])
}

/// A configuration file that goes away with the test.
struct Config {
    directory: TempDir,
    path: PathBuf,
}

impl Config {
    fn new(text: impl AsRef<[u8]>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("weir.yaml");
        std::fs::write(&path, text).unwrap();
        Self { directory, path }
    }

    fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// The line of a key in what `check` prints.
fn line<'a>(ran: &'a Ran, key: &str) -> &'a str {
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let start = format!("{key}:");
    let mut lines = ran
        .stdout
        .lines()
        .filter(|line| line.trim_start().starts_with(&start));
    lines
        .next()
        .unwrap_or_else(|| panic!("{key} is not in\n{}", ran.stdout))
}

#[test]
fn a_flag_beats_the_environment_beats_the_file_beats_the_default() {
    let config = Config::new("# one\nbucket_width: 4s\n");
    let file = config.path();
    let environment = [("WEIR_COUNTER_EXPIRY", "7"), ("DD_DOGSTATSD_EXPIRY_SECONDS", "8")];
    let found = |arguments: &[&str], environment: &[(&str, &str)], key: &str| {
        let mut all = vec!["check"];
        all.extend_from_slice(arguments);
        line(&run_with(&all, environment), key)
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(found(&[], &[], "bucket_width"), "bucket_width: 10s # default");
    let place = format!("{file}:2");
    assert_eq!(
        found(&["-c", file], &[], "bucket_width"),
        format!("bucket_width: 4s # {place}")
    );
    let variable = [("WEIR_BUCKET_WIDTH", "3")];
    assert_eq!(
        found(&["-c", file], &variable, "bucket_width"),
        format!("bucket_width: 3s # environment WEIR_BUCKET_WIDTH, over {place}")
    );
    assert_eq!(
        found(&["-c", file, "--bucket-width", "2s"], &variable, "bucket_width"),
        format!("bucket_width: 2s # flag --bucket-width, over environment WEIR_BUCKET_WIDTH, {place}")
    );
    assert_eq!(
        found(&[], &environment, "counter_expiry"),
        "counter_expiry: 7s # environment WEIR_COUNTER_EXPIRY, over environment DD_DOGSTATSD_EXPIRY_SECONDS"
    );
    assert_eq!(
        found(&[], &environment[1..], "counter_expiry"),
        "counter_expiry: 8s # environment DD_DOGSTATSD_EXPIRY_SECONDS"
    );
    // The file can be named by a variable, and any key set by the general flag.
    let named = [("WEIR_CONFIG", file)];
    assert_eq!(
        found(&[], &named, "bucket_width"),
        format!("bucket_width: 4s # {place}")
    );
    assert_eq!(
        found(&["--set", "outputs.prometheus.expiry=7m"], &[], "expiry"),
        "expiry: 7m # flag --set outputs.prometheus.expiry"
    );
}

/// A value that the kind takes and that is not its default, as text in a variable.
fn example(setting: &Setting) -> String {
    match setting.kind {
        SettingType::Bool if setting.default == "true" => "false".to_owned(),
        SettingType::Bool => "true".to_owned(),
        SettingType::Secret => KEY.to_owned(),
        SettingType::Integer { min, max } => (min + 1).min(max).to_string(),
        SettingType::Number { min, .. } => (min + 0.5).to_string(),
        SettingType::Bytes { min, .. } => (min.max(1 << 12) + 1).to_string(),
        SettingType::Duration { min, .. } => (min.as_secs() + 3).to_string(),
        SettingType::Choice(names) => names
            .iter()
            .find(|name| **name != setting.default)
            .unwrap()
            .to_string(),
        SettingType::Map(SettingType::Text) => r#"{"team": "squad"}"#.to_owned(),
        SettingType::Map(_) => format!(r#"{{"https://intake.example": ["{KEY}"]}}"#),
        SettingType::List(SettingType::Choice(names)) => names[0].to_owned(),
        SettingType::List(SettingType::Checked { .. }) if setting.key.starts_with("uds") => "/run/weir/x.sock".to_owned(),
        SettingType::List(SettingType::Checked { .. }) if setting.key.starts_with("origin") => "/run/x.sock".to_owned(),
        SettingType::List(SettingType::Checked { .. }) if setting.key == "histogram_percentiles" => "0.5 0.75".to_owned(),
        SettingType::List(SettingType::Checked { .. }) => "9125".to_owned(),
        SettingType::List(SettingType::Record(_)) if setting.key == "mapper_profiles" => {
            r#"[{"name":"p","prefix":"a.","mappings":[{"match":"a.*","match_type":"wildcard","name":"a","tags":{"x":"$1"}}]}]"#
                .to_owned()
        }
        SettingType::List(SettingType::Record(_)) => r#"[{"metric_name":"a","action":"exclude","tags":["x"]}]"#.to_owned(),
        SettingType::List(_) => "one,two three".to_owned(),
        SettingType::Checked { .. } if setting.key == "url" => "https://intake.example".to_owned(),
        SettingType::Text if setting.key == "bind_host" => "127.0.0.2".to_owned(),
        SettingType::Checked { .. } | SettingType::Text => "example.org".to_owned(),
        SettingType::Record(_) => unreachable!("a record has no variable"),
    }
}

#[test]
fn every_second_name_is_understood() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), KEY).unwrap();
    let check = |name: &str, key: &str, setting: &Setting| {
        let of_file = !setting.file_of.is_empty();
        let value = match name {
            // In the other agent's words.
            "DD_USE_V2_API_SERIES" => "false".to_owned(),
            "DD_USE_V3_API_SERIES_ENABLED" => "true".to_owned(),
            "DD_USE_V3_API_SERIES_ENDPOINTS" => r#"{"https://intake.example": "datadog_only"}"#.to_owned(),
            "DD_FORWARDER_OUTDATED_FILE_IN_DAYS" => "3".to_owned(),
            _ if of_file => secret.path().display().to_string(),
            _ => example(setting),
        };
        // The host to forward to has its port in a variable of its own.
        let mut environment = vec![("DD_STATSD_FORWARD_PORT", "8125"), (name, value.as_str())];
        if !of_file && name != "DD_API_KEY" {
            environment.push(("DD_API_KEY", KEY));
        }
        let ran = run_with(&["check"], &environment);
        let last = key.rsplit('.').next().unwrap();
        assert_eq!(ran.code, 0, "{name}={value}: {}", ran.stderr);
        let source = format!("# environment {name}");
        let found = ran.stdout.lines().any(|line| {
            line.trim_start().starts_with(&format!("{last}: "))
                && line
                    .split(", over")
                    .flat_map(|part| part.split(", holds"))
                    .next()
                    .unwrap()
                    .ends_with(&source)
        });
        assert!(found, "{name}={value} did not set {key}:\n{}", ran.stdout);
    };
    let mut names = 0;
    for setting in weir_config::settings() {
        for name in setting.also {
            check(name, setting.key, setting);
            names += 1;
        }
    }
    for output_type in OUTPUT_TYPES {
        for leaf in leaves(output_type.settings) {
            let key = format!("outputs.{}.{}", output_type.name, leaf.path);
            for name in leaf.also {
                check(name, &key, leaf.setting);
                names += 1;
            }
        }
    }
    assert!(names >= 40, "{names}");
}

#[test]
fn a_removed_setting_is_refused_with_the_reason_in_every_source() {
    let check = |arguments: &[&str], environment: &[(&str, &str)], source: &str| {
        let ran = run_with(&[&["check"], arguments].concat(), environment);
        let expected = format!("{source}: packet_bytes_max: was removed: packets may be up to 64KiB long");
        assert_eq!(ran.code, 2, "{}", ran.stderr);
        assert!(ran.stderr.contains(&expected), "{}", ran.stderr);
    };
    check(&["--packet-bytes-max", "1KiB"], &[], "flag --packet-bytes-max");
    check(
        &["--set", "packet_bytes_max=1KiB"],
        &[],
        "flag --set packet_bytes_max",
    );
    check(
        &[],
        &[("WEIR_PACKET_BYTES_MAX", "1KiB")],
        "environment WEIR_PACKET_BYTES_MAX",
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "udp: []\npacket_bytes_max: 1KiB\n").unwrap();
    let path = file.path().to_str().unwrap();
    check(&["--config", path], &[], &format!("{path}:2"));
    // Of another agent's variable that is no error.
    let ran = run_with(&["check"], &[("DD_DOGSTATSD_BUFFER_SIZE", "8192")]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let note = "environment DD_DOGSTATSD_BUFFER_SIZE is set and ignored: packets may be up to 64KiB long";
    assert!(ran.stdout.contains(note), "{}", ran.stdout);
}

#[test]
fn tags_of_both_variables_count() {
    let both = [("DD_DOGSTATSD_TAGS", "x:y"), ("DD_EXTRA_TAGS", "z:1,w:2")];
    let ran = run_with(&["check"], &both);
    let extra_tags = line(&ran, "extra_tags");
    assert!(
        extra_tags.starts_with("extra_tags: [x:y, z:1, w:2] "),
        "{extra_tags}"
    );
    assert!(
        extra_tags.ends_with(" # environment DD_DOGSTATSD_TAGS and DD_EXTRA_TAGS"),
        "{extra_tags}"
    );
    let mut own = both.to_vec();
    own.push(("WEIR_EXTRA_TAGS", "o:1"));
    let ran = run_with(&["check"], &own);
    let extra_tags = line(&ran, "extra_tags");
    assert!(extra_tags.starts_with("extra_tags: [o:1] "), "{extra_tags}");
    assert!(
        extra_tags.contains("# environment WEIR_EXTRA_TAGS, over environment DD_"),
        "{extra_tags}"
    );
}

#[test]
fn proxies_and_forwarding_of_the_datadog_agent_are_applied_or_named() {
    let ran = run_with(
        &["check"],
        &[
            ("DD_API_KEY", KEY),
            ("DD_PROXY_HTTPS", "http://me:hunter2@proxy:3128"),
            ("DD_PROXY_HTTP", "http://other:3128"),
            ("DD_PROXY_NO_PROXY", "a.example b.example"),
            ("DD_STATSD_FORWARD_HOST", "::1"),
            ("DD_STATSD_FORWARD_PORT", "8126"),
            ("DD_SKIP_SSL_VALIDATION", "true"),
            ("DD_FORWARDER_NUM_WORKERS", "1"),
        ],
    );
    let proxy = line(&ran, "proxy");
    assert!(
        proxy.contains("@proxy:3128") && proxy.contains("over environment DD_PROXY_HTTP"),
        "{proxy}"
    );
    assert!(!ran.stdout.contains("hunter2"), "{}", ran.stdout);
    assert!(line(&ran, "no_proxy").contains("[a.example, b.example]"));
    assert!(
        line(&ran, "targets").contains("[udp://[::1]:8126]")
            || line(&ran, "targets").contains("['udp://[::1]:8126']"),
        "{}",
        line(&ran, "targets")
    );
    for name in ["DD_SKIP_SSL_VALIDATION", "DD_FORWARDER_NUM_WORKERS"] {
        let said = format!("{name} is set and ignored: ");
        assert!(ran.stdout.contains(&said), "{}", ran.stdout);
    }
    for half in [
        ("DD_STATSD_FORWARD_HOST", "x"),
        ("DD_STATSD_FORWARD_PORT", "8126"),
    ] {
        let ran = run_with(&["check"], &[half]);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert!(
            ran.stdout.contains("have no effect unless both are set"),
            "{}",
            ran.stdout
        );
    }
    let wrong = [
        ("DD_STATSD_FORWARD_HOST", "x"),
        ("DD_STATSD_FORWARD_PORT", "often"),
    ];
    let ran = run_with(&["check"], &wrong);
    assert_eq!(ran.code, 2);
    assert!(
        ran.stderr.contains("\"often\"; must be from 1 to 65535"),
        "{}",
        ran.stderr
    );
}

#[test]
fn the_common_names_mean_what_they_mean_elsewhere() {
    let environment = [
        ("DD_DOGSTATSD_PORT", "9125"),
        ("DD_DOGSTATSD_NON_LOCAL_TRAFFIC", "true"),
        ("DD_DOGSTATSD_SOCKET", "/var/run/datadog/dsd.socket"),
        ("DD_TAGS", "env:prod team:a,b:c"),
        ("DD_DOGSTATSD_TAGS", "x:y"),
        ("DD_HISTOGRAM_PERCENTILES", "0.5 0.99"),
        ("DD_URL", "https://intake.example/"),
        ("DD_API_KEY", KEY),
        ("DD_DOGSTATSD_PIPE_NAME", "ignored"),
    ];
    let ran = run_with(&["check"], &environment);
    assert!(line(&ran, "udp").contains(":9125'] "), "{}", line(&ran, "udp"));
    assert!(!line(&ran, "udp").contains("127.0.0.1"), "{}", line(&ran, "udp"));
    assert!(line(&ran, "uds").contains("[/var/run/datadog/dsd.socket]"));
    assert!(line(&ran, "tags").contains("[env:prod, team:a, b:c]"));
    assert!(line(&ran, "histogram_percentiles").contains("[0.5, 0.99]"));
    assert!(line(&ran, "url").contains("https://intake.example/"));
    assert!(
        ran.stdout
            .contains("DD_DOGSTATSD_PIPE_NAME is set and ignored: is for Windows"),
        "{}",
        ran.stdout
    );
    // Compose files pass on variables that nobody set.
    let empty = [
        ("DD_API_KEY", ""),
        ("DD_DOGSTATSD_PORT", ""),
        ("WEIR_BUCKET_WIDTH", ""),
        ("DD_SITE", ""),
    ];
    let ran = run_with(&["check"], &empty);
    assert!(line(&ran, "udp").ends_with("# default") && line(&ran, "bucket_width").ends_with("# default"));
    // A port of 0 switches the listener off.
    assert!(line(&run_with(&["check"], &[("DD_DOGSTATSD_PORT", "0")]), "udp").contains("[]"));
    // A service called weir in the same Kubernetes namespace sets these in every container.
    let foreign = [
        ("WEIR_SERVICE_HOST", "10.0.0.1"),
        ("WEIR_PORT", "udp://x"),
        ("WEIR_PORT_8125_UDP_ADDR", "x"),
    ];
    assert_eq!(run_with(&["check"], &foreign).code, 0);
    // The Ruby client's switch, and the variables of the clients' tests, are set where an agent runs beside them.
    let of_clients = [
        ("WEIR_PURE_RUBY", "1"),
        ("WEIR_EXPECT_NATIVE", "0"),
        ("WEIR_BIN", "/usr/bin/weir"),
    ];
    let ran = run_with(&["check"], &of_clients);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    // Not every name that begins like one of theirs.
    assert_eq!(run_with(&["check"], &[("WEIR_PURE_RUBI", "1")]).code, 2);
}

#[test]
fn every_error_in_a_file_names_line_key_and_what_is_allowed() {
    let cases: &[(&str, &[&str])] = &[
        (
            "\nbucket_widht: 1s\n",
            &[
                ":2:",
                "\"bucket_widht\" is not a setting",
                "did you mean \"bucket_width\"?",
            ],
        ),
        ("zzz: 1\n", &[":1:", "\"zzz\" is not a setting", "known are udp"]),
        (
            "bucket_width: 10x\n",
            &[":1:", "bucket_width", "\"10x\" is not a time", "from 1s to 1h"],
        ),
        (
            "bucket_width: 1500ms\n",
            &[":1:", "bucket_width", "whole seconds"],
        ),
        ("bucket_width: 0\n", &[":1:", "bucket_width", "from 1s to 1h"]),
        (
            "bucket_width:\n",
            &[":1:", "bucket_width", "is nothing; must be a time"],
        ),
        (
            "bucket_width: [1]\n",
            &[":1:", "bucket_width", "is a list; must be a time"],
        ),
        (
            "timestamps: maybe\n",
            &[":1:", "timestamps", "\"maybe\" is not true or false"],
        ),
        ("workers: 65\n", &[":1:", "workers", "from 0 to 64"]),
        ("workers: two\n", &[":1:", "workers", "a whole number"]),
        ("cpu: -1\n", &[":1:", "cpu", "a number from 0"]),
        ("memory: lots\n", &[":1:", "memory", "a size such as"]),
        ("memory: 1MiB\n", &[":1:", "memory", "at least 8MiB"]),
        ("log_level: loud\n", &[":1:", "log_level", "one of off"]),
        (
            "udp:\n  - 1\n  - nonsense\n",
            &[":3:", "udp[1]", "\"nonsense\" is not an address"],
        ),
        ("udp: {a: 1}\n", &[":1:", "udp", "is a mapping; must be a list"]),
        (
            "udp: [8125, '127.0.0.1:8125']\n",
            &[":1:", "udp", "127.0.0.1:8125 is listed twice"],
        ),
        ("uds: [relative]\n", &[":1:", "uds[0]", "an absolute path"]),
        (
            "uds: [/a]\nuds_stream: [/a]\n",
            &[":2:", "uds_stream", "/a is listed twice"],
        ),
        ("socket_mode: 999\n", &[":1:", "socket_mode", "octal"]),
        (
            "socket_owner: no-such-user-here\n",
            &[":1:", "socket_owner", "/etc/passwd"],
        ),
        (
            "histogram_percentiles: ['95']\n",
            &[":1:", "histogram_percentiles[0]", "from 0 to 1"],
        ),
        (
            "histogram_aggregates: [mean]\n",
            &[":1:", "histogram_aggregates[0]", "one of max"],
        ),
        ("tags: ['a,b']\n", &[":1:", "tags", "a comma"]),
        (
            "eol_required: [tcp]\n",
            &[":1:", "eol_required[0]", "one of udp, uds"],
        ),
        ("admin: nowhere\n", &[":1:", "admin", "or off"]),
        ("a: 1\na: 2\n", &[":2:", "set twice, first on line 1"]),
        ("udp: [1\n", &[":1:", "not valid YAML"]),
        ("- a\n", &[":1:", "is a list; must be a mapping"]),
        ("x\n", &[":1:", "is a single value; must be a mapping"]),
        ("udp: []\n---\nudp: []\n", &[":2:", "second document"]),
        (
            "outputs: [a]\n",
            &[":1:", "outputs", "must be a mapping of names"],
        ),
        (
            "outputs:\n  promethius: {}\n",
            &[":2:", "outputs.promethius", "did you mean \"prometheus\"?"],
        ),
        (
            "outputs:\n  a:\n    type: b\n",
            &[":3:", "outputs.a", "no output of type \"b\"", "known are"],
        ),
        (
            "outputs:\n  'a b': {}\n",
            &[":2:", "outputs", "not a name of letters"],
        ),
        (
            "outputs:\n  prometheus:\n  more:\n    type: prometheus\n",
            &[
                ":3:",
                "outputs.more.enabled",
                "only one output can have the path /metrics",
            ],
        ),
        (
            "outputs:\n  prometheus:\n    expirry: 1s\n",
            &[":3:", "outputs.prometheus", "did you mean \"expiry\"?"],
        ),
        (
            "outputs:\n  prometheus: 7\n",
            &[":2:", "outputs.prometheus", "must be a mapping of settings"],
        ),
        (
            "outputs:\n  datadog:\n    site: x\n",
            &["outputs.datadog.api_key", "is missing", "DD_API_KEY"],
        ),
        (
            "outputs:\n  datadog:\n    api_key: k\n    delivery:\n      timeout: x\n",
            &[":5:", "outputs.datadog.delivery.timeout", "is not a time"],
        ),
        (
            "outputs:\n  datadog:\n    api_key: k\n    delivery:\n      tiemout: 1s\n",
            &[":5:", "outputs.datadog.delivery", "did you mean \"timeout\"?"],
        ),
        (
            "outputs:\n  datadog:\n    api_key: k\n    url: intake\n",
            &[":4:", "outputs.datadog.url", "a URL such as"],
        ),
    ];
    for (text, parts) in cases {
        let config = Config::new(text);
        for command in ["check", "run"] {
            let ran = run(&[command, "--config", config.path()]);
            assert_eq!(ran.code, 2, "{text:?}: {}{}", ran.stdout, ran.stderr);
            assert!(
                ran.stderr.contains(config.path()) || parts[0].starts_with("outputs"),
                "{text:?}: {}",
                ran.stderr
            );
            for part in *parts {
                assert!(
                    ran.stderr.contains(part),
                    "{text:?}: {part:?} is not in {}",
                    ran.stderr
                );
            }
            assert_eq!(ran.stdout, "");
        }
    }
    // All of them at once, in the order of the file.
    let config = Config::new("nope: 1\nworkers: 99\ncpu: x\n");
    let ran = run(&["check", "-c", config.path()]);
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert_eq!(lines.len(), 3, "{}", ran.stderr);
    assert!(
        lines[0].contains(":1:") && lines[1].contains(":2:") && lines[2].contains(":3:"),
        "{}",
        ran.stderr
    );
}

/// Arguments, environment, what the message must contain.
type ErrorCase = (
    &'static [&'static str],
    &'static [(&'static str, &'static str)],
    &'static [&'static str],
);

#[test]
fn errors_of_other_sources_name_them() {
    let cases: &[ErrorCase] = &[
        (
            &["check", "--bucket-width", "x"],
            &[],
            &["flag --bucket-width", "is not a time"],
        ),
        (
            &["check", "--set", "bucket_width=x"],
            &[],
            &["flag --set bucket_width", "is not a time"],
        ),
        (
            &["check", "--set", "bucketwidth=1s"],
            &[],
            &["flag --set", "did you mean \"bucket_width\"?"],
        ),
        (
            &["check", "--set", "outputs.prometheus.nope=1"],
            &[],
            &["\"outputs.prometheus.nope\" is not a setting"],
        ),
        (&["check", "--set", "novalue"], &[], &["is not KEY=VALUE"]),
        (
            &["check", "--output", "nats"],
            &[],
            &["flag --output", "\"nats\" is not an output", "known are"],
        ),
        (
            &["check"],
            &[("WEIR_OUTPUT", "nats")],
            &["environment WEIR_OUTPUT", "known are"],
        ),
        (
            &["check"],
            &[("WEIR_BUKET_WIDTH", "1s")],
            &["WEIR_BUKET_WIDTH", "did you mean WEIR_BUCKET_WIDTH?"],
        ),
        (
            &["check"],
            &[("WEIR_BUCKET_WIDTH", "x")],
            &["environment WEIR_BUCKET_WIDTH: bucket_width", "a time"],
        ),
        (
            &["check"],
            &[("DD_DOGSTATSD_PORT", "high")],
            &["environment DD_DOGSTATSD_PORT: udp[0]", "an address"],
        ),
        (
            &["check"],
            &[("DD_ADDITIONAL_ENDPOINTS", "x")],
            &["DD_ADDITIONAL_ENDPOINTS", "must be a mapping"],
        ),
        (
            &["check", "-c", "/nowhere/weir.yaml"],
            &[],
            &["/nowhere/weir.yaml", "cannot be read", "No such file"],
        ),
        (&["check", "-c", "/"], &[], &["cannot be read"]),
        (&["check", "--no-such-flag"], &[], &["--no-such-flag"]),
        (&["check", "--bucket-widt", "1"], &[], &["--bucket-width"]),
        (&["nothing"], &[], &["nothing"]),
        (&["send"], &[], &["MESSAGE"]),
        (
            &["send", "a:1|c", "--to", "127.0.0.1:1"],
            &[],
            &["flag --to", "udp://host:port", "unix:///path"],
        ),
        (&["send", "a:1|q"], &[], &["bad_type", "--raw"]),
        (&["send", ""], &[], &["empty"]),
        (&["status", "--admin", "x"], &[], &["flag --admin", "an address"]),
        (&["status", "--admin", "off"], &[], &["admin is off"]),
    ];
    for (arguments, environment, parts) in cases {
        let ran = run_with(arguments, environment);
        assert_eq!(ran.code, 2, "{arguments:?}: {}{}", ran.stdout, ran.stderr);
        for part in *parts {
            assert!(
                ran.stderr.contains(part),
                "{arguments:?}: {part:?} is not in {}",
                ran.stderr
            );
        }
    }
    let mut command = binary(&["check"]);
    use std::os::unix::ffi::OsStrExt as _;
    command.env("DD_HOSTNAME", std::ffi::OsStr::from_bytes(b"\xff"));
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("DD_HOSTNAME: hostname: is not valid UTF-8"));
    let config = Config::new(b"a: 1\n\xff\n");
    assert!(
        run(&["check", "-c", config.path()])
            .stderr
            .contains(":2: is not valid UTF-8")
    );
}

#[test]
fn secrets_are_never_shown() {
    let file = format!(
        "outputs:\n  datadog:\n    api_key: {KEY}\n    delivery:\n      proxy: http://me:{KEY}@proxy:1\n"
    );
    let good = Config::new(&file);
    let broken = Config::new(format!("{file}    url: {KEY} x\nworkers: 99\n"));
    let endpoints = format!(r#"{{"https://intake.example": ["{KEY}"]}}"#);
    let set = format!("outputs.datadog.api_key={KEY}");
    let runs = [
        run(&["check", "-c", good.path()]),
        run(&["check", "-c", broken.path()]),
        run_with(
            &["check"],
            &[("DD_API_KEY", KEY), ("DD_ADDITIONAL_ENDPOINTS", &endpoints)],
        ),
        run_with(
            &["check", "--workers", "99"],
            &[("WEIR_OUTPUTS_DATADOG_API_KEY", KEY)],
        ),
        run(&["check", "--set", &set]),
        run(&[
            "check",
            "--set",
            &set,
            "--set",
            "outputs.datadog.compression_level=99",
        ]),
    ];
    for (index, ran) in runs.iter().enumerate() {
        let text = format!("{}{}", ran.stdout, ran.stderr);
        assert!(!text.contains(&KEY[..20]), "run {index}: {text}");
    }
    for index in [0, 2, 4] {
        assert_eq!(runs[index].code, 0, "{}", runs[index].stderr);
        assert!(
            line(&runs[index], "api_key").contains("****3210"),
            "{}",
            runs[index].stdout
        );
    }
    assert!(
        runs[0].stdout.contains("http://****@proxy:1"),
        "{}",
        runs[0].stdout
    );
    assert!(
        line(&runs[2], "additional_endpoints").contains("'****3210'"),
        "{}",
        runs[2].stdout
    );
}

#[test]
fn what_check_prints_is_a_configuration() {
    let config = Config::new(
        "udp: [127.0.0.1:9125, '[::1]:9125']\nhostname: 'a ''b'' # c'\ntags: [k:v, 'with space', \"tab\\there\"]\n\
         socket_mode: 0600\nhistogram_percentiles: [0.5]\noutputs:\n  stdout:\n  prometheus:\n    expiry: 90s\n",
    );
    let first = run(&["check", "-c", config.path()]);
    assert_eq!(first.code, 0, "{}", first.stderr);
    let again = Config::new(&first.stdout);
    let second = run(&["check", "-c", again.path()]);
    assert_eq!(second.code, 0, "{}\n{}", second.stderr, first.stdout);
    let values = |ran: &Ran| -> Vec<String> {
        let lines = ran.stdout.lines().map(|line| {
            line.rsplit_once(" # ")
                .map_or(line, |(value, _)| value)
                .trim_end()
        });
        lines.map(str::to_owned).collect()
    };
    assert_eq!(values(&first), values(&second));
}

#[test]
fn outputs_are_switched_on_by_name_file_flag_and_key() {
    let enabled = |ran: &Ran, name: &str| {
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let section = ran
            .stdout
            .split(&format!("\n  {name}:\n"))
            .nth(1)
            .unwrap_or_default()
            .to_owned();
        section
            .lines()
            .next()
            .unwrap_or_default()
            .contains("enabled: true")
    };
    let plain = run(&["check"]);
    assert_eq!(
        ["stdout", "prometheus", "datadog"].map(|name| enabled(&plain, name)),
        [false, true, false]
    );
    assert!(enabled(&run(&["check", "--output", "stdout"]), "stdout"));
    assert!(enabled(
        &run_with(&["check"], &[("WEIR_OUTPUT", "stdout")]),
        "stdout"
    ));
    assert!(enabled(&run_with(&["check"], &[("DD_API_KEY", KEY)]), "datadog"));
    let off = Config::new(
        "outputs:\n  prometheus:\n    enabled: false\n  datadog:\n    enabled: false\n    api_key: k\n",
    );
    let ran = run(&["check", "-c", off.path()]);
    assert!(!enabled(&ran, "prometheus") && !enabled(&ran, "datadog"));
    let two = Config::new(format!(
        "outputs:\n  datadog:\n    api_key: k\n  second:\n    type: datadog\n    api_key: {KEY}\n"
    ));
    let ran = run_with(&["check", "-c", two.path()], &[("DD_SITE", "eu.example")]);
    assert!(enabled(&ran, "datadog") && enabled(&ran, "second"));
    // The names of the Datadog Agent apply to the first; the second keeps its own.
    assert_eq!(ran.stdout.matches("eu.example").count(), 1, "{}", ran.stdout);
}

#[test]
fn documentation_help_and_version_are_answers() {
    for arguments in [
        &["--help"][..],
        &["--version"],
        &["run", "--help"],
        &["run", "-h"],
        &["send", "--help"],
    ] {
        let ran = run(arguments);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{arguments:?}");
        assert!(!ran.stdout.is_empty());
    }
    let ran = run(&["check", "--documentation"]);
    assert!(ran.stdout.contains("### bucket_width"), "{}", ran.stdout);
    assert_eq!(run(&[]).code, 2);
}

#[test]
fn a_closed_pipe_is_no_failure() {
    let mut child = binary(&["check", "--documentation"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = binary(&["check"])
        .stdout(full)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("standard output cannot be written"));
}

#[test]
fn parse_prints_one_array_and_reads_a_file_or_standard_input() {
    let config = Config::new("a:1|c|T5|c:ci-x\nb\n");
    let ran = run(&["parse", config.path()]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let parsed: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(parsed[0]["ts"], 5);
    assert_eq!(parsed[0]["local"]["container_id"], "x");
    assert_eq!(parsed[1]["error"], "no_separator");
    let ran = run(&[
        "parse",
        "--timestamps=false",
        "--origin-client=false",
        config.path(),
    ]);
    let parsed: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert!(
        parsed[0].get("ts").is_none() && parsed[0].get("local").is_none(),
        "{}",
        ran.stdout
    );

    let mut child = binary(&["parse", "--eol-required", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"a:1|c\nb:1|c").unwrap();
    let output = child.wait_with_output().unwrap();
    let parsed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(parsed[1]["error"], "unterminated");
    let ran = run(&["parse", "/nowhere"]);
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("/nowhere cannot be read"), "{}", ran.stderr);
}

#[test]
fn send_reaches_every_kind_of_address() {
    let directory = tempfile::tempdir().unwrap();
    let mut buffer = [0; 100];

    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.set_read_timeout(Some(PATIENCE)).unwrap();
    let to = format!("udp://{}", udp.local_addr().unwrap());
    assert_eq!(run(&["send", "a:1|c|#x:y", "b:2|g", "--to", &to]).code, 0);
    for expected in ["a:1|c|#x:y", "b:2|g"] {
        let length = udp.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], expected.as_bytes());
    }

    let path = directory.path().join("datagram");
    let datagram = UnixDatagram::bind(&path).unwrap();
    datagram.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(
        run(&["send", "a:1|c", "--to", &format!("unixgram://{}", path.display())]).code,
        0
    );
    let length = datagram.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"a:1|c");

    let path = directory.path().join("stream");
    let stream = UnixListener::bind(&path).unwrap();
    assert_eq!(
        run(&[
            "send",
            "a:1|c",
            "b:2|g",
            "--to",
            &format!("unix://{}", path.display())
        ])
        .code,
        0
    );
    let mut received = Vec::new();
    stream.accept().unwrap().0.read_to_end(&mut received).unwrap();
    assert_eq!(received, b"\x05\0\0\0a:1|c\x05\0\0\0b:2|g");

    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("tcp://{}", tcp.local_addr().unwrap());
    for (framing, expected) in [("length", &b"\x05\0\0\0a:1|c"[..]), ("newline", b"a:1|c\n")] {
        assert_eq!(run(&["send", "a:1|c", "--to", &to, "--framing", framing]).code, 0);
        let mut received = Vec::new();
        tcp.accept().unwrap().0.read_to_end(&mut received).unwrap();
        assert_eq!(received, expected);
    }
}

#[test]
fn send_reports_a_missing_receiver() {
    let directory = tempfile::tempdir().unwrap();
    let free = free_address();
    let missing = directory.path().join("missing");
    for to in [
        format!("udp://{free}"),
        format!("tcp://{free}"),
        format!("unixgram://{}", missing.display()),
        format!("unix://{}", missing.display()),
    ] {
        let ran = run(&["send", "a:1|c", "--to", &to]);
        assert_eq!(ran.code, 1, "{to}: {}", ran.stderr);
        assert!(
            ran.stderr.contains(&to) && ran.stderr.contains("is the agent running?"),
            "{to}: {}",
            ran.stderr
        );
    }
}

#[test]
fn status_reports_a_missing_agent() {
    let refusing = Refusing::new();
    let free = refusing.address.to_string();
    let ran = run(&["status", "--admin", &free]);
    assert_eq!(ran.code, 1);
    assert!(
        ran.stderr.contains(&format!("no agent at http://{free}")),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("weir run"), "{}", ran.stderr);

    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    let answering = std::thread::spawn(move || {
        let mut stream = other.accept().unwrap().0;
        let mut head = [0; 1000];
        let _ = stream.read(&mut head).unwrap();
        stream.write_all(b"SSH-2.0-\x1b[31mother\r\n").unwrap();
    });
    let ran = run(&["status", "--admin", &address]);
    answering.join().unwrap();
    assert_eq!(ran.code, 1);
    assert!(
        ran.stderr.contains("is not weir's admin server"),
        "{}",
        ran.stderr
    );
    assert!(!ran.stderr.contains('\x1b'), "{:?}", ran.stderr);
}

#[test]
fn status_shows_a_running_agent_and_a_signal_ends_it() {
    let mut agent = Agent::start(&["--bucket-width", "1s"], &[]);
    let to = format!("unixgram://{}", agent.socket().display());
    assert_eq!(run(&["send", "--raw", "a:1|c", "bad", "--to", &to]).code, 0);
    agent.wait_for("refused a message (no_separator)");
    let page = until("the rejected message is shown", || {
        let ran = run(&["status", "--admin", &agent.admin]);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        ran.stdout
            .contains("no_separator 1")
            .then_some(ran.stdout.clone())
            .ok_or(ran.stdout)
    });
    assert!(page.contains("The books balance."), "{page}");
    assert!(page.contains(&to), "{page}");
    // The address as the log shows it.
    let shown = format!("http://{}", agent.admin);
    let json = run(&["status", "--json", "--admin", &shown]).stdout;
    let status: weir_status::status::Status = serde_json::from_str(&json).unwrap();
    assert_eq!(status.total("messages").received, 2);
    assert_eq!(get(&agent.admin, "/ready").0, 200);
    let (_, metrics) = get(&agent.admin, "/metrics");
    let rejected = format!("weir_messages_rejected_total{{listener=\"{to}\",reason=\"no_separator\"}} 1\n");
    assert!(metrics.contains(&rejected), "{metrics}");
    // A second agent cannot have the admin address of a first.
    let taken = &agent.admin;
    let ran = run(&["run", "--udp", "127.0.0.1:0", "--admin", taken]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(
        ran.stderr.contains(taken) && ran.stderr.contains("--admin"),
        "{}",
        ran.stderr
    );
    agent.finish();
}

#[test]
fn a_reload_validates_first_and_applies_what_it_can() {
    let config = Config::new("log_level: info\n");
    let mut agent = Agent::start(&["-c", config.path()], &[]);
    let replace = |text: &str| {
        let new = config.file("new.yaml");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, Path::new(config.path())).unwrap();
    };
    replace("log_level: loud\n");
    agent.signal("-HUP");
    let line = agent.wait_for("reload:");
    assert!(
        line.contains("weir.yaml:1: log_level") && line.contains("one of"),
        "{line}"
    );
    agent.wait_for("stays active");
    replace("log_level: debug\nworkers: 2\n");
    agent.signal("-HUP");
    agent.wait_for("reload: log_level is now debug, was info");
    agent.wait_for("reload: workers stays 1 until a restart");
    // A setting that waits for a restart is named again, with its active value; and no longer when it is reverted.
    agent.signal("-HUP");
    agent.wait_for("reload: workers stays 1 until a restart, then it will be 2");
    replace("log_level: debug\n");
    agent.signal("-HUP");
    agent.wait_for("nothing has changed");
    agent.signal("-INT");
    agent.finished();
}

#[test]
fn an_agent_outlives_its_standard_error() {
    for target in ["/dev/full", "closed pipe"] {
        let arguments = ["run", "--udp", "127.0.0.1:0", "--bucket-width", "1s", "--uds"];
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("dsd.sock");
        let mut command = binary(&arguments);
        command
            .arg(&socket)
            .args(["--admin", "off"])
            .stdout(Stdio::null());
        let mut child = if target == "/dev/full" {
            command
                .stderr(std::fs::File::options().write(true).open(target).unwrap())
                .spawn()
                .unwrap()
        } else {
            let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
            drop(child.stderr.take());
            child
        };
        let to = format!("unixgram://{}", socket.display());
        let mut delivered = 0;
        // Through several flushes, each of which logs.
        until(target, || {
            delivered += u32::from(run(&["send", "--raw", "a:1|c\nbad", "--to", &to]).code == 0);
            delivered == 60
        });
        assert!(child.try_wait().unwrap().is_none(), "{target} ended the agent");
        signal(child.id(), "-TERM");
        assert_eq!(child.wait().unwrap().code(), Some(0), "{target}");
    }
}

#[test]
fn the_version_lists_built_in_features() {
    let text = run(&["--version"]);
    let version = env!("CARGO_PKG_VERSION");
    assert!(
        text.stdout.starts_with(&format!("weir {version}\ncommit ")),
        "{}",
        text.stdout
    );
    assert_eq!(run(&["-V"]).stdout, text.stdout);
    let ran = run(&["--version", "--json"]);
    let about: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(about["version"], version);
    assert_eq!(about["outputs"].as_array().unwrap().len(), OUTPUT_TYPES.len());
    let features: Vec<&str> = about["features"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|name| name.as_str())
        .collect();
    let features = if features.is_empty() {
        "none".to_owned()
    } else {
        features.join(", ")
    };
    assert!(
        text.stdout.contains(&format!("\nfeatures {features}\n")),
        "{}",
        text.stdout
    );
    assert_eq!(run(&["--json"]).code, 2);
}

#[test]
fn completions_and_manual_pages_know_every_command() {
    let help = run(&["--help"]).stdout;
    let commands = help
        .split("Commands:\n")
        .nth(1)
        .unwrap()
        .split("\n\n")
        .next()
        .unwrap();
    // A description may take more lines, which stand further in.
    let commands: Vec<&str> = commands
        .lines()
        .filter(|line| !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(commands.contains(&"doctor"), "{commands:?}");
    let directory = tempfile::tempdir().unwrap();
    let ran = run(&["manual", directory.path().to_str().unwrap()]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    for command in &commands {
        for shell in ["bash", "zsh", "fish"] {
            let ran = run(&["completions", shell]);
            assert!(
                ran.code == 0 && ran.stdout.contains(command),
                "{shell}: {command}"
            );
        }
        let page = std::fs::read_to_string(directory.path().join(format!("weir-{command}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{page}");
    }
    assert!(directory.path().join("weir.1").exists());
    assert_eq!(run(&["completions", "cobol"]).code, 2);
    assert_eq!(run(&["manual", "/no/such/directory"]).code, 1);
}

#[test]
fn a_health_check_prints_nothing_and_its_exit_code_is_the_readiness() {
    let ran = run(&["status", "--quiet", "--admin", "127.0.0.1:1"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let answers = ["200 OK", "503 Service Unavailable"];
    let server = std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let read = stream.read(&mut request).unwrap();
            assert!(request[..read].starts_with(b"GET /ready "));
            write!(stream, "HTTP/1.0 {answer}\r\n\r\nstarting").unwrap();
        }
    });
    let ran = run(&["status", "-q", "--admin", &address]);
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "", ""));
    let ran = run(&["status", "-q", "--admin", &address]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert!(ran.stderr.contains("starting"), "{}", ran.stderr);
    server.join().unwrap();
}
