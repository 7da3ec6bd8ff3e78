//! The settings of a fleet's log, as an output or a merge has them.

use std::collections::BTreeMap;
use std::path::Path;

use weir_config::{File, Inputs, KafkaClient, LogReader, Mechanism, OutputType};

use crate::machine;

use machine::Machine;

const fn of_type(
    name: &'static str,
    read: fn(&mut weir_config::Output<'_, '_>) -> Option<LogReader>,
) -> OutputType<LogReader> {
    OutputType {
        name,
        summary: "Reads a log.",
        on_by_default: false,
        settings: LogReader::SETTINGS,
        removed: &[],
        read,
    }
}

/// With a client of Apache Kafka, and without.
const TYPES: &[OutputType<LogReader>] = &[
    of_type("with", |output| {
        output.read(
            |reader: &mut LogReader, files| reader.log.read(files),
            |reader| reader.log.check(KafkaClient::BuiltIn),
        )
    }),
    of_type("without", |output| {
        output.read(
            |reader: &mut LogReader, files| reader.log.read(files),
            |reader| reader.log.check(KafkaClient::Missing),
        )
    }),
];

fn load(of_type: &str, settings: &[&str]) -> Result<LogReader, String> {
    let text = format!("outputs:\n  {of_type}:\n    {}\n", settings.join("\n    "));
    let inputs = Inputs {
        file: Some(File {
            path: Path::new("c.yaml"),
            content: Ok(text.as_bytes()),
        }),
        environment: &BTreeMap::new(),
        flags: &[],
    };
    let loaded = weir_config::load(&inputs, TYPES, &Machine).map_err(|problems| problems.to_string())?;
    let output = loaded.config.outputs.into_iter().next();
    output
        .map(|output| output.settings)
        .ok_or_else(|| "no output".to_owned())
}

#[test]
fn a_log_is_a_directory_or_a_topic() {
    let reader = load("without", &["directory: /var/lib/log"]).unwrap();
    assert_eq!(reader.log.directory.as_deref(), Some(Path::new("/var/lib/log")));
    assert_eq!((reader.log.partitions, reader.group.as_str()), (1, "weir-merge"));
    let reader = load(
        "with",
        &["brokers: [kafka1:9092, '[::1]:9093', 192.0.2.7:1]", "group: g"],
    )
    .unwrap();
    assert_eq!(reader.log.brokers.len(), 3);
    assert_eq!((reader.log.topic.as_str(), reader.group.as_str()), ("weir", "g"));
    assert!(!reader.log.tls.is_on());
}

#[test]
fn a_password_comes_from_a_file_too() {
    let settings = [
        "brokers: [a:1]",
        "sasl:",
        "  mechanism: scram-sha-512",
        "  username: u",
        "  password_file: /token",
    ];
    let reader = load("with", &settings).unwrap();
    assert_eq!(reader.log.sasl.mechanism, Mechanism::ScramSha512);
    assert_eq!(reader.log.sasl.password.expose(), "0123456789abcdef");
}

#[test]
fn conflicting_settings_are_refused_with_the_allowed_ones() {
    let check = |of_type: &str, settings: &[&str], expected: &str| {
        let error = load(of_type, settings).unwrap_err();
        assert!(error.contains(expected), "{settings:?}: {error}");
    };
    check(
        "with",
        &["topic: t"],
        "directory: is missing, and so is `brokers`",
    );
    check(
        "with",
        &["directory: /d", "brokers: [a:1]"],
        "brokers: cannot be combined with `directory`",
    );
    check(
        "without",
        &["brokers: [a:1]"],
        "brokers: needs a weir with the Kafka client",
    );
    check(
        "without",
        &["brokers: [a:1]"],
        "install the package or the image `weir-kafka`",
    );
    for broker in [
        "a", "'a:'", "':1'", "a:0", "a:70000", "a/b:1", "'[::1:1'", "'a b:1'",
    ] {
        check(
            "with",
            &[&format!("brokers: [{broker}]")],
            "is not a broker such as kafka1:9092",
        );
    }
    check(
        "with",
        &["brokers: [a:1]", "topic: a/b"],
        "is not a name of at most 249 letters",
    );
    check(
        "with",
        &["brokers: [a:1]", "group: ''"],
        "must be a text of 1 to 100 letters, digits and characters of `.-_`",
    );
    let sasl = |line: &str| format!("sasl: {{{line}}}");
    for (line, expected) in [
        ("mechanism: plain, password: p", "sasl.username: is missing"),
        (
            "mechanism: plain, username: u",
            "sasl.password: is missing, and so is `password_file`",
        ),
        ("username: u", "sasl.username: needs `mechanism`"),
        ("password: p", "sasl.password: needs `mechanism`"),
        (
            "mechanism: gssapi",
            "is not one of none, plain, scram-sha-256, scram-sha-512",
        ),
    ] {
        check("with", &["brokers: [a:1]", &sasl(line)], expected);
    }
    check(
        "with",
        &["directory: /d", &sasl("mechanism: plain")],
        "sasl.mechanism: needs `brokers`",
    );
    check(
        "with",
        &["directory: /d", "tls: {enabled: true}"],
        "tls.enabled: needs `brokers`",
    );
    check(
        "with",
        &["brokers: [a:1]", "tls: {certificate_file: /c}"],
        "tls.certificate_file: needs `key_file`",
    );
    check(
        "with",
        &["brokers: [a:1]", "tls: {key_file: /k}"],
        "tls.key_file: needs `certificate_file`",
    );
}
