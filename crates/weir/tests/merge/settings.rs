use crate::support::weir;

fn check(text: &str, flags: &[&str]) -> (bool, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("merge.yaml");
    std::fs::write(&path, text).unwrap();
    let mut arguments = vec!["merge", "--check", "--config", path.to_str().unwrap()];
    arguments.extend(flags);
    weir(&arguments)
}

#[test]
fn a_configuration_is_checked_and_shown() {
    let (is_valid, page) = check(
        "log: {directory: /var/lib/weir/fleet}\nmemory: 1GiB\noutputs: {file: {path: /tmp/points.json}}\n",
        &["--grace", "30s"],
    );
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
}

#[test]
fn errors_are_reported_with_their_line() {
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
        let (is_valid, message) = check(text, &[]);
        assert!(!is_valid && message.contains(expected), "{text}: {message}");
    }
}
