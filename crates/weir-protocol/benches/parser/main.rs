//! Cost of the parser by its steps: the next message of a packet, a metric, its tags.
//!
//! `cargo bench -p weir-protocol --bench parser -- [count=N] [PART OF A NAME]` prints lines for `benchstat`:
//!
//! * `NextMessage`: one line of a packet of 8 KiB. `way=scan` is the pass that the agent makes, with colons and pipes; `way=lines` finds newlines alone.
//! * `ParseMetric`: one line by its value. `way=fast` leaves name and tags as bytes, as the agent does for a message seen before; `way=line` checks everything.
//! * `ParseTags`: all tags of a section. `way=scan` finds the commas, as the agent does; `way=iter` gives each tag as text.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "a benchmark reads the clock and prints"
)]

mod harness;

use std::hint::black_box;

use harness::Harness;
use weir_protocol::{Lines, Message, ParseOptions, Scan, Tags, parse_fast, parse_line, separators};

const TAGS: &str = "env:production,service:checkout,region:eu-central-1,version:1.42.0,host_class:c5,team:payments,canary:false";

const VALUES: [(&str, &str); 6] = [
    ("short", "93.8"),
    ("float", "0.30000000000000004"),
    ("integer", "-5834521998071234567"),
    ("exponent", "6.02e+23"),
    ("packed", "12.5:40:7:1000:0.25:3:18:99"),
    (
        "packed_floats",
        "0.30000000000000004:12.345678901234567:0.3333333333333333:93.88100000000001",
    ),
];

fn main() {
    let harness = Harness::new("weir-protocol", &[]);
    next_message(&harness);
    metric(&harness);
    for count in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096] {
        tags(&harness, count);
    }
}

fn next_message(harness: &Harness) {
    let mut packet = Vec::new();
    let mut messages = 0;
    while packet.len() < 8000 {
        packet.extend_from_slice(
            format!("checkout.request.duration.{messages}:{messages}.5|d|#{TAGS}\n").as_bytes(),
        );
        messages += 1;
    }
    let mut scan = Scan::new();
    harness.run("NextMessage/way=scan", messages, |_| {
        scan.scan(black_box(&packet));
        let mut start = 0;
        for message in 0..messages {
            let end = scan.newline(message);
            assert!(black_box(scan.colon(start)) < end, "a line has a name");
            start = end + 1;
        }
        assert_eq!(start, packet.len());
    });
    harness.run("NextMessage/way=lines", messages, |_| {
        let found = Lines::new(black_box(&packet)).map(|line| black_box(line).bytes.len());
        assert_eq!(
            found
                .fold((0, 0), |(count, bytes), more| (count + 1, bytes + more))
                .0,
            messages
        );
    });
}

fn metric(harness: &Harness) {
    let options = ParseOptions::default();
    for (name, value) in VALUES {
        let line = format!("checkout.request.duration:{value}|d|#{TAGS}");
        let line = line.as_bytes();
        let name_end = "checkout.request.duration".len();
        let mut scan = Scan::new();
        scan.scan(line);
        let mut values = Vec::with_capacity(64);
        harness.run(&format!("ParseMetric/value={name}/way=fast"), 1, |_| {
            values.clear();
            let parsed = parse_fast(black_box(line), name_end, (black_box(&scan), 0), &mut values);
            assert!(black_box(parsed).is_some(), "the line is ordinary");
            black_box(&values);
        });
        harness.run(&format!("ParseMetric/value={name}/way=line"), 1, |_| {
            let parsed = parse_line(black_box(line), &options);
            assert!(
                matches!(black_box(parsed), Ok(Message::Metric(_))),
                "the line is valid"
            );
        });
    }
}

fn tags(harness: &Harness, count: usize) {
    let text: Vec<String> = (0..count).map(|at| format!("tag{at}:value{at}")).collect();
    let text = text.join(",");
    let tags = Tags::from_text(&text);
    let mut commas = vec![0; count + 8];
    harness.run(&format!("ParseTags/way=scan/tags={count}"), 1, |_| {
        let found = separators(black_box(text.as_bytes()), b',', &mut commas);
        assert_eq!(found, Some(count - 1));
        black_box(&commas);
    });
    harness.run(&format!("ParseTags/way=iter/tags={count}"), 1, |_| {
        let found = black_box(tags).iter().map(|tag| black_box(tag).len());
        assert_eq!(
            found
                .fold((0, 0), |(count, bytes), more| (count + 1, bytes + more))
                .0,
            count
        );
    });
}
