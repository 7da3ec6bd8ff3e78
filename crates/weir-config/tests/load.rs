//! A whole configuration from bytes, environment and flags, on a machine that the test makes up: nothing here reads a file.

use std::collections::BTreeMap;
use std::path::Path;

use weir_config::{
    Config, File, Files, Flag, Inputs, Loaded, OutputType, Problems, RemovedSetting, Secret, changes, leaves,
    settings,
};

use crate::machine;

use machine::Machine;

settings! {
    /// Shared by outputs.
    pub struct Shared {
        retries: u32 = "3".effect("How often.").change("in tests.").also(&["DD_RETRIES"]);
    }
    removed REMOVED
}

const REMOVED: &[RemovedSetting] = &[RemovedSetting {
    key: "patience",
    why: "retries say it",
    also: &["DD_PATIENCE"],
}];

settings! {
    /// Of one output.
    pub struct Echo {
        token: Secret = "''".effect("A token.").change("in tests.").required();
        token_file: String = "''".effect("A file with it.").change("in tests.").file_of("token");
        shared: Shared = "{}".flat();
        nested: Shared = "{}".names_below();
    }
}

fn files(echo: &mut Echo, files: &mut Files<'_, '_, '_>) {
    files.read("token_file", &mut echo.token, &echo.token_file);
}

const TYPES: &[OutputType<Echo>] = &[OutputType {
    name: "echo",
    summary: "Answers.",
    on_by_default: false,
    settings: Echo::SETTINGS,
    removed: &[Shared::REMOVED],
    read: |output| output.read(files, |_| Ok(())),
}];

fn load(text: &str, environment: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<Loaded<Echo>, Problems> {
    let environment: BTreeMap<String, Option<String>> = environment
        .iter()
        .map(|(name, value)| ((*name).to_owned(), Some((*value).to_owned())))
        .collect();
    let flags: Vec<Flag> = flags
        .iter()
        .map(|(key, value)| Flag {
            shown: format!("--{key}"),
            key: (*key).to_owned(),
            values: vec![(*value).to_owned()],
        })
        .collect();
    let inputs = Inputs {
        file: Some(File {
            path: Path::new("c.yaml"),
            content: Ok(text.as_bytes()),
        }),
        environment: &environment,
        flags: &flags,
    };
    weir_config::load(&inputs, TYPES, &Machine)
}

#[track_caller]
fn refused(text: &str, environment: &[(&str, &str)], flags: &[(&str, &str)]) -> String {
    load(text, environment, flags).unwrap_err().to_string()
}

fn config(text: &str) -> Config<Echo> {
    load(text, &[], &[]).unwrap().config
}

#[test]
fn missing_settings_are_computed_from_the_machine() {
    let config = config("");
    assert_eq!(config.names.hostname, "box");
    assert_eq!(config.resources.memory, 256 << 20);
    assert_eq!((config.resources.cpu, config.resources.workers), (4.0, 1));
    assert_eq!(config.addresses.udp, ["127.0.0.1:8125".parse().unwrap()]);
    assert!(
        config.origin.sources.origin_docker.is_empty(),
        "no such socket is there"
    );
    assert!(config.outputs.is_empty());
}

#[test]
fn addresses_are_completed() {
    for (text, expected) in [
        ("8125", Some("127.0.0.1:8125")),
        (":8125", Some("127.0.0.1:8125")),
        ("0", None),
        ("127.0.0.1:0", Some("127.0.0.1:0")),
        ("udp://[::1]:1", Some("[::1]:1")),
        ("*:5", Some("0.0.0.0:5")),
    ] {
        let found = config(&format!("udp: ['{text}']\n")).addresses.udp;
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, Vec::from_iter(expected), "{text}");
    }
    for text in [
        "",
        "x",
        "1:2:3",
        "[::1",
        "[x]:1",
        "host:70000",
        "host:-1",
        "a b:1",
        "host:",
        "udp://",
    ] {
        let error = refused(&format!("udp: ['{text}']\n"), &[], &[]);
        assert!(
            error.starts_with("c.yaml:1: udp[0]: ") && error.contains("an address such as"),
            "{error}"
        );
    }
    let everywhere = config("non_local_traffic: true\nudp: [8125, '10.0.0.1:1']\n")
        .addresses
        .udp;
    assert_eq!(
        everywhere,
        ["0.0.0.0:8125".parse().unwrap(), "10.0.0.1:1".parse().unwrap()]
    );
    assert_eq!(
        config("bind_host: '*'\n").addresses.udp,
        ["0.0.0.0:8125".parse().unwrap()]
    );
    assert!(refused("udp: ['there:1']\n", &[], &[]).contains("host \"there\" has no address"));
}

#[test]
fn a_host_may_stand_for_every_interface_and_localhost_for_both_families() {
    let text = "udp: ['*:1', 'localhost:2', '127.0.0.1:3', 'localhost:0']\ntcp: ['localhost:2']\nadmin: '*:4'\n\
                per_listener:\n- {listener: 'udp://localhost:2', gauge_deltas: true}\n- {listener: 'udp://*:1', sample_lists: true}\n";
    let loaded = config(text);
    let shown = |addresses: &[std::net::SocketAddr]| -> Vec<String> {
        addresses.iter().map(ToString::to_string).collect()
    };
    // The machine has IPv6 on its loopback interface alone.
    assert_eq!(
        shown(&loaded.addresses.udp),
        [
            "0.0.0.0:1",
            "127.0.0.1:2",
            "[::1]:2",
            "127.0.0.1:3",
            "127.0.0.1:0"
        ]
    );
    assert_eq!(shown(&loaded.addresses.tcp), ["127.0.0.1:2", "[::1]:2"]);
    assert_eq!(shown(&loaded.addresses.admin), ["0.0.0.0:4"]);
    assert_eq!(
        shown(&config("admin: http://LocalHost.:5/\n").addresses.admin),
        ["127.0.0.1:5", "[::1]:5"]
    );
    assert_eq!(
        shown(&config("admin: localhost:0\n").addresses.admin),
        ["127.0.0.1:0"]
    );
    for (address, deltas, lists) in [
        ("udp://0.0.0.0:1", None, Some(true)),
        ("udp://127.0.0.1:2", Some(true), None),
        ("udp://[::1]:2", Some(true), None),
    ] {
        let reading = loaded.listeners.reading("udp", address).unwrap();
        assert_eq!(
            (reading.own_gauge_deltas(), reading.own_sample_lists()),
            (deltas, lists),
            "{address}"
        );
    }
    assert!(loaded.listeners.reading("udp", "udp://127.0.0.1:3").is_none());
    assert!(refused("udp: ['localhost:1', '[::1]:1']\n", &[], &[]).contains("[::1]:1 is listed twice"));
    assert_eq!(
        shown(&config("udp: [1]\nbind_host: localhost\n").addresses.udp),
        ["127.0.0.1:1", "[::1]:1"]
    );
}

#[test]
fn quotation_marks_around_a_whole_variable_are_not_part_of_it() {
    for (written, expected) in [
        ("\"prod\"", "prod"),
        ("'prod'", "prod"),
        ("\"prod", "\"prod"),
        ("\"a\"b\"", "\"a\"b\""),
        ("\"\"", ""),
        ("\"", "\""),
    ] {
        let loaded = load("", &[("DD_ENV", written)], &[]).unwrap();
        assert_eq!(loaded.config.names.env, expected, "{written}");
    }
}

#[test]
fn abstract_sockets_have_a_name_and_no_path() {
    let loaded = config("uds: ['@statsd', 'unixgram://@other']\n");
    let shown: Vec<String> = loaded
        .listeners
        .uds
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    assert_eq!(shown, ["@statsd", "@other"]);
    assert!(refused("uds: ['@']\n", &[], &[]).contains("or @name for an abstract socket"));
}

#[test]
fn the_source_of_highest_precedence_counts_and_the_others_are_named() {
    let file = "bucket_width: 3s\noutputs: {echo: {token: t, retries: 7}}\n";
    let loaded = load(
        file,
        &[("WEIR_BUCKET_WIDTH", "4s"), ("WEIR_OUTPUTS_ECHO_RETRIES", "8")],
        &[("bucket_width", "5s")],
    );
    let loaded = loaded.unwrap();
    assert_eq!(loaded.config.aggregation.bucket_seconds(), 5);
    assert_eq!(loaded.config.outputs[0].settings.shared.retries, 8);
    let shown = loaded
        .shown
        .iter()
        .find(|shown| shown.key == "bucket_width")
        .unwrap();
    let overridden: Vec<String> = shown.overridden.iter().map(ToString::to_string).collect();
    assert_eq!(overridden, ["environment WEIR_BUCKET_WIDTH", "c.yaml:1"]);
    assert!(loaded.has_secret);
}

/// Variables of the other agent reach what they are meant for: here the record that says so, and not the flat one, whose own they
/// are as well.
#[test]
fn variables_of_the_datadog_agent_apply_to_some_records() {
    let paths: Vec<(String, usize)> = leaves(Echo::SETTINGS)
        .into_iter()
        .map(|leaf| (leaf.path, leaf.also.len()))
        .collect();
    let expected = [
        ("token", 0),
        ("token_file", 0),
        ("retries", 1),
        ("nested.retries", 1),
    ];
    assert_eq!(paths, expected.map(|(path, names)| (path.to_owned(), names)));
    let text = "outputs: {one: {type: echo, token: t}, echo: {token: t}}\n";
    let loaded = load(text, &[("DD_RETRIES", "9")], &[]).unwrap();
    let retries: Vec<u32> = loaded
        .config
        .outputs
        .iter()
        .map(|output| output.settings.nested.retries)
        .collect();
    assert_eq!(
        retries,
        [3, 9],
        "they are meant for the output of the type's own name"
    );
}

#[test]
fn secrets_come_from_files_and_are_not_shown() {
    let loaded = load("outputs: {echo: {token_file: /token}}\n", &[], &[]).unwrap();
    assert_eq!(
        loaded.config.outputs[0].settings.token.expose(),
        "0123456789abcdef"
    );
    let shown = loaded
        .shown
        .iter()
        .find(|shown| shown.key == "outputs.echo.token_file")
        .unwrap();
    assert_eq!(shown.content.as_deref(), Some("****cdef"));
    let error = refused("outputs: {echo: {token_file: /gone}}\n", &[], &[]);
    assert_eq!(error, "c.yaml:1: outputs.echo.token_file: /gone: does not exist");
    let error = refused("outputs: {echo: {}}\n", &[], &[]);
    assert!(error.contains("outputs.echo.token: is missing"), "{error}");
}

/// Two passwords that look the same to people differ to a reload.
#[test]
fn hidden_values_that_change_are_changes() {
    let read = |text: &str| load(text, &[], &[]).unwrap().shown;
    let (old, new) = (
        read("outputs: {echo: {token: a}}\n"),
        read("outputs: {echo: {token: b}}\n"),
    );
    let found = changes(&old, &new);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        (found[0].from.as_str(), found[0].to.as_str()),
        ("'****'", "'****'")
    );
    assert!(changes(&old, &read("outputs: {echo: {token: 'a'}}\n")).is_empty());
}

#[test]
fn removed_settings_are_reported_with_the_reason() {
    let error = refused("udp: []\npacket_bytes_max: 1KiB\n", &[], &[]);
    assert!(
        error.starts_with("c.yaml:2: packet_bytes_max: was removed: packets may be"),
        "{error}"
    );
    let error = refused("", &[("WEIR_PACKET_BYTES_MAX", "1")], &[]);
    assert!(
        error.starts_with("environment WEIR_PACKET_BYTES_MAX: packet_bytes_max: was removed: "),
        "{error}"
    );
    let error = refused("", &[], &[("packet_bytes_max", "1")]);
    assert!(
        error.starts_with("flag --packet_bytes_max: packet_bytes_max: was removed: "),
        "{error}"
    );
    let error = refused(
        "outputs:\n  echo:\n    token: t\n    nested:\n      patience: 1\n",
        &[],
        &[],
    );
    assert_eq!(
        error,
        "c.yaml:5: outputs.echo.nested.patience: was removed: retries say it"
    );
    let loaded = load("", &[("DD_PATIENCE", "1")], &[]).unwrap();
    assert_eq!(
        loaded.notes,
        ["environment DD_PATIENCE is set and ignored: retries say it"]
    );
}

#[test]
fn misspelt_keys_are_reported_with_position_and_nearest_name() {
    let error = refused("udp: []\nbucket_with: 1s\n", &[], &[]);
    assert_eq!(
        error,
        "c.yaml:2: \"bucket_with\" is not a setting; did you mean \"bucket_width\"?"
    );
    let error = refused("outputs:\n  echo:\n    token: t\n    retires: 1\n", &[], &[]);
    assert_eq!(
        error,
        "c.yaml:4: outputs.echo: \"retires\" is not a setting; did you mean \"retries\"?"
    );
    let error = refused("rules:\n  - name: a\n    drip: true\n", &[], &[]);
    assert!(
        error.starts_with("c.yaml:3: rules[0]: \"drip\" is not a setting; did you mean \"drop\"?"),
        "{error}"
    );
    let error = refused("bucket_width: 2h\n", &[("WEIR_WORKERS", "many")], &[]);
    let expected = "c.yaml:1: bucket_width: \"2h\" is not a time such as 500ms, 10s, 5m, 1h or a number of seconds, from 1s to 1h\n\
                    environment WEIR_WORKERS: workers: \"many\" is not a whole number from 0 to 64";
    assert_eq!(error, expected);
}

#[test]
fn errors_of_several_settings_are_found_together() {
    let error = refused(
        "tcp_tls_certificate: /c\ntcp_tls_key: /k\nsocket_owner: me\n",
        &[],
        &[],
    );
    for part in [
        "c.yaml:2: tcp_tls_key: is no key",
        "c.yaml:3: socket_owner: \"me\" is not in /etc/passwd; write a name from there, or a number",
    ] {
        assert!(error.contains(part), "{error}");
    }
}
