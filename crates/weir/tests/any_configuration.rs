//! Any bytes may stand in a configuration file: they are a configuration or a list of problems, never a panic.

use proptest::prelude::*;
use weir_config::Problems;
use weir_system::config::load_content;

/// Whatever happens, a problem has a message that fits a terminal.
fn check(content: &[u8]) {
    if let Err(Problems(problems)) = load_content(content) {
        assert!(!problems.is_empty());
        for problem in problems {
            let shown = problem.to_string();
            assert!(shown.chars().all(|c| !c.is_control()), "{shown:?}");
        }
    }
}

fn piece() -> impl Strategy<Value = String> {
    let keys: Vec<&'static str> = weir_config::settings()
        .map(|setting| setting.key)
        .chain([
            "outputs",
            "datadog",
            "prometheus",
            "stdout",
            "delivery",
            "api_key",
            "type",
            "enabled",
            "quantiles",
        ])
        .collect();
    let values = [
        "0",
        "-1",
        "1s",
        "99999999999999999999",
        "1e999",
        "nan",
        "inf",
        "0x10",
        "8125",
        "[::1]:1",
        "127.0.0.1:0",
        "/a",
        "true",
        "~",
        "null",
        "''",
        "'0.5'",
        "[]",
        "{}",
        "[a, b]",
        "{a: [b]}",
        "|\n  text",
        "&x y",
        "*x",
        "!!int 5",
        "1.5GiB",
        "\u{0}",
        "é",
        "\u{202e}",
        "\u{85}",
        "datadog",
        "https://u:p@h",
        "\t",
    ];
    prop_oneof![
        4 => (prop::sample::select(keys), prop::sample::select(values.to_vec()), 0..3usize)
            .prop_map(|(key, value, depth)| format!("{}{key}: {value}\n", "  ".repeat(depth))),
        1 => prop::sample::select(vec!["outputs:\n", "- ", "---\n", "? ", ": ", "#", "\"", "%YAML 1.2\n", "...\n", "\r\n"])
            .prop_map(str::to_owned),
        1 => "\\PC{0,20}",
    ]
}

proptest! {
    // The seed of a failure is printed by proptest and can be given back in PROPTEST_RNG_SEED.
    // The fuzz target `configuration` tries more.
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes(content in prop::collection::vec(any::<u8>(), 0..300)) {
        check(&content);
    }

    #[test]
    fn nearly_valid_files(pieces in prop::collection::vec(piece(), 0..12)) {
        check(pieces.concat().as_bytes());
    }

    #[test]
    fn valid_files_with_bytes_changed(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut content = b"udp: [8125, '127.0.0.1:9']\nbucket_width: 10s\ntags: [a:b]\noutputs:\n  prometheus:\n    \
            expiry: 5m\n  datadog:\n    api_key: abc\n    delivery: {timeout: 20s}\n".to_vec();
        for (index, byte) in changes {
            let index = index.index(content.len());
            content[index] = byte;
        }
        check(&content);
    }
}

#[test]
fn deep_and_wide_files_end_quickly() {
    check("[".repeat(100_000).as_bytes());
    check("a: ".repeat(100_000).as_bytes());
    check(format!("udp: [{}]", "1,".repeat(200_000)).as_bytes());
    check("- ".repeat(100_000).as_bytes());
    check(&vec![b'a'; 2 << 20]);
    let mut staircase = String::new();
    for depth in 0..2000 {
        staircase.push_str(&format!("{}k:\n", " ".repeat(depth)));
    }
    check(staircase.as_bytes());
}
