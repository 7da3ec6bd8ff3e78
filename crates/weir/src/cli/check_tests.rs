//! Configurations that `weir check` refuses, remarks about, or shows.

#[path = "../../tests/support/secret_program.rs"]
mod secret_program;

use std::os::unix::fs::PermissionsExt;

use rcgen::{CertificateParams, KeyPair};
use weir_config::{Flag, Role};
use weir_system::config::{self, Inputs};

use self::secret_program::{PROGRAM, SecretProgram, answer};
use super::check::report;

fn accepted(text: &str) -> String {
    report(&config::load_content(text.as_bytes()).unwrap())
}

/// Each is refused with these words and the name of the file.
fn are_refused(cases: &[(&str, &[&str])]) {
    for (text, parts) in cases {
        let error = config::load_content(text.as_bytes()).unwrap_err().to_string();
        for part in parts.iter().chain(&["weir.yaml"]) {
            assert!(error.contains(part), "{part:?} is not in {error:?} of {text}");
        }
    }
}

#[test]
fn every_error_in_a_file_names_line_key_and_what_is_allowed() {
    are_refused(&[
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
    ]);
    // No line has a key that is missing.
    let error = config::load_content(b"outputs:\n  datadog:\n    site: x\n").unwrap_err();
    let said = error.to_string();
    for part in ["outputs.datadog.api_key", "is missing", "DD_API_KEY"] {
        assert!(said.contains(part), "{said}");
    }
    let error = config::load_content(b"a: 1\n\xff\n").unwrap_err().to_string();
    assert!(error.contains(":2: is not valid UTF-8"), "{error}");
    // All of them at once, in the order of the file.
    let error = config::load_content(b"nope: 1\nworkers: 99\ncpu: x\n").unwrap_err();
    let places: Vec<String> = error
        .to_string()
        .lines()
        .map(|line| line[..12].to_owned())
        .collect();
    assert_eq!(places, ["weir.yaml:1:", "weir.yaml:2:", "weir.yaml:3:"]);
}

#[test]
fn settings_that_cannot_work_are_refused_with_a_reason() {
    are_refused(&[
        ("contexts_per_metric_max: many", &["contexts_per_metric_max", "0"]),
        (
            "allowed_networks: [10.1.2.3/8]",
            &["allowed_networks", "10.1.2.3/8", "10.1.0.0/16"],
        ),
        (
            "rate_limit_per_network: {10.1.2.3/8: 1MiB}",
            &["rate_limit_per_network", "did you mean 10.0.0.0/8?"],
        ),
        (
            "rate_limit_per_network: {10.0.0.0/8: 0}",
            &["rate_limit_per_network", "size"],
        ),
        (
            "rate_limit_per_origin: 1MiB",
            &["rate_limit_per_origin", "origin_detection"],
        ),
        (
            "per_listener: [{listener: 'udp://127.0.0.1:9125', gauge_deltas: true}]",
            &["per_listener", "udp://127.0.0.1:8125"],
        ),
        ("per_listener: [{listener: udp, gauge_deltas: maybe}]", &["true"]),
    ]);
    let influx = |settings: &str| format!("outputs: {{influx: {{{settings}}}}}\n");
    for (settings, said) in [
        ("url: 'http://a:8086/write?db=x'", "no query"),
        ("url: 'tcp://a:8086'", "udp://host:port"),
        (
            "url: 'http://a:8086', database: d, bucket: b",
            "outputs.influx.bucket",
        ),
        (
            "url: 'http://a:8086', organization: o",
            "outputs.influx.organization",
        ),
        (
            "url: 'http://a:8086', retention_policy: r",
            "outputs.influx.retention_policy",
        ),
        (
            "url: 'http://a:8086', token: t, bearer_token: b",
            "outputs.influx.token",
        ),
        ("url: 'udp://a:8089', database: d", "datagrams carry no database"),
        ("database: d", "outputs.influx.url"),
    ] {
        are_refused(&[(&influx(settings), &[said])]);
    }
    let page = accepted(&influx("url: 'http://a:8086', token: 0123456789abcdef"));
    assert!(page.contains("cdef") && !page.contains("0123456789"), "{page}");
}

#[test]
fn files_of_encryption_are_refused_with_a_reason() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap().pem();
    write("server.pem", &certificate);
    write("no.key", &certificate);
    write("server.key", &key.serialize_pem());
    write("other.key", &other.serialize_pem());
    for (text, parts) in [
        ("tcp_tls_certificate: AT/server.pem", &["needs tcp_tls_key"][..]),
        ("tcp_tls_key: AT/server.key", &["needs tcp_tls_certificate"]),
        (
            "tcp_tls_client_ca: AT/server.pem",
            &["needs tcp_tls_certificate and tcp_tls_key"],
        ),
        (
            "tcp_tls_certificate: AT/server.key\ntcp_tls_key: AT/server.key",
            &["tcp_tls_certificate", "holds no certificate"],
        ),
        (
            "tcp_tls_certificate: AT/server.pem\ntcp_tls_key: AT/no.key",
            &["tcp_tls_key", "holds no private key"],
        ),
        (
            "tcp_tls_certificate: AT/server.pem\ntcp_tls_key: AT/other.key",
            &["tcp_tls_key", "does not go with"],
        ),
        (
            "tcp_tls_certificate: AT/server.pem\ntcp_tls_key: AT/server.key\ntcp_tls_client_ca: AT/none",
            &["tcp_tls_client_ca", "No such file"],
        ),
    ] {
        let at = directory.path().to_str().unwrap();
        are_refused(&[(&text.replace("AT", at), parts)]);
    }
    // Encryption is switched on and off by a restart: a listener that took plain text a moment ago must not surprise its clients.
    let load = |settings: &str| {
        let text = settings.replace("AT", directory.path().to_str().unwrap());
        config::load_content(format!("tcp: [1]\n{text}").as_bytes()).unwrap()
    };
    let files = "tcp_tls_certificate: AT/server.pem\ntcp_tls_key: AT/server.key\n";
    let (plain, encrypted) = (load(""), load(files));
    write("server.pem", &params.self_signed(&other).unwrap().pem());
    write("server.key", &other.serialize_pem());
    let renewed = load(files);
    for (before, after, is_applied) in [
        (&plain, &encrypted, false),
        (&plain, &renewed, false),
        (&encrypted, &renewed, true),
        (&encrypted, &plain, false),
    ] {
        let changes = after.changes(before);
        assert!(
            !changes.is_empty() && changes.iter().all(|change| change.live == is_applied),
            "{changes:?}"
        );
    }
}

#[test]
fn suspicious_rules_are_noted_with_their_line() {
    let page = accepted(
        "
mapper_profiles:
  - name: p
    prefix: a.
    mappings:
      - {match: a.*, name: first}
      - {match: a.b, name: second}
      - {match: b.*, name: third}
      - {match: a.c.*, name: merged, types: [counter]}
      - {match: a.d.*, name: merged, types: [gauge]}
rules:
  - {name: shadow, match: x.*, drop: true}
  - {name: shadowed, match: x.y, exclude_tags: [id]}
  - {name: never, match: 'a^b', match_type: regex, drop: true}
  - {name: everything, include_tags: [env]}
",
    );
    for part in [
        "line 7: mapper_profiles[0].mappings[1]: never applies",
        "line 8: mapper_profiles[0].mappings[2].match: \"b.*\" never matches",
        "line 10: mapper_profiles[0].mappings[4].name: \"merged\" is the new name in mapper_profiles[0].mappings[3] too",
        "line 13: rules[1]: never applies: \"shadow\" drops its metrics",
        "line 14: rules[2].match: \"a^b\" matches no name",
        "line 15: rules[3]: removes every tag except env from every metric",
    ] {
        assert!(page.contains(part), "{part:?} is not in\n{page}");
    }
}

#[test]
fn the_shares_of_the_memory_are_printed() {
    let page = accepted("memory: 64MiB\nuds_stream: /tmp/socket\n");
    for line in [
        "#   contexts          23.0 MiB  when full: ",
        "#   batches            4.0 MiB  when full: ",
        "#   partial_frames     4.0 MiB  when full: ",
        "#   queues             8.0 MiB  when full: ",
        "#   cumulative        16.0 MiB  when full: ",
        "#   history            8.0 MiB  when full: ",
        "#   taps               1.0 MiB  when full: ",
    ] {
        assert!(page.contains(line), "{line:?} is not in\n{page}");
    }
    assert!(!page.contains("tls_sessions"), "{page}");
    assert!(!page.contains("#   open_bucket "), "{page}");
    let page = accepted("memory: 64MiB\nstate_path: /tmp/state\n");
    assert!(
        page.contains("#   open_bucket        1.0 MiB  when full: "),
        "{page}"
    );
}

/// Whether a configuration is accepted with these variables, and what is said about it.
fn checked(inputs: Inputs, environment: &[(&str, &str)]) -> (bool, String) {
    let variables = environment.iter();
    let environment = variables.map(|(name, value)| ((*name).to_owned(), Some((*value).to_owned())));
    let inputs = Inputs {
        environment: environment.collect(),
        run_secret_backend: true,
        ..inputs
    };
    match config::load(&inputs) {
        Ok(loaded) => (true, report(&loaded)),
        Err(problems) => (false, problems.to_string()),
    }
}

const OLD: &str = "00000000000000000000000000000old";
const NEW: &str = "11111111111111111111111111111new";

#[test]
fn a_key_file_switches_the_output_on_and_errors_name_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("key");
    let path = key.to_str().unwrap();
    let environment = [("DD_API_KEY_FILE", path)];
    let check = |environment: &[(&str, &str)]| checked(Inputs::default(), environment);
    let (good, text) = check(&environment);
    assert!(
        !good && text.contains(path) && text.contains("api_key_file"),
        "{text}"
    );
    std::fs::write(&key, format!("{OLD}\n")).unwrap();
    let (good, text) = check(&environment);
    assert!(
        good && text.contains(path) && text.contains("environment DD_API_KEY_FILE"),
        "{text}"
    );
    assert!(!text.contains(OLD) && text.contains("****0old"), "{text}");
    let (good, text) = check(&[environment[0], ("DD_API_KEY", NEW)]);
    assert!(
        !good && text.contains("only one of them") && !text.contains(OLD) && !text.contains(NEW),
        "{text}"
    );
}

#[test]
fn files_that_others_may_read_or_write_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let [key, file] = ["key", "weir.yaml"].map(|name| directory.path().join(name));
    std::fs::write(&key, OLD).unwrap();
    let check = |setting: &str, of_key: u32, of_file: u32, expected: &str| {
        std::fs::write(&file, format!("outputs: {{datadog: {{{setting}}}}}\n")).unwrap();
        for (path, mode) in [(&key, of_key), (&file, of_file)] {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        }
        let inputs = Inputs {
            file: Some(file.clone()),
            ..Inputs::default()
        };
        let (good, text) = checked(inputs, &[]);
        let warnings = text.matches("# warning: ").count();
        assert!(good && text.contains(expected), "{expected}: {text}");
        assert_eq!(warnings, usize::from(!expected.is_empty()), "{text}");
    };
    let in_file = format!("api_key_file: {}", key.display());
    check(&in_file, 0o600, 0o644, "");
    check(
        &in_file,
        0o644,
        0o644,
        "key holds a secret and can be read by everybody",
    );
    check(&in_file, 0o600, 0o666, "weir.yaml can be written by everybody");
    let here = format!("api_key: {OLD}");
    check(&here, 0o600, 0o600, "");
    check(
        &here,
        0o600,
        0o644,
        "weir.yaml holds a secret and can be read by everybody",
    );
}

/// [`checked`] for a configuration that asks this program.
fn checked_with(program: &SecretProgram, config: &str, environment: &[(&str, &str)]) -> (bool, String) {
    let inputs = Inputs {
        file: Some(program.configured(config)),
        ..Inputs::default()
    };
    checked(inputs, environment)
}

#[test]
fn a_program_answers_to_handles_in_every_source() {
    let key = "0123456789abcdef0123456789abcdef";
    let answers = format!(
        r#"{{"vault/key":{{"value":"{key}\n"}},"other":{{"value":"{OLD}","error":""}},"name":{{"value":"hush-hush"}},"port":{{"value":"9125"}}}}"#
    );
    let program = SecretProgram::new(&answers);
    let config = "secret_backend_arguments: [--from, a vault]\nhostname: ENC[name]\nudp: ['ENC[port]']\noutputs:\n  datadog:\n    \
                  additional_endpoints: {'https://b.example': ['ENC[other]']}\n";
    let environment = [
        ("DD_API_KEY", " ENC[vault/key] "),
        ("DD_APM_KEY", "ENC[not ours]"),
    ];
    let (good, text) = checked_with(&program, config, &environment);
    assert!(good, "{text}");
    let line = |key: &str| {
        let found = text.lines().find(|line| line.trim_start().starts_with(key));
        found.unwrap_or_else(|| panic!("{key}: {text}")).to_owned()
    };
    assert!(line("udp:").contains("[127.0.0.1:<secret>]"), "{text}");
    assert!(line("api_key:").contains("****cdef"), "{text}");
    assert!(line("hostname:").contains("hostname: <secret> "), "{text}");
    for hidden in [key, OLD, "hush-hush", "9125"] {
        assert!(!text.contains(hidden), "{hidden}: {text}");
    }
    let question = std::fs::read_to_string(program.path("question")).unwrap();
    assert_eq!(
        question,
        r#"{"version":"1.0","secrets":["name","other","port","vault/key"]}"#
    );
    let arguments = std::fs::read_to_string(program.path("arguments")).unwrap();
    assert_eq!(arguments, "--from a vault\n");
}

#[test]
fn errors_name_the_place_and_no_secret() {
    let program = SecretProgram::new("");
    let config = "outputs:\n  datadog:\n    api_key: ENC[key]\n";
    let secret = "hush-hush-hush-hush";
    for (answers, expected) in [
        (
            r#"{"key":{"value":null,"error":"no such key"}}"#.to_owned(),
            "weir.yaml:4: outputs.datadog.api_key: ENC[key]: secret_backend_command says \"no such key\"",
        ),
        (
            r#"{"other":{"value":"x"}}"#.to_owned(),
            "ENC[key]: secret_backend_command did not answer to it",
        ),
        (
            answer("key", ""),
            "ENC[key]: secret_backend_command answered with an empty value",
        ),
        (format!("{secret} {{"), "weir.yaml:1: secret_backend_command: "),
        (
            format!(r#"{{"key":"{secret}"}}"#),
            "the answer is not JSON of the form",
        ),
    ] {
        program.answers(&answers);
        let (good, text) = checked_with(&program, config, &[]);
        assert!(!good && text.contains(expected), "{answers}: {text}");
        assert!(!text.contains(secret), "{text}");
    }
    // A refused value is not shown either, whether its own setting refuses it or the whole does.
    program.answers(&answer("key", secret));
    for config in [
        "udp: ['ENC[key]']\n",
        "bucket_width: ENC[key]\n",
        "hostname: x\noutputs:\n  prometheus: {expiry: 'ENC[key]'}\n",
    ] {
        let (good, text) = checked_with(&program, config, &[]);
        assert!(
            !good && text.contains("<secret>") && !text.contains(secret),
            "{text}"
        );
    }
    let (good, text) = checked_with(&program, "state_path: ENC[key]\n", &[]);
    assert!(!good && text.contains("must be written as it is"), "{text}");
    let flag = Flag {
        shown: "--set".to_owned(),
        key: "outputs.datadog.api_key".to_owned(),
        values: vec!["ENC[key]".to_owned()],
    };
    let alone = Inputs {
        flags: vec![flag],
        run_secret_backend: true,
        ..Inputs::default()
    };
    let said = config::load(&alone).unwrap_err().to_string();
    assert!(
        said.contains(
            "secret_backend_command: is not set, and the configuration has handles of secrets: ENC[key]"
        ),
        "{said}"
    );
}

#[test]
fn the_rights_of_the_program_are_those_that_the_datadog_agent_wants() {
    let program = SecretProgram::new(&answer("key", OLD));
    let config = "outputs:\n  datadog:\n    api_key: ENC[key]\n";
    let group = format!("secret_backend_command_allow_group_exec_perm: true\n{config}");
    for (mode, config, refused) in [
        (0o700, config, None),
        (0o500, config, None),
        (0o750, config, Some("chmod 700")),
        (0o701, config, Some("chmod 700")),
        (0o600, config, Some("chmod u+x")),
        (0o750, &*group, None),
        (0o770, &*group, Some("chmod 750")),
        (0o751, &*group, Some("chmod 750")),
    ] {
        program.becomes(PROGRAM, mode);
        let (good, text) = checked_with(&program, config, &[]);
        assert_eq!(good, refused.is_none(), "{mode:o}: {text}");
        assert!(text.contains(refused.unwrap_or_default()), "{mode:o}: {text}");
    }
    for (script, expected) in [
        ("#!/bin/sh\nexit 3\n", "ended with exit status: 3"),
        (
            "#!/bin/sh\nsleep 600 & sleep 600\n",
            "did not end within 1 s, and was killed",
        ),
        // The program ends by itself, and by a closed pipe.
        ("#!/bin/sh\nhead -c 1048577 /dev/zero\n", "is longer than 1 MiB"),
        ("#!/bin/sh\nhead -c 3000000 /dev/zero\n", "is longer than 1 MiB"),
        ("#!/nowhere/sh\n", "cannot be run"),
    ] {
        program.becomes(script, 0o700);
        // Only the one that never ends meets its limit.
        let seconds = if script.contains("sleep") { 1 } else { 60 };
        let (good, text) = checked_with(
            &program,
            &format!("secret_backend_timeout: {seconds}\n{config}"),
            &[],
        );
        assert!(!good && text.contains(expected), "{script}: {text}");
    }
}

#[test]
fn configurations_of_a_merge_are_shown_or_refused_with_their_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("merge.yaml");
    let check = |text: &str, flags: Vec<Flag>| {
        std::fs::write(&path, text).unwrap();
        let inputs = Inputs {
            file: Some(path.clone()),
            role: Role::Merge,
            flags,
            ..Inputs::default()
        };
        checked(inputs, &[])
    };
    let grace = Flag {
        shown: "--grace".to_owned(),
        key: "grace".to_owned(),
        values: vec!["30s".to_owned()],
    };
    let text =
        "log: {directory: /var/lib/weir/fleet}\nmemory: 1GiB\noutputs: {file: {path: /tmp/points.json}}\n";
    let (is_valid, page) = check(text, vec![grace]);
    assert!(is_valid, "{page}");
    for part in [
        "directory: /var/lib/weir/fleet",
        "grace: 30s",
        "flag --grace",
        "max_skew: 10m",
        "admin: 127.0.0.1:8128",
        "path: /tmp/points.json",
        "open_buckets",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    for part in ["udp", "mapper_profiles", "contexts_max"] {
        assert!(!page.contains(part), "{part} is nothing for a merge: {page}");
    }
    for (text, expected) in [
        ("memory: 1GiB\n", "log.directory: is missing, and so is `brokers`"),
        (
            "log: {directory: /a}\nudp: 127.0.0.1:8125\n",
            "merge.yaml:2: udp: is a setting of agents (`weir run`)",
        ),
        (
            "log: {directory: /a}\ngrace: 1500ms\n",
            "merge.yaml:2: grace: must be whole seconds",
        ),
        ("log: {directory: /a}\ngrase: 10s\n", "did you mean \"grace\""),
        ("log: {directory: /a, brocers: [a]}\n", "did you mean \"brokers\""),
        (
            "log: {brokers: ['a:9092'], properties: {isolation.level: read_uncommitted}}\nstate_path: /a\n",
            "properties.isolation.level: cannot be set here",
        ),
        (
            "log: {brokers: ['a:9092'], sasl: {mechanism: oauthbearer}}\nstate_path: /a\n",
            "sasl.token_file: is missing",
        ),
        (
            "log: {directory: /a}\noutputs:\n  relay: {targets: ['udp://127.0.0.1:9']}\n",
            "a relay forwards messages",
        ),
    ] {
        let (is_valid, message) = check(text, Vec::new());
        assert!(!is_valid && message.contains(expected), "{text}: {message}");
    }
}

#[test]
fn allowed_origins_need_a_sender_and_a_source_of_its_tags() {
    are_refused(&[
        (
            "uds: [/tmp/x.sock]\nallowed_origins: ['a:b']",
            &["weir.yaml:2", "allowed_origins", "origin_detection: true"],
        ),
        (
            "origin_detection: true\nallowed_origins: [host]",
            &[
                "weir.yaml:2",
                "allowed_origins[0]",
                "no_container",
                "kube_namespace:prod",
            ],
        ),
    ]);
    let (sockets, list) = ("uds: [/tmp/x.sock]\norigin_detection: true\n", "allowed_origins:");
    for (text, parts) in [
        (
            format!("origin_detection: true\n{list} ['container_id:ab*']"),
            &[
                "note: line 2: allowed_origins",
                "uds and uds_stream are empty",
                "allowed_networks",
            ][..],
        ),
        (
            format!("{sockets}origin_docker: []\norigin_containerd: []\n{list} ['image_name:web']"),
            &["note: line 5: allowed_origins", "no source of tags is enabled"],
        ),
    ] {
        let page = accepted(&text);
        for part in parts {
            assert!(page.contains(part), "{part:?} is not in {page}");
        }
    }
    let page = accepted(&format!("{sockets}{list} ['container_id:ab*', no_container]"));
    assert!(!page.contains("note"), "{page}");
}
