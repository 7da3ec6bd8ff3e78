//! Listeners that read their messages in ways of their own: the rows of the page about the protocol.

use std::os::unix::net::UnixDatagram;

use crate::support::{Agent, status, until, weir};

const PAGE: &str = include_str!("../../../docs/protocol.md");

/// Rows of the table headed "setting | message | becomes".
fn rows() -> Vec<[String; 3]> {
    let mut inside = false;
    let mut rows = Vec::new();
    for line in PAGE.lines() {
        if !line.starts_with("| `") {
            inside =
                line.starts_with("| setting | message | becomes |") || inside && line.starts_with("| ---");
        } else if inside {
            let cells = line.replace(r"\|", "\0");
            let cell = |at| {
                let cell = cells.split('|').nth(at).unwrap();
                cell.trim().trim_matches('`').replace('\0', "|")
            };
            rows.push([cell(1), cell(2), cell(3)]);
        }
    }
    rows
}

/// Name and tags of each point, and its value, sorted.
fn points(stdout: &str) -> Vec<String> {
    let lines = stdout.lines().map(|line| serde_json::from_str(line).unwrap());
    let shown = lines.map(|line: serde_json::Value| {
        let tags: Vec<&str> = line["tags"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tag| tag.as_str().unwrap())
            .collect();
        format!(
            "{} [{}] {}",
            line["metric"].as_str().unwrap(),
            tags.join(","),
            line["value"]
        )
    });
    let mut shown: Vec<String> = shown.collect();
    shown.sort();
    shown
}

/// A Unix socket for each row, beside UDP, which reads everything as it is.
#[test]
fn every_row_of_the_page_holds_for_its_listener_and_no_other() {
    let rows = rows();
    assert_eq!(rows.len(), 7, "{rows:?}");
    let directory = tempfile::tempdir().unwrap();
    let paths: Vec<String> = (0..rows.len())
        .map(|row| directory.path().join(row.to_string()).display().to_string())
        .collect();
    let own = paths.iter().zip(&rows);
    let own = own.map(|(path, [setting, ..])| format!("- listener: 'unixgram://{path}'\n  {setting}\n"));
    let config = format!(
        "bucket_width: LONG\nuds: [{}]\nper_listener:\n{}outputs: {{stdout: {{enabled: true}}}}\n",
        paths.join(", "),
        own.collect::<String>()
    );
    let agent = Agent::start(&config, &[]);
    let is_of_names = |setting: &str| setting.starts_with("tag_styles");
    let mut sent = 0_u64;
    for (row, [setting, message, _]) in rows.iter().enumerate() {
        let socket = UnixDatagram::unbound().unwrap();
        socket.connect(&paths[row]).unwrap();
        let samples = if setting.starts_with("sample_lists") { 2 } else { 1 };
        // More than once: known messages take another way than new ones.
        for _ in 0..3 {
            for line in message.split(' ') {
                let line = format!("r{row}.{line}");
                socket.send(line.as_bytes()).unwrap();
                sent += samples;
                if is_of_names(setting) {
                    agent.send(&line);
                    sent += 1;
                }
            }
        }
    }
    until("all are received", || {
        status(&agent.admin)["total"]["messages"]["received"] == sent
    });
    // The command names a listener, and hears which there are.
    let explained = |name: &str| {
        weir(&[
            "explain",
            "queue#env=prod:+7|g",
            "--listener",
            name,
            "--admin",
            &agent.admin,
        ])
    };
    let (ok, text) = explained(&format!("unixgram://{}", paths[0]));
    assert!(ok && text.contains("\n  queue (gauge)"), "{text}");
    let (ok, text) = explained("tcp");
    assert!(
        !ok && text.contains(&format!("allowed are udp://{}", agent.address())),
        "{text}"
    );
    let (stdout, _) = agent.stop();
    let found = points(&stdout);
    for (row, [setting, message, becomes]) in rows.iter().enumerate() {
        let of_row = |text: &str| format!("r{row}.{text}");
        assert!(
            found.contains(&of_row(becomes)),
            "{setting}, {message}: {found:?}"
        );
        let of_row: Vec<&String> = found
            .iter()
            .filter(|point| point.starts_with(&of_row("")))
            .collect();
        let expected = if is_of_names(setting) { 2 } else { 1 };
        assert_eq!(of_row.len(), expected, "{setting}: {found:?}");
        if is_of_names(setting) {
            let as_it_is = format!("r{row}.{} [", message.split(':').next().unwrap());
            assert!(
                of_row.iter().any(|point| point.starts_with(&as_it_is)),
                "{found:?}"
            );
        }
    }
}
