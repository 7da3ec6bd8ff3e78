//! The place that each value of a configuration comes from, as `weir check` prints it, and errors in each place.

use std::collections::BTreeMap;

use tempfile::NamedTempFile;
use weir_config::{Setting, SettingType, leaves};
use weir_output::settings::OUTPUT_TYPES;
use weir_system::config::{self, Inputs};
use weir_system::failure::{Failure, FailureKind};

use super::check::report;
use super::{command, inputs};

const KEY: &str = "0123456789abcdefFEDCBA9876543210";

type Arguments<'a> = &'a [&'a str];
type Variables<'a> = &'a [(&'a str, &'a str)];

/// Nothing of this process's environment counts.
fn check(arguments: Arguments<'_>, environment: Variables<'_>) -> Result<String, Failure> {
    let matches = command().try_get_matches_from([&["weir", "check"], arguments].concat());
    let matches = matches.map_err(|error| Failure::usage(error.to_string()))?;
    let (_, matches) = matches.subcommand().unwrap();
    let variables = environment.iter();
    let variables = variables.map(|(name, value)| ((*name).to_owned(), Some((*value).to_owned())));
    let inputs = Inputs {
        environment: variables.collect(),
        ..inputs(matches)?
    };
    Ok(report(&config::load(&inputs)?))
}

#[track_caller]
fn said(arguments: Arguments<'_>, environment: Variables<'_>) -> String {
    check(arguments, environment).unwrap_or_else(|failure| panic!("{arguments:?} {environment:?}: {failure}"))
}

/// The message of a refusal.
#[track_caller]
fn refused(arguments: Arguments<'_>, environment: Variables<'_>) -> String {
    let failure = check(arguments, environment).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Usage, "{failure}");
    failure.message
}

/// A configuration file that goes away with the test.
fn file(text: impl AsRef<[u8]>) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

fn path(file: &NamedTempFile) -> &str {
    file.path().to_str().unwrap()
}

/// The line of a key.
#[track_caller]
fn line<'a>(page: &'a str, key: &str) -> &'a str {
    let start = format!("{key}:");
    let mut lines = page.lines().filter(|line| line.trim_start().starts_with(&start));
    lines.next().unwrap_or_else(|| panic!("{key} is not in\n{page}"))
}

#[test]
fn a_flag_beats_the_environment_beats_the_file_beats_the_default() {
    let config = file("# one\nbucket_width: 4s\n");
    let at = path(&config);
    let variable = [("WEIR_BUCKET_WIDTH", "3")];
    let expiry = [("WEIR_COUNTER_EXPIRY", "7"), ("DD_DOGSTATSD_EXPIRY_SECONDS", "8")];
    let cases: [(Arguments<'_>, Variables<'_>, &str); 8] = [
        (&[], &[], "bucket_width: 10s # default"),
        (&["-c", at], &[], "bucket_width: 4s # FILE:2"),
        (
            &["-c", at],
            &variable,
            "bucket_width: 3s # environment WEIR_BUCKET_WIDTH, over FILE:2",
        ),
        (
            &["-c", at, "--bucket-width", "2s"],
            &variable,
            "bucket_width: 2s # flag --bucket-width, over environment WEIR_BUCKET_WIDTH, FILE:2",
        ),
        (
            &[],
            &expiry,
            "counter_expiry: 7s # environment WEIR_COUNTER_EXPIRY, over environment DD_DOGSTATSD_EXPIRY_SECONDS",
        ),
        (
            &[],
            &expiry[1..],
            "counter_expiry: 8s # environment DD_DOGSTATSD_EXPIRY_SECONDS",
        ),
        // The file can be named by a variable, and any key set by the general flag.
        (&[], &[("WEIR_CONFIG", at)], "bucket_width: 4s # FILE:2"),
        (
            &["--set", "outputs.prometheus.expiry=7m"],
            &[],
            "expiry: 7m # flag --set outputs.prometheus.expiry",
        ),
    ];
    for (arguments, environment, expected) in cases {
        let page = said(arguments, environment);
        let (key, _) = expected.split_once(':').unwrap();
        let found: Vec<&str> = line(&page, key).split_whitespace().collect();
        assert_eq!(found.join(" "), expected.replace("FILE", at));
    }
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
    let secret = file(KEY);
    let understood = |name: &str, key: &str, setting: &Setting| {
        let of_file = !setting.file_of.is_empty();
        let value = match name {
            // In the other agent's words.
            "DD_USE_V2_API_SERIES" => "false".to_owned(),
            "DD_USE_V3_API_SERIES_ENABLED" => "true".to_owned(),
            "DD_USE_V3_API_SERIES_ENDPOINTS" => r#"{"https://intake.example": "datadog_only"}"#.to_owned(),
            "DD_FORWARDER_OUTDATED_FILE_IN_DAYS" => "3".to_owned(),
            _ if of_file => path(&secret).to_owned(),
            _ => example(setting),
        };
        // The host to forward to has its port in a variable of its own.
        let mut environment = vec![("DD_STATSD_FORWARD_PORT", "8125"), (name, value.as_str())];
        if !of_file && name != "DD_API_KEY" {
            environment.push(("DD_API_KEY", KEY));
        }
        let page = said(&[], &environment);
        let start = format!("{}: ", key.rsplit('.').next().unwrap());
        let source = format!("# environment {name}");
        let is_it = |line: &str| {
            let said = line.split(", over").next().unwrap();
            line.trim_start().starts_with(&start) && said.split(", holds").next().unwrap().ends_with(&source)
        };
        assert!(
            page.lines().any(is_it),
            "{name}={value} did not set {key}:\n{page}"
        );
    };
    let mut names = 0;
    let mut each = |also: &[&str], key: &str, setting: &Setting| {
        also.iter().for_each(|name| understood(name, key, setting));
        names += also.len();
    };
    for setting in weir_config::settings() {
        each(setting.also, setting.key, setting);
    }
    for output_type in OUTPUT_TYPES {
        for leaf in leaves(output_type.settings) {
            let key = format!("outputs.{}.{}", output_type.name, leaf.path);
            each(leaf.also, &key, leaf.setting);
        }
    }
    assert!(names >= 40, "{names}");
}

#[test]
fn a_removed_setting_is_refused_with_the_reason_in_every_source() {
    let config = file("udp: []\npacket_bytes_max: 1KiB\n");
    let at = path(&config);
    let cases: [(Arguments<'_>, Variables<'_>, &str); 4] = [
        (&["--packet-bytes-max", "1KiB"], &[], "flag --packet-bytes-max"),
        (
            &["--set", "packet_bytes_max=1KiB"],
            &[],
            "flag --set packet_bytes_max",
        ),
        (
            &[],
            &[("WEIR_PACKET_BYTES_MAX", "1KiB")],
            "environment WEIR_PACKET_BYTES_MAX",
        ),
        (&["--config", at], &[], "FILE:2"),
    ];
    for (arguments, environment, source) in cases {
        let source = source.replace("FILE", at);
        let expected = format!("{source}: packet_bytes_max: was removed: packets may be up to 64KiB long");
        let error = refused(arguments, environment);
        assert!(error.contains(&expected), "{error}");
    }
    // Of another agent's variable that is no error.
    let page = said(&[], &[("DD_DOGSTATSD_BUFFER_SIZE", "8192")]);
    let note = "environment DD_DOGSTATSD_BUFFER_SIZE is set and ignored: packets may be up to 64KiB long";
    assert!(page.contains(note), "{page}");
}

#[test]
fn tags_of_both_variables_count() {
    let all = [
        ("DD_DOGSTATSD_TAGS", "x:y"),
        ("DD_EXTRA_TAGS", "z:1,w:2"),
        ("WEIR_EXTRA_TAGS", "o:1"),
    ];
    let page = said(&[], &all[..2]);
    let tags = line(&page, "extra_tags");
    assert!(
        tags.starts_with("extra_tags: [x:y, z:1, w:2] ")
            && tags.ends_with(" # environment DD_DOGSTATSD_TAGS and DD_EXTRA_TAGS"),
        "{tags}"
    );
    let page = said(&[], &all);
    let tags = line(&page, "extra_tags");
    assert!(
        tags.starts_with("extra_tags: [o:1] ")
            && tags.contains("# environment WEIR_EXTRA_TAGS, over environment DD_"),
        "{tags}"
    );
}

#[test]
fn proxies_and_forwarding_of_the_datadog_agent_are_applied_or_named() {
    let page = said(
        &[],
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
    let proxy = line(&page, "proxy");
    assert!(
        proxy.contains("@proxy:3128") && proxy.contains("over environment DD_PROXY_HTTP"),
        "{proxy}"
    );
    assert!(!page.contains("hunter2"), "{page}");
    assert!(line(&page, "no_proxy").contains("[a.example, b.example]"));
    let targets = line(&page, "targets").replace('\'', "");
    assert!(targets.contains("[udp://[::1]:8126]"), "{targets}");
    for name in ["DD_SKIP_SSL_VALIDATION", "DD_FORWARDER_NUM_WORKERS"] {
        let said = format!("{name} is set and ignored: ");
        assert!(page.contains(&said), "{page}");
    }
    let (host, port) = (
        ("DD_STATSD_FORWARD_HOST", "x"),
        ("DD_STATSD_FORWARD_PORT", "8126"),
    );
    for half in [host, port] {
        let page = said(&[], &[half]);
        assert!(page.contains("have no effect unless both are set"), "{page}");
    }
    let error = refused(&[], &[host, ("DD_STATSD_FORWARD_PORT", "often")]);
    assert!(error.contains("\"often\"; must be from 1 to 65535"), "{error}");
}

#[test]
fn the_common_names_mean_what_they_mean_elsewhere() {
    let page = said(
        &[],
        &[
            ("DD_DOGSTATSD_PORT", "9125"),
            ("DD_DOGSTATSD_NON_LOCAL_TRAFFIC", "true"),
            ("DD_DOGSTATSD_SOCKET", "/var/run/datadog/dsd.socket"),
            ("DD_TAGS", "env:prod team:a,b:c"),
            ("DD_DOGSTATSD_TAGS", "x:y"),
            ("DD_HISTOGRAM_PERCENTILES", "0.5 0.99"),
            ("DD_URL", "https://intake.example/"),
            ("DD_API_KEY", KEY),
            ("DD_DOGSTATSD_PIPE_NAME", "ignored"),
        ],
    );
    for (key, part) in [
        ("udp", ":9125'] "),
        ("uds", "[/var/run/datadog/dsd.socket]"),
        ("tags", "[env:prod, team:a, b:c]"),
        ("histogram_percentiles", "[0.5, 0.99]"),
        ("url", "https://intake.example/"),
    ] {
        assert!(line(&page, key).contains(part), "{page}");
    }
    assert!(!line(&page, "udp").contains("127.0.0.1"), "{page}");
    let note = "DD_DOGSTATSD_PIPE_NAME is set and ignored: is for Windows";
    assert!(page.contains(note), "{page}");
    // Compose files pass on variables that nobody set.
    let empty = ["DD_API_KEY", "DD_DOGSTATSD_PORT", "WEIR_BUCKET_WIDTH", "DD_SITE"].map(|name| (name, ""));
    let page = said(&[], &empty);
    assert!(line(&page, "udp").ends_with("# default") && line(&page, "bucket_width").ends_with("# default"));
    // A port of 0 switches the listener off.
    assert!(line(&said(&[], &[("DD_DOGSTATSD_PORT", "0")]), "udp").contains("[]"));
    // A service called weir in the same Kubernetes namespace sets the first three in every container. The Ruby client's switch, and the
    // variables of the clients' tests, are set where an agent runs beside them.
    let foreign = [
        ("WEIR_SERVICE_HOST", "10.0.0.1"),
        ("WEIR_PORT", "udp://x"),
        ("WEIR_PORT_8125_UDP_ADDR", "x"),
        ("WEIR_PURE_RUBY", "1"),
        ("WEIR_EXPECT_NATIVE", "0"),
        ("WEIR_BIN", "/usr/bin/weir"),
    ];
    said(&[], &foreign);
    // Not every name that begins like one of theirs.
    refused(&[], &[("WEIR_PURE_RUBI", "1")]);
}

#[test]
fn errors_of_other_sources_name_them() {
    let cases: [(Arguments<'_>, Variables<'_>, &[&str]); 13] = [
        (
            &["--bucket-width", "x"],
            &[],
            &["flag --bucket-width", "is not a time"],
        ),
        (
            &["--set", "bucket_width=x"],
            &[],
            &["flag --set bucket_width", "is not a time"],
        ),
        (
            &["--set", "bucketwidth=1s"],
            &[],
            &["flag --set", "did you mean \"bucket_width\"?"],
        ),
        (
            &["--set", "outputs.prometheus.nope=1"],
            &[],
            &["\"outputs.prometheus.nope\" is not a setting"],
        ),
        (&["--set", "novalue"], &[], &["is not KEY=VALUE"]),
        (
            &["--output", "nats"],
            &[],
            &["flag --output", "\"nats\" is not an output", "known are"],
        ),
        (
            &[],
            &[("WEIR_OUTPUT", "nats")],
            &["environment WEIR_OUTPUT", "known are"],
        ),
        (
            &[],
            &[("WEIR_BUKET_WIDTH", "1s")],
            &["WEIR_BUKET_WIDTH", "did you mean WEIR_BUCKET_WIDTH?"],
        ),
        (
            &[],
            &[("WEIR_BUCKET_WIDTH", "x")],
            &["environment WEIR_BUCKET_WIDTH: bucket_width", "a time"],
        ),
        (
            &[],
            &[("DD_DOGSTATSD_PORT", "high")],
            &["environment DD_DOGSTATSD_PORT: udp[0]", "an address"],
        ),
        (
            &[],
            &[("DD_ADDITIONAL_ENDPOINTS", "x")],
            &["DD_ADDITIONAL_ENDPOINTS", "must be a mapping"],
        ),
        (
            &["-c", "/nowhere/weir.yaml"],
            &[],
            &["/nowhere/weir.yaml", "cannot be read", "No such file"],
        ),
        (&["-c", "/"], &[], &["cannot be read"]),
    ];
    for (arguments, environment, parts) in cases {
        let error = refused(arguments, environment);
        for part in parts {
            assert!(error.contains(part), "{arguments:?}: {part:?} is not in {error}");
        }
    }
    let inputs = Inputs {
        environment: BTreeMap::from([("DD_HOSTNAME".to_owned(), None)]),
        ..Inputs::default()
    };
    let error = config::load(&inputs).unwrap_err().to_string();
    assert!(
        error.contains("DD_HOSTNAME: hostname: is not valid UTF-8"),
        "{error}"
    );
}

#[test]
fn wrong_command_lines_are_refused_with_a_hint() {
    for (arguments, part) in [
        (&["check", "--no-such-flag"][..], "--no-such-flag"),
        (&["check", "--bucket-widt", "1"], "--bucket-width"),
        (&["nothing"], "nothing"),
        (&["send"], "MESSAGE"),
        (&["completions", "cobol"], "cobol"),
        (&["--json"], "--version"),
        (&["tail", "--rate", "101"], "101 is not in 1..=100"),
        (&["top", "--top", "257"], "1..=256"),
    ] {
        let error = command().try_get_matches_from([&["weir"], arguments].concat());
        let error = error.unwrap_err().to_string();
        assert!(error.contains(part), "{arguments:?}: {part:?} is not in {error}");
    }
}

#[test]
fn secrets_are_never_shown() {
    let text = format!(
        "outputs:\n  datadog:\n    api_key: {KEY}\n    delivery:\n      proxy: http://me:{KEY}@proxy:1\n"
    );
    let (good, broken) = (
        file(&text),
        file(format!("{text}    url: {KEY} x\nworkers: 99\n")),
    );
    let endpoints = format!(r#"{{"https://intake.example": ["{KEY}"]}}"#);
    let set = format!("outputs.datadog.api_key={KEY}");
    let wrong = "outputs.datadog.compression_level=99";
    let variables = [("DD_API_KEY", KEY), ("DD_ADDITIONAL_ENDPOINTS", &endpoints)];
    let shown = [
        said(&["-c", path(&good)], &[]),
        said(&[], &variables),
        said(&["--set", &set], &[]),
    ];
    let errors = [
        refused(&["-c", path(&broken)], &[]),
        refused(&["--workers", "99"], &[("WEIR_OUTPUTS_DATADOG_API_KEY", KEY)]),
        refused(&["--set", &set, "--set", wrong], &[]),
    ];
    for text in shown.iter().chain(&errors) {
        assert!(!text.contains(&KEY[..20]), "{text}");
    }
    for page in &shown {
        assert!(line(page, "api_key").contains("****3210"), "{page}");
    }
    assert!(shown[0].contains("http://****@proxy:1"), "{}", shown[0]);
    assert!(line(&shown[1], "additional_endpoints").contains("'****3210'"));
}

#[test]
fn the_printed_page_is_a_configuration() {
    let config = file(
        "udp: [127.0.0.1:9125, '[::1]:9125']\nhostname: 'a ''b'' # c'\ntags: [k:v, 'with space', \"tab\\there\"]\n\
         socket_mode: 0600\nhistogram_percentiles: [0.5]\noutputs:\n  stdout:\n  prometheus:\n    expiry: 90s\n",
    );
    let first = said(&["-c", path(&config)], &[]);
    let second = said(&["-c", path(&file(&first))], &[]);
    let value = |line: &str| {
        let value = line.rsplit_once(" # ").map_or(line, |(value, _)| value);
        value.trim_end().to_owned()
    };
    let values = |page: &str| page.lines().map(value).collect::<Vec<String>>();
    assert_eq!(values(&first), values(&second));
}

#[test]
fn outputs_are_switched_on_by_name_file_flag_and_key() {
    let enabled = |page: &str, name: &str| {
        let section = page.split(&format!("\n  {name}:\n")).nth(1);
        let first = section.and_then(|section| section.lines().next());
        first.is_some_and(|line| line.contains("enabled: true"))
    };
    let plain = said(&[], &[]);
    assert_eq!(
        ["stdout", "prometheus", "datadog"].map(|name| enabled(&plain, name)),
        [false, true, false]
    );
    assert!(enabled(&said(&["--output", "stdout"], &[]), "stdout"));
    assert!(enabled(&said(&[], &[("WEIR_OUTPUT", "stdout")]), "stdout"));
    assert!(enabled(&said(&[], &[("DD_API_KEY", KEY)]), "datadog"));
    let off =
        file("outputs:\n  prometheus:\n    enabled: false\n  datadog:\n    enabled: false\n    api_key: k\n");
    let page = said(&["-c", path(&off)], &[]);
    assert!(!enabled(&page, "prometheus") && !enabled(&page, "datadog"));
    let two = file(format!(
        "outputs:\n  datadog:\n    api_key: k\n  second:\n    type: datadog\n    api_key: {KEY}\n"
    ));
    let page = said(&["-c", path(&two)], &[("DD_SITE", "eu.example")]);
    assert!(enabled(&page, "datadog") && enabled(&page, "second"));
    // The names of the Datadog Agent apply to the first; the second keeps its own.
    assert_eq!(page.matches("eu.example").count(), 1, "{page}");
}
