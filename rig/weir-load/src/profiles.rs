//! The named profiles. Where each figure comes from is written in `rig/docs/load.md`.

use crate::profile::*;
use crate::units::{Bytes, Range, Rate, RateUnit, Span};
use std::time::Duration;

fn bytes_per_second(rate: u64) -> Option<Rate> {
    Some(Rate {
        per_second: rate as f64,
        unit: RateUnit::Bytes,
    })
}

fn messages_per_second(rate: f64) -> Option<Rate> {
    Some(Rate {
        per_second: rate,
        unit: RateUnit::Messages,
    })
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Everything a reader needs to choose: name and one line.
pub struct Named {
    pub name: String,
    pub about: String,
}

/// The plain names; `interner-*` and `dsd-*` also take the suffixes of [`named`].
pub fn all() -> Vec<Named> {
    let mut names: Vec<String> = [
        "real-web",
        "budget-1k",
        "budget-10k",
        "budget-100k",
        "budget-permute",
        "budget-dist",
        "budget-paced",
    ]
    .map(String::from)
    .to_vec();
    for rate in ["100KiB", "8MiB", "64MiB", "128MiB"] {
        for contexts in ["100", "1k", "10k", "50k", "100k"] {
            names.push(format!("interner-{rate}-{contexts}"));
        }
    }
    names.extend(
        [
            "smp-2023",
            "dsd-uds",
            "dsd-uds-nodist-1KiB",
            "dsd-uds-nodist-100KiB",
            "dsd-uds-nodist-100MiB",
            "dsd-uds-nodist-200MiB",
            "dsd-uds-nodist-nomulti-1KiB",
            "dsd-uds-nodist-nomulti-100KiB",
            "dsd-uds-nodist-nomulti-100MiB",
            "dsd-uds-nodist-nomulti-200MiB",
            "smp-adp",
            "smp-adp-512KiB",
            "smp-adp-1MiB",
            "smp-adp-10MiB",
            "smp-adp-100MiB",
            "smp-adp-500MiB",
            "smp-adp-low",
            "smp-adp-medium",
            "smp-adp-heavy",
            "smp-adp-ultraheavy",
            "small-packets",
            "counted-packets",
            "client-agg",
            "spiky",
            "flush-storm",
            "churn-slow",
            "churn-deploy",
            "unique-flood",
            "flood-plus-hot",
            "loop",
            "tag-permute",
            "tag-dup",
        ]
        .map(String::from),
    );
    for power in 0..12 {
        names.push(format!("many-tags-{}", 1 << power));
    }
    names.extend(
        [
            "shared-tagset",
            "high-card",
            "low-then-idle",
            "collide",
            "type-conflict",
            "malformed-1pct",
            "big-messages",
            "origin-40",
            "dist-heavy",
            "events-and-checks",
            "oracle-small",
            "statsd-plain",
            "syslog3164",
            "syslog5424",
            "json-logs",
            "apache-logs",
            "dd-logs",
            "dd-traces-json",
            "dd-traces-msgpack",
            "otlp-logs",
            "otlp-metrics",
            "otlp-traces",
        ]
        .map(String::from),
    );
    names
        .into_iter()
        .map(|name| {
            let about = named(&name).map_or_else(String::new, |p| p.about);
            Named { name, about }
        })
        .collect()
}

/// A named profile. `interner-*`, `smp-*` and `dsd-*` take `@tags-unique` or `@tags-reused` (the default), and
/// `@smooth` (the default) or `@lading-burst`.
pub fn named(full: &str) -> Option<Profile> {
    let mut parts = full.split('@');
    let name = parts.next()?;
    let mut profile = base(name)?;
    let smp = ["interner-", "smp-", "dsd-"]
        .iter()
        .any(|prefix| name.starts_with(prefix));
    for variant in parts {
        match variant {
            "tags-unique" if smp => profile.unique_tag_ratio = 1.0,
            "tags-reused" if smp => profile.unique_tag_ratio = 0.11,
            "smooth" if smp => profile.throttle = Throttle::Smooth,
            "lading-burst" if smp && profile.rate.is_some() => {
                profile.throttle = Throttle::LadingBurst;
            }
            _ => return None,
        }
    }
    Some(profile)
}

/// The nearest known name, for the error of an unknown one.
pub fn suggest(name: &str) -> Option<String> {
    let base = name.split('@').next().unwrap_or(name);
    all()
        .into_iter()
        .map(|known| (distance(base, &known.name), known.name))
        .min()
        .filter(|(distance, _)| *distance <= 4)
        .map(|(_, name)| name)
}

fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = corner + usize::from(x != *y);
            corner = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}

fn thousands(text: &str) -> Option<u64> {
    match text.strip_suffix('k') {
        Some(number) => number.parse::<u64>().ok()?.checked_mul(1000),
        None => text.parse().ok(),
    }
}

fn binary(text: &str) -> Option<u64> {
    // A terabyte per second is more than any machine moves, and keeps the arithmetic within bounds.
    const MOST: u64 = 1 << 40;
    let (number, unit) = match text.strip_suffix("KiB") {
        Some(number) => (number, KIB),
        None => (text.strip_suffix("MiB")?, MIB),
    };
    let rate = number.parse::<u64>().ok()?.checked_mul(unit)?;
    (1..=MOST).contains(&rate).then_some(rate)
}

/// The shape of Datadog's regression cases of October 2023.
fn smp_2023() -> Profile {
    Profile {
        about: "the shape of the published regression cases of 2023, as much as is taken".into(),
        transport: Transport::Unixgram,
        contexts: Range::just(1000),
        popularity: Popularity::Uniform,
        first_pass: false,
        names: Names::Random,
        name_len: Range::new(1, 200),
        tags_per_msg: TagCount::Range(Range::new(2, 50)),
        tag_keys: TagKeys::Random,
        tag_key_len: Range::new(1, 100),
        tag_values: TagValues::Random,
        tag_value_len: Range::new(1, 100),
        unique_tag_ratio: 0.11,
        shared_tagsets: 0.0,
        multivalue_p: 0.08,
        multivalue_n: Range::new(2, 32),
        sample_p: 0.5,
        sample_rates: (1..=10).collect(),
        value: Value {
            kind: ValueKind::Uniform {
                min: i64::MIN,
                max: i64::MAX,
            },
            float_p: 0.5,
            decimals: 6,
            pool: 8192,
        },
        kinds: Kinds {
            metric: 90.0,
            event: 5.0,
            service_check: 5.0,
        },
        types: Types {
            count: 100.0,
            gauge: 10.0,
            distribution: 50.0,
            histogram: 1.0,
            ..Types::default()
        },
        container_id: Some(Extension { pool: 100, p: 0.5 }),
        packet_size: Some(PacketSize::OneOf(
            [256, 512, 1000, 2000, 3000, 4000, 5000, 6000].map(Bytes).to_vec(),
        )),
        fit: Fit::Discard,
        throttle: Throttle::AllOut,
        ..Profile::default()
    }
}

/// A message alone in its packet would make a packet that comes again whenever its value does; these never do.
fn numbered() -> Value {
    Value {
        kind: ValueKind::Sequence,
        float_p: 0.0,
        ..Profile::default().value
    }
}

fn smp_adp(contexts: Range, rate: u64) -> Profile {
    Profile {
        about: "the shape of the Rust data plane's published cases".into(),
        contexts,
        tag_len: Some(Range::new(3, 150)),
        kinds: Kinds::default(),
        types: Profile::default().types,
        packet_size: Some(PacketSize::Between {
            min: Bytes(128),
            max: Bytes(8192),
        }),
        rate: bytes_per_second(rate),
        throttle: Throttle::Smooth,
        ..smp_2023()
    }
}

/// What the project's own budgets are measured with: about 150 bytes and 7 tags per message.
fn budget(contexts: u64) -> Profile {
    Profile {
        about: format!("{contexts} contexts, 150 B and 7 tags per message, mixed types, all-out"),
        transport: Transport::Unixgram,
        contexts: Range::just(contexts),
        popularity: Popularity::Uniform,
        name_len: Range::new(20, 40),
        tags_per_msg: TagCount::Range(Range::just(7)),
        tag_value_len: Range::new(4, 10),
        unique_tag_ratio: 0.1,
        multivalue_p: 0.0,
        packet_size: Some(PacketSize::Fill(Bytes(8192))),
        throttle: Throttle::AllOut,
        ..Profile::default()
    }
}

fn records(payload: Payload, transport: Transport, rate: u64, about: &str) -> Profile {
    Profile {
        about: about.into(),
        payload,
        transport,
        rate: bytes_per_second(rate),
        ..Profile::default()
    }
}

fn base(name: &str) -> Option<Profile> {
    if let Some(rest) = name.strip_prefix("interner-") {
        let (rate, contexts) = rest.split_once('-')?;
        return Some(Profile {
            about: format!("string interner grid: {rate}/s over {contexts} contexts"),
            contexts: Range::just(thousands(contexts)?),
            rate: bytes_per_second(binary(rate)?),
            throttle: Throttle::Smooth,
            ..smp_2023()
        });
    }
    if let Some(rest) = name.strip_prefix("dsd-uds-nodist-") {
        let (multi, rate) = match rest.strip_prefix("nomulti-") {
            Some(rate) => (0.0, rate),
            None => (0.08, rest),
        };
        let rate = binary(rate)?;
        let mut profile = Profile {
            about: "counters and gauges only, 1k to 10k contexts".into(),
            contexts: Range::new(1000, 10_000),
            multivalue_p: multi,
            types: Types {
                count: 100.0,
                gauge: 10.0,
                ..Types::default()
            },
            rate: bytes_per_second(rate),
            throttle: Throttle::Smooth,
            ..smp_2023()
        };
        if rate < MIB {
            profile.packet_size = Some(PacketSize::OneOf([256, 512, 1000].map(Bytes).to_vec()));
        }
        return Some(profile);
    }
    if let Some(rest) = name.strip_prefix("smp-adp-") {
        return Some(match rest {
            "low" => smp_adp(Range::just(3000), MIB),
            "medium" => smp_adp(Range::just(10_000), 10 * MIB),
            "heavy" => smp_adp(Range::new(99_000, 101_000), 50 * MIB),
            "ultraheavy" => smp_adp(Range::new(249_000, 251_000), 100 * MIB),
            rate => smp_adp(Range::new(3000, 3001), binary(rate)?),
        });
    }
    if let Some(count) = name.strip_prefix("many-tags-") {
        let count: u64 = count.parse().ok().filter(|n| (1..=2048).contains(n))?;
        return Some(Profile {
            about: format!("{count} tags per message"),
            transport: Transport::Unixgram,
            contexts: Range::just(100),
            tags_per_msg: TagCount::Range(Range::just(count)),
            tag_value_len: Range::just(6),
            shared_tagsets: 0.0,
            unique_tag_ratio: 0.2,
            packet_size: Some(PacketSize::Fill(Bytes(if count > 256 { 65_535 } else { 8192 }))),
            // Few messages fit a packet; numbered, none comes again.
            multivalue_p: if count >= 64 {
                0.0
            } else {
                Profile::default().multivalue_p
            },
            value: if count >= 64 {
                numbered()
            } else {
                Profile::default().value
            },
            throttle: Throttle::AllOut,
            ..Profile::default()
        });
    }
    let span = |ms: u64| Span(Duration::from_millis(ms));
    Some(match name {
        "real-web" => Profile {
            about: "everyday traffic: 3000 contexts, a few hot, 100k messages/s".into(),
            rate: messages_per_second(100_000.0),
            ..Profile::default()
        },
        "budget-1k" => budget(1000),
        "budget-10k" => budget(10_000),
        "budget-100k" => budget(100_000),
        "budget-permute" => Profile {
            about: "as budget-1k, tags in a new random order in every message".into(),
            tag_order: TagOrder::Shuffled(1.0),
            ..budget(1000)
        },
        "budget-dist" => Profile {
            about: "as budget-1k, distributions only, 1 to 8 packed values".into(),
            types: Types {
                distribution: 1.0,
                ..Types::default()
            },
            multivalue_p: 1.0,
            multivalue_n: Range::new(1, 8),
            ..budget(1000)
        },
        "budget-paced" => Profile {
            about: "as budget-1k, one message per datagram at 100k/s".into(),
            messages_per_packet: Some(Range::just(1)),
            value: numbered(),
            rate: messages_per_second(100_000.0),
            throttle: Throttle::Smooth,
            ..budget(1000)
        },
        "smp-2023" => smp_2023(),
        "smp-adp" => Profile {
            about: "the shape of the Rust data plane's published cases, as much as is taken".into(),
            throttle: Throttle::AllOut,
            rate: None,
            ..smp_adp(Range::new(3000, 3001), MIB)
        },
        "dsd-uds" => Profile {
            about: "the 2023 shape with 1k to 10k contexts, as much as is taken".into(),
            contexts: Range::new(1000, 10_000),
            ..smp_2023()
        },
        "small-packets" => Profile {
            about: "one message of 60 to 250 B and 8 short tags per packet, as fast as possible".into(),
            contexts: Range::just(1000),
            name_len: Range::new(12, 30),
            tags_per_msg: TagCount::Range(Range::just(8)),
            tag_len: Some(Range::just(12)),
            multivalue_p: 0.0,
            messages_per_packet: Some(Range::just(1)),
            value: numbered(),
            throttle: Throttle::AllOut,
            ..Profile::default()
        },
        "counted-packets" => Profile {
            about: "one unsampled distribution per packet, so that whoever counts samples counts packets"
                .into(),
            types: Types {
                distribution: 1.0,
                ..Types::default()
            },
            sample_p: 0.0,
            ..named("small-packets")?
        },
        "client-agg" => Profile {
            about: "40 clients with aggregation: large packets, all at once every 2 s".into(),
            transport: Transport::Unixgram,
            connections: 40,
            connection_contexts: Sharing::Split,
            contexts: Range::just(8000),
            multivalue_p: 0.3,
            rate: messages_per_second(50_000.0),
            throttle: Throttle::Burst {
                period: span(2000),
                duty: 0.0,
            },
            ..Profile::default()
        },
        "spiky" => Profile {
            about: "10k messages/s, twenty times that for 200 ms every 10 s".into(),
            rate: messages_per_second(13_800.0),
            throttle: Throttle::Step(vec![
                Step {
                    rate: messages_per_second(10_000.0)?,
                    hold: span(9800),
                },
                Step {
                    rate: messages_per_second(200_000.0)?,
                    hold: span(200),
                },
            ]),
            ..Profile::default()
        },
        "flush-storm" => Profile {
            about: "40 senders aligned: a second's worth of 100k messages/s within a blink, once a second"
                .into(),
            transport: Transport::Unixgram,
            connections: 40,
            rate: messages_per_second(100_000.0),
            throttle: Throttle::LadingBurst,
            ..Profile::default()
        },
        "churn-slow" => Profile {
            about: "1 % of the contexts replaced per second".into(),
            contexts: Range::just(20_000),
            rate: messages_per_second(100_000.0),
            churn: Churn::Trickle {
                per_second: 0.01,
                group: 1,
            },
            ..Profile::default()
        },
        "churn-deploy" => Profile {
            about: "half of the contexts replaced within 5 s, every 60 s".into(),
            contexts: Range::just(20_000),
            rate: messages_per_second(100_000.0),
            churn: Churn::Deploy {
                share: 0.5,
                within: span(5000),
                every: span(60_000),
                group: 200,
            },
            ..Profile::default()
        },
        "unique-flood" => Profile {
            about: "every message a new context, 200k/s".into(),
            transport: Transport::Unixgram,
            first_pass: false,
            flood_p: 1.0,
            rate: messages_per_second(200_000.0),
            ..Profile::default()
        },
        "flood-plus-hot" => Profile {
            about: "a hot set, and one message in ten a context never seen again".into(),
            transport: Transport::Unixgram,
            flood_p: 0.1,
            rate: messages_per_second(200_000.0),
            ..Profile::default()
        },
        "loop" => Profile {
            about: "80k contexts strictly in turn: the worst case of most caches".into(),
            transport: Transport::Unixgram,
            contexts: Range::just(80_000),
            popularity: Popularity::Cyclic,
            throttle: Throttle::AllOut,
            ..Profile::default()
        },
        "tag-permute" => Profile {
            about: "1 to 64 tags in a new random order in every message".into(),
            transport: Transport::Unixgram,
            tags_per_msg: TagCount::Range(Range::new(1, 64)),
            tag_order: TagOrder::Shuffled(1.0),
            throttle: Throttle::AllOut,
            ..Profile::default()
        },
        "tag-dup" => Profile {
            about: "each tag repeated with chance 0.3".into(),
            transport: Transport::Unixgram,
            tag_order: TagOrder::Dup(0.3),
            throttle: Throttle::AllOut,
            ..Profile::default()
        },
        "shared-tagset" => Profile {
            about: "2000 names times 50 tag lists".into(),
            transport: Transport::Unixgram,
            contexts: Range::just(100_000),
            distinct_names: Some(2000),
            distinct_tag_lists: Some(50),
            tags_per_msg: TagCount::Range(Range::new(4, 12)),
            popularity: Popularity::Uniform,
            throttle: Throttle::AllOut,
            ..Profile::default()
        },
        "high-card" => Profile {
            about: "a million contexts".into(),
            transport: Transport::Unixgram,
            contexts: Range::just(1_000_000),
            popularity: Popularity::Uniform,
            rate: messages_per_second(200_000.0),
            ..Profile::default()
        },
        "low-then-idle" => Profile {
            about: "every one of 50k contexts once and more in 2 s, then next to nothing for 7 min".into(),
            transport: Transport::Unixgram,
            contexts: Range::just(50_000),
            popularity: Popularity::Uniform,
            rate: messages_per_second(250.0),
            throttle: Throttle::Step(vec![
                Step {
                    rate: messages_per_second(50_000.0)?,
                    hold: span(2000),
                },
                Step {
                    rate: messages_per_second(0.001)?,
                    hold: span(420_000),
                },
            ]),
            ..Profile::default()
        },
        "collide" => Profile {
            about: "different contexts that are equal to whoever compares too little".into(),
            transport: Transport::Unixgram,
            contexts: Range::just(600),
            popularity: Popularity::Uniform,
            collide: true,
            value: Value {
                kind: ValueKind::SmallInts,
                float_p: 0.0,
                decimals: 3,
                pool: 8192,
            },
            types: Types {
                count: 1.0,
                ..Types::default()
            },
            multivalue_p: 0.0,
            rate: messages_per_second(50_000.0),
            ..Profile::default()
        },
        "type-conflict" => Profile {
            about: "one context in five also under another type".into(),
            type_conflict: 0.2,
            rate: messages_per_second(50_000.0),
            ..Profile::default()
        },
        "malformed-1pct" => Profile {
            about: "one message in a hundred is broken".into(),
            malformed_p: 0.01,
            rate: messages_per_second(50_000.0),
            ..Profile::default()
        },
        "big-messages" => Profile {
            about: "messages of up to 60 kB, one per packet".into(),
            transport: Transport::Unixgram,
            contexts: Range::just(50),
            tags_per_msg: TagCount::Range(Range::new(100, 500)),
            tag_keys: TagKeys::Random,
            tag_value_len: Range::new(20, 100),
            shared_tagsets: 0.0,
            unique_tag_ratio: 0.2,
            packet_size: Some(PacketSize::Fill(Bytes(65_535))),
            messages_per_packet: Some(Range::just(1)),
            multivalue_p: 0.0,
            value: numbered(),
            rate: bytes_per_second(20 * MIB),
            ..Profile::default()
        },
        "origin-40" => Profile {
            about: "40 senders and 40 container ids".into(),
            transport: Transport::Unixgram,
            connections: 40,
            container_id: Some(Extension { pool: 40, p: 1.0 }),
            rate: messages_per_second(100_000.0),
            ..Profile::default()
        },
        "dist-heavy" => Profile {
            about: "distributions only, lognormal values".into(),
            transport: Transport::Unixgram,
            types: Types {
                distribution: 1.0,
                ..Types::default()
            },
            throttle: Throttle::AllOut,
            ..Profile::default()
        },
        "events-and-checks" => Profile {
            about: "one message in ten an event, one in ten a service check".into(),
            kinds: Kinds {
                metric: 80.0,
                event: 10.0,
                service_check: 10.0,
            },
            rate: messages_per_second(10_000.0),
            ..Profile::default()
        },
        "oracle-small" => Profile {
            about: "200 contexts of every type with small integers: every sum is exact in f64".into(),
            transport: Transport::Unixgram,
            contexts: Range::just(200),
            types: Types {
                count: 1.0,
                gauge: 1.0,
                timer: 1.0,
                distribution: 1.0,
                set: 1.0,
                histogram: 1.0,
            },
            value: Value {
                kind: ValueKind::SmallInts,
                float_p: 0.0,
                decimals: 3,
                pool: 4096,
            },
            rate: messages_per_second(20_000.0),
            ..Profile::default()
        },
        "statsd-plain" => Profile {
            about: "StatsD without tags, one value per message".into(),
            payload: Payload::Statsd,
            types: Types {
                count: 60.0,
                gauge: 20.0,
                timer: 18.0,
                set: 2.0,
                ..Types::default()
            },
            multivalue_p: 0.0,
            rate: messages_per_second(100_000.0),
            ..Profile::default()
        },
        "syslog3164" => records(
            Payload::Syslog3164,
            Transport::Tcp,
            10 * MIB,
            "RFC 3164 lines over TCP, 10 MiB/s",
        ),
        "syslog5424" => records(
            Payload::Syslog5424,
            Transport::Tcp,
            50 * MIB,
            "RFC 5424 lines over TCP, 50 MiB/s",
        ),
        "json-logs" => Profile {
            throttle: Throttle::AllOut,
            rate: None,
            ..records(
                Payload::Json,
                Transport::Tcp,
                MIB,
                "newline-delimited JSON logs over TCP, as much as is taken",
            )
        },
        "apache-logs" => records(
            Payload::ApacheCommon,
            Transport::Tcp,
            10 * MIB,
            "Apache common log lines over TCP",
        ),
        "dd-logs" => records(
            Payload::DdLogs,
            Transport::Http,
            10 * MIB,
            "JSON arrays for a Datadog logs intake over HTTP",
        ),
        "dd-traces-json" => records(
            Payload::DdTracesJson,
            Transport::Http,
            10 * MIB,
            "v0.3 traces as JSON over HTTP",
        ),
        "dd-traces-msgpack" => records(
            Payload::DdTracesMsgpack,
            Transport::Http,
            10 * MIB,
            "v0.4 traces as MessagePack over HTTP",
        ),
        "otlp-logs" => Profile {
            connections: 5,
            ..records(
                Payload::OtlpLogs,
                Transport::Http,
                10_000_000,
                "OTLP logs as protobuf over HTTP, 10 MB/s, 5 connections",
            )
        },
        "otlp-metrics" => records(
            Payload::OtlpMetrics,
            Transport::Http,
            10_000_000,
            "OTLP metrics as protobuf over HTTP",
        ),
        "otlp-traces" => records(
            Payload::OtlpTraces,
            Transport::Http,
            10_000_000,
            "OTLP traces as protobuf over HTTP",
        ),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_profile_is_valid_and_survives_yaml() {
        for known in all() {
            let profile = named(&known.name).unwrap();
            profile
                .validate()
                .unwrap_or_else(|error| panic!("{}: {error}", known.name));
            assert!(!profile.about.is_empty(), "{}", known.name);
            let yaml = profile.to_yaml();
            let back =
                Profile::from_yaml(&yaml).unwrap_or_else(|error| panic!("{}: {error}\n{yaml}", known.name));
            assert_eq!(back, profile, "{}\n{yaml}", known.name);
        }
    }

    #[test]
    fn variants_change_what_they_say_and_nonsense_is_unknown() {
        let unique = named("interner-8MiB-10k@tags-unique@lading-burst").unwrap();
        assert_eq!(unique.unique_tag_ratio, 1.0);
        assert_eq!(unique.throttle, Throttle::LadingBurst);
        assert_eq!(unique.contexts, Range::just(10_000));
        for wrong in [
            "interner-8MiB",
            "interner-8MiB-10000000000000000000k",
            "interner-18446744073709551615MiB-1k",
            "interner-0MiB-1k",
            "real-web@tags-unique",
            "interner-8MiB-10k@x",
            "",
        ] {
            assert!(named(wrong).is_none(), "{wrong}");
        }
        assert_eq!(suggest("real-wep").as_deref(), Some("real-web"));
    }

    #[test]
    fn bad_profiles_are_refused_with_the_key_and_what_is_allowed() {
        for (yaml, part) in [
            ("contextz: 5", "contextz"),
            ("contexts: 0", "contexts"),
            ("contexts: \"9..3\"", "9 is above 3"),
            ("sample_p: 1.5", "allowed is 0 to 1"),
            ("rate: 8 Kb/s", "ambiguous"),
            ("packet_size: 3", "16 bytes"),
            ("packet_size: 8 Kb", "ambiguous"),
            (
                "packet_size: {min: 1 KiB, max: 2 KiB, mid: 3}",
                "neither min, max, exactly nor a size",
            ),
            ("packet_size: {exactly: 20}", "64 bytes"),
            ("packet_size: {exactly: 1432, min: 1}", "min and max, or exactly"),
            ("packet_size: {512: -1}", "weights"),
            ("tags_per_msg: \"9..3\"", "9 is above 3"),
            ("tags_per_msg: {many: 1}", "not a number of tags"),
            ("{value: {kind: sequence}, multivalue_p: 0.5}", "sequence"),
            ("seed: -1", "not a seed"),
            ("seed: [1, 2, 3]", "32 bytes"),
            ("churn: {trickle: {per_second: 0.1, grupp: 3}}", "grupp"),
            ("framing: varint", "newline"),
            ("churn: {trickle: {per_second: 0.1}}", "rate"),
            ("payload: statsd", "distribution"),
            ("value: {kind: {uniform: {min: 5, max: 1}}}", "impossible"),
            ("throttle: sometimes", "sometimes"),
            ("kinds: {metric: -1}", "kinds"),
            ("tag_values: {list: [\"a,b\"]}", "tag_values"),
        ] {
            let error = Profile::from_yaml(yaml).unwrap_err();
            assert!(error.0.contains(part), "{yaml}: {error}");
        }
        let error = Profile::from_yaml("seed: 1\ncontextz: 5").unwrap_err();
        assert!(error.0.contains("line 2"), "{error}");
    }
}
