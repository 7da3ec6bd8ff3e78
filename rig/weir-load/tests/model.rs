//! The payload model: identical bytes everywhere, the promised shares, and an oracle verified by an independent parser.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use weir_load::compose::{Composer, DrawnMessage, Observer};
use weir_load::manifest::{ContextTruth, Decimal, Manifest};
use weir_load::model::{KINDS, Model};
use weir_load::profile::{Popularity, Profile, Transport};
use weir_load::profiles;
use weir_load::run::SentStream;
use weir_load::source::Load;
use weir_load::truth::{self, Detail};

fn load(name: &str) -> Load {
    let profile = profiles::named(name).unwrap_or_else(|| panic!("{name}"));
    Load::prepare(name, &profile, profile.transport, profile.seed).unwrap()
}

fn from_yaml(yaml: &str) -> Load {
    let profile = Profile::from_yaml(yaml).unwrap();
    Load::prepare("test", &profile, profile.transport, 1).unwrap()
}

fn packets(load: &Load, connection: u32, count: usize) -> Vec<Vec<u8>> {
    let (mut source, _) = load.source(connection);
    let mut buffer = vec![0u8; source.room()];
    (0..count)
        .map(|_| {
            let packet = source.packet(&mut buffer);
            buffer[..packet.len].to_vec()
        })
        .collect()
}

fn manifest(load: &Load, composed: u64, skipped: Vec<(u64, u64)>) -> Manifest {
    let sent: Vec<SentStream> = (0..load.profile.connections)
        .map(|connection| SentStream {
            connection,
            composed,
            skipped: skipped.clone(),
            cycle: None,
        })
        .collect();
    truth::replay(
        load,
        &sent,
        &Detail {
            contexts: true,
            ..Detail::default()
        },
    )
}

/// A DogStatsD parser that shares nothing with the generator's tables: text in, truth out.
#[derive(Default)]
struct Reparse {
    rows: BTreeMap<(String, String, Vec<String>, String), ContextTruth>,
    members: HashMap<(String, String, Vec<String>, String), BTreeSet<String>>,
    events: u64,
    checks: u64,
    broken: u64,
    names: HashSet<String>,
    tags: HashSet<String>,
    lists: HashSet<Vec<String>>,
}

impl Reparse {
    fn line(&mut self, line: &str) {
        if line.starts_with("_e{50,50}") || line == "_sc|broken.bad_status|9" {
            self.broken += 1;
        } else if line.starts_with("_e{") {
            self.events += 1;
        } else if line.starts_with("_sc|") {
            self.checks += 1;
        } else if line.starts_with("broken.") || line.starts_with(':') {
            self.broken += 1;
        } else {
            self.metric(line);
        }
    }

    fn metric(&mut self, line: &str) {
        let mut parts = line.split('|');
        let (name, values) = parts.next().unwrap().split_once(':').expect(line);
        let kind = parts.next().expect(line);
        assert!(KINDS.contains(&kind), "{line}");
        let mut weight = 1u64;
        let mut tags: Vec<String> = Vec::new();
        let mut container = String::new();
        for part in parts {
            if let Some(rate) = part.strip_prefix('@') {
                weight = (1.0 / rate.parse::<f64>().unwrap()).round() as u64;
            } else if let Some(list) = part.strip_prefix('#') {
                tags = list.split(',').map(String::from).collect();
            } else if let Some(id) = part.strip_prefix("c:ci-") {
                container = id.to_string();
            } else {
                assert!(
                    part.starts_with("e:") || part.starts_with("card:") || part.starts_with('T'),
                    "{line}"
                );
            }
        }
        tags.sort();
        tags.dedup();
        self.names.insert(name.to_string());
        self.tags.extend(tags.iter().cloned());
        self.lists.insert(tags.clone());
        let key = (
            kind.to_string(),
            name.to_string(),
            tags.clone(),
            container.clone(),
        );
        let row = self.rows.entry(key.clone()).or_insert_with(|| ContextTruth {
            name: name.to_string(),
            kind: kind.to_string(),
            tags,
            container_id: container,
            ..ContextTruth::default()
        });
        row.messages += 1;
        if kind == "s" {
            row.samples += 1;
            row.weight += 1;
            self.members.entry(key).or_default().insert(values.to_string());
            return;
        }
        for value in values.split(':') {
            let value: Decimal = value.parse().unwrap_or_else(|_| panic!("{line}"));
            row.samples += 1;
            row.weight += weight;
            row.sum.micros += value.micros;
            row.weighted_sum.micros += value.micros * i128::from(weight);
            row.min = Some(row.min.map_or(value, |m| m.min(value)));
            row.max = Some(row.max.map_or(value, |m| m.max(value)));
            if kind == "g" {
                row.last = vec![value];
            }
        }
    }

    fn check(mut self, name: &str, manifest: &Manifest) {
        for (key, members) in self.members {
            self.rows.get_mut(&key).unwrap().members = members.into_iter().collect();
        }
        let rows: Vec<ContextTruth> = self.rows.into_values().collect();
        let truth = manifest.contexts.as_ref().unwrap();
        assert_eq!(rows.len(), truth.len(), "{name}");
        for (mine, theirs) in rows.iter().zip(truth) {
            assert_eq!(mine, theirs, "{name}");
        }
        let d = &manifest.distinct;
        assert_eq!(d.contexts, rows.len() as u64, "{name}");
        assert_eq!(d.names, self.names.len() as u64, "{name}");
        assert_eq!(d.tags, self.tags.len() as u64, "{name}");
        assert_eq!(d.tag_lists, self.lists.len() as u64, "{name}");
        assert_eq!(manifest.totals.events, self.events, "{name}");
        assert_eq!(manifest.totals.service_checks, self.checks, "{name}");
        let broken: u64 = manifest.totals.malformed.values().sum();
        assert_eq!(broken, self.broken, "{name}");
        assert_eq!(
            manifest.totals.messages,
            manifest.totals.metrics + self.events + self.checks + broken,
            "{name}"
        );
    }
}

#[test]
fn the_oracle_equals_an_independent_reading_of_the_bytes() {
    for name in [
        "real-web",
        "oracle-small",
        "budget-1k",
        "budget-permute",
        "budget-dist",
        "budget-floats",
        "budget-integers",
        "interner-8MiB-100",
        "smp-adp-low",
        "tag-dup",
        "tag-permute",
        "unique-flood",
        "flood-plus-hot",
        "type-conflict",
        "malformed-1pct",
        "events-and-checks",
        "collide",
        "dist-heavy",
        "shared-tagset",
        "many-tags-64",
        "small-packets",
        "big-messages",
        "statsd-plain",
    ] {
        let load = load(name);
        let mut reparse = Reparse::default();
        let all = packets(&load, 0, 400);
        let mut messages = 0;
        for packet in &all {
            for line in std::str::from_utf8(packet).unwrap().split('\n') {
                messages += 1;
                reparse.line(line);
            }
        }
        let manifest = manifest(&load, 400, Vec::new());
        assert_eq!(manifest.totals.packets, 400);
        assert_eq!(manifest.totals.messages, messages, "{name}");
        let bytes: usize = all.iter().map(Vec::len).sum();
        assert_eq!(manifest.totals.bytes, bytes as u64, "{name}");
        reparse.check(name, &manifest);
    }
}

#[test]
fn the_oracle_follows_churn_and_origin_and_omits_refused_packets() {
    for yaml in [
        // Packets are distinguished by a number in a value, sets and carried messages included.
        "{contexts: 50, value: {kind: {uniform: {min: -9223372036854775808, max: 9223372036854775807}}}, packet_size: 512, \
         multivalue_p: 0.3, kinds: {metric: 80, event: 10, service_check: 10}}",
        "{contexts: 200, rate: 10k msg/s, churn: {trickle: {per_second: 0.5}}}",
        "{contexts: 200, rate: 1k msg/s, churn: {deploy: {share: 0.5, within: 1s, every: 2s, group: 10}}}",
        "{contexts: 300, container_id: {pool: 7}, external_data: {pool: 3, p: 0.5}, cardinality_p: 0.2, timestamp: {p: 0.3, base: 1700000000}}",
        "{contexts: 300, packet_size: {exactly: 1432}}",
        "{contexts: 300, packet_size: {exactly: 1432}, payload: statsd, types: {count: 1, gauge: 0, distribution: 0, set: 1, histogram: 0}, multivalue_p: 0}",
        "{contexts: 300, packet_size: {100: 3, 4000: 1}, value: {kind: sequence}, multivalue_p: 0, flood_p: 0.1}",
    ] {
        let load = from_yaml(yaml);
        let skipped = vec![(3, 5), (100, 101), (399, 400)];
        let mut reparse = Reparse::default();
        for (index, packet) in packets(&load, 0, 400).iter().enumerate() {
            if skipped.iter().any(|(a, b)| (*a..*b).contains(&(index as u64))) {
                continue;
            }
            for line in std::str::from_utf8(packet).unwrap().split('\n') {
                reparse.line(line);
            }
        }
        let manifest = manifest(&load, 400, skipped.clone());
        assert_eq!(manifest.totals.packets, 396);
        reparse.check(yaml, &manifest);
    }
}

/// The number of packets that distinguishes profiles: enough to send every context once, and 200 more, or this many at most.
fn telling(load: &Load, most: u64) -> u64 {
    let contexts = match &load.model {
        Some(model) if load.profile.first_pass => model.contexts.len() as u64,
        _ => 0,
    };
    let share = contexts / u64::from(load.profile.connections);
    let (mut source, _) = load.source(0);
    let mut buffer = vec![0u8; source.room()];
    let (mut packets, mut messages) = (0, 0);
    while messages < share && packets + 200 < most {
        messages += u64::from(source.packet(&mut buffer).messages);
        packets += 1;
    }
    packets + 200
}

/// Digests of the first packets of each connection. A change here changes the meaning of every recorded result: mention it in the
/// changelog.
#[test]
fn golden_digests() {
    digests_are_those_of("golden.txt", 1000);
}

/// As [`golden_digests`], with every context of every profile.
#[test]
#[ignore = "nightly: composes gigabytes; in the gate: golden_digests"]
fn golden_digests_of_all_contexts() {
    digests_are_those_of("golden-all.txt", u64::MAX);
}

fn digests_are_those_of(file: &str, packets_max: u64) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(file);
    let golden = std::fs::read_to_string(path).unwrap();
    let golden: BTreeMap<&str, &str> = golden.lines().filter_map(|line| line.split_once(' ')).collect();
    let mut now = String::new();
    let mut wrong = Vec::new();
    for known in profiles::all() {
        // The rate does not change the bytes, so one rate of each grid is enough.
        let grid = known.name.starts_with("interner-") && !known.name.contains("-8MiB-");
        if grid {
            let (_, contexts) = known.name.rsplit_once('-').unwrap();
            let (one, other) = (&known.name, format!("interner-8MiB-{contexts}"));
            let shape = |name: &str| Profile {
                about: String::new(),
                rate: None,
                ..profiles::named(name).unwrap()
            };
            assert_eq!(shape(one), shape(&other), "{one}");
            continue;
        }
        let mut names = vec![known.name.clone()];
        if known.name == "interner-8MiB-100" {
            names.push("interner-8MiB-100@tags-unique".into());
        }
        for name in names {
            let load = load(&name);
            let digest = truth::digest(&load, telling(&load, packets_max));
            if golden.get(name.as_str()) != Some(&digest.as_str()) {
                wrong.push(name.clone());
            }
            now.push_str(&format!("{name} {digest}\n"));
        }
    }
    assert!(
        wrong.is_empty(),
        "digests differ for {wrong:?}; all of them now:\n{now}"
    );
}

#[test]
fn achieved_contexts_equal_the_request_exactly() {
    for (name, contexts) in [
        ("real-web", 3000),
        ("interner-8MiB-10k", 10_000),
        ("budget-10k", 10_000),
        ("shared-tagset", 100_000),
        ("collide", 600),
        ("type-conflict", 3000),
    ] {
        let load = load(name);
        let model = load.model.as_ref().unwrap();
        let identities: HashSet<(&str, Vec<&str>, u8)> = model
            .contexts
            .iter()
            .map(|context| {
                let mut tags: Vec<&str> = model
                    .list(context.list)
                    .iter()
                    .map(|tag| model.text(model.tags[*tag as usize]))
                    .collect();
                tags.sort_unstable();
                (model.name(context), tags, context.kind)
            })
            .collect();
        assert_eq!(identities.len(), contexts, "{name}");
    }
    let model = load("shared-tagset").model.unwrap();
    assert_eq!((model.names, model.lists.len()), (2000, 50));
}

#[derive(Default)]
struct Counting {
    contexts: HashMap<u32, u64>,
    messages: u64,
}

impl Observer for Counting {
    fn saw(&mut self, drawn: DrawnMessage) {
        self.messages += 1;
        if let DrawnMessage::Metric { context, .. } = drawn {
            *self.contexts.entry(context).or_default() += 1;
        }
    }
}

fn draw(model: &Arc<Model>, packets: usize) -> Counting {
    let mut composer = Composer::new(model, 0, 1);
    let mut buffer = vec![0u8; composer.packet_room()];
    let mut counting = Counting::default();
    for _ in 0..packets {
        composer.packet_with(&mut buffer, &mut counting);
    }
    counting
}

/// Upper 99.9 % point of chi-square, by Wilson and Hilferty.
fn chi_square_limit(degrees: f64) -> f64 {
    let a = 2.0 / (9.0 * degrees);
    degrees * (1.0 - a + 3.09 * a.sqrt()).powi(3)
}

#[test]
fn zipf_weights_pass_chi_square() {
    let load = from_yaml("{contexts: 500, popularity: {zipf: 1.1}, first_pass: false}");
    assert_eq!(load.profile.popularity, Popularity::Zipf(1.1));
    let counting = draw(load.model.as_ref().unwrap(), 40_000);
    let total: f64 = (1..=500).map(|k| 1.0 / f64::from(k).powf(1.1)).sum();
    let chi: f64 = (0..500u32)
        .map(|context| {
            let share = 1.0 / f64::from(context + 1).powf(1.1) / total;
            let expected = share * counting.messages as f64;
            let seen = *counting.contexts.get(&context).unwrap_or(&0) as f64;
            (seen - expected).powi(2) / expected
        })
        .sum();
    assert!(chi < chi_square_limit(499.0), "{chi}");
}

#[test]
fn type_shares_hold_in_messages_whatever_the_popularity() {
    for popularity in ["uniform", "{zipf: 1.1}"] {
        let load = from_yaml(&format!(
            "{{contexts: 3000, popularity: {popularity}, first_pass: false}}"
        ));
        let manifest = manifest(&load, 20_000, Vec::new());
        let total = manifest.totals.metrics as f64;
        // With Zipf, the weight of a context limits how well a share can be met: half a per mille here.
        let chi: f64 = [("c", 208.0), ("g", 66.0), ("d", 72.0), ("s", 9.0), ("h", 1.0)]
            .iter()
            .map(|(kind, share)| {
                let expected = share / 356.0 * total;
                let seen = manifest.totals.types[*kind].messages as f64;
                (seen - expected).powi(2) / expected
            })
            .sum();
        assert!(chi < chi_square_limit(4.0), "{popularity}: {chi}");
    }
}

#[test]
fn churn_replaces_its_share_within_one_percent() {
    for (yaml, expected) in [
        (
            "{contexts: 2000, rate: 10k msg/s, churn: {trickle: {per_second: 0.05}}}",
            0.05 * 2000.0 * 20.0,
        ),
        (
            "{contexts: 2000, rate: 10k msg/s, churn: {deploy: {share: 0.5, within: 1s, every: 5s, group: 20}}}",
            3.0 * 1000.0,
        ),
    ] {
        let load = from_yaml(yaml);
        let mut composer = Composer::new(load.model.as_ref().unwrap(), 0, 1);
        let mut buffer = vec![0u8; composer.packet_room()];
        // 19.9 seconds of the schedule: three deployments, and one packet of slack.
        let mut messages = 0;
        while messages < 199_990 {
            messages += composer.packet(&mut buffer).messages;
        }
        let replaced = composer.contexts_replaced() as f64;
        assert!((replaced / expected - 1.0).abs() < 0.01, "{yaml}: {replaced}");
    }
}

#[test]
fn a_first_pass_reaches_every_context_once_before_any_twice() {
    for connections in [1u32, 3] {
        let load = from_yaml(&format!(
            "{{contexts: 1000, connections: {connections}, multivalue_p: 0}}"
        ));
        let model = load.model.as_ref().unwrap();
        let mut counting = Counting::default();
        for connection in 0..connections {
            let mut composer = Composer::new(model, connection, connections);
            let mut buffer = vec![0u8; composer.packet_room()];
            let share = u64::from((1000 - connection).div_ceil(connections));
            let mut own = Counting::default();
            while own.messages < share {
                composer.packet_with(&mut buffer, &mut own);
            }
            for (context, _) in own.contexts {
                *counting.contexts.entry(context).or_default() += 1;
            }
        }
        assert_eq!(counting.contexts.len(), 1000);
    }
}

/// Messages that fit no packet are discarded later, but not in the first pass, which has no events.
#[test]
fn a_first_pass_at_once_has_every_context() {
    let profile = profiles::named("interner-8MiB-1k@contexts-first").unwrap();
    let load = Load::prepare("x", &profile, Transport::Unixgram, 5).unwrap();
    let mut composer = Composer::new(load.model.as_ref().unwrap(), 0, 1);
    let mut buffer = vec![0u8; composer.packet_room()];
    let mut seen = Counting::default();
    while composer.is_first_pass() {
        composer.packet_with(&mut buffer, &mut seen);
    }
    assert_eq!(seen.contexts.len(), 1000);
    // The last packet may have more.
    assert!(seen.messages < 1100, "{}", seen.messages);
}

/// The first packets of every profile, compared by their bytes. Where packets hold few messages, one of them is numbered.
#[test]
fn no_packet_repeats() {
    packets_differ(500, 1_000_000);
}

/// As [`no_packet_repeats`], for longer.
#[test]
#[ignore = "nightly: composes gigabytes; in the gate: no_packet_repeats"]
fn no_packet_repeats_for_long() {
    packets_differ(4000, 5_000_000);
}

fn packets_differ(packets_max: u64, bytes_max: usize) {
    for known in profiles::all() {
        let name = known.name.as_str();
        // The rate does not change the bytes.
        if name.starts_with("interner-") && !name.contains("-8MiB-") {
            continue;
        }
        let load = load(name);
        let (mut source, _) = load.source(0);
        let mut buffer = vec![0u8; source.room()];
        let (mut packets, mut bytes) = (0u64, 0usize);
        while packets < packets_max && bytes < bytes_max {
            bytes += source.packet(&mut buffer).len;
            packets += 1;
        }
        let detail = Detail {
            repeats: true,
            ..Detail::default()
        };
        let sent = [SentStream {
            composed: packets,
            ..SentStream::default()
        }];
        let counted = truth::replay(&load, &sent, &detail).totals.repeated_packets;
        assert_eq!(counted, Some(0), "{name}: of {packets}");
    }
}

/// Repeated packets are counted.
#[test]
fn repeats_are_counted_where_they_are_asked_for() {
    let load = from_yaml(
        "{contexts: 3, messages_per_packet: 1, value: {kind: {constant: 7}}, multivalue_p: 0, sample_p: 0, \
         types: {count: 1, gauge: 0, distribution: 0, set: 0, histogram: 0}}",
    );
    let sent = [SentStream {
        composed: 1000,
        ..SentStream::default()
    }];
    let detail = Detail {
        repeats: true,
        ..Detail::default()
    };
    let counted = truth::replay(&load, &sent, &detail).totals.repeated_packets;
    assert_eq!(counted, Some(997));
}

#[test]
fn packets_of_an_exact_size_have_it_and_sizes_with_weights_keep_them() {
    for yaml in [
        "{contexts: 500, packet_size: {exactly: 1432}}",
        "{contexts: 500, packet_size: {exactly: 1432}, fit: discard, malformed_p: 0.1, flood_p: 0.2}",
    ] {
        let load = from_yaml(yaml);
        for packet in packets(&load, 0, 2000) {
            assert_eq!(packet.len(), 1432, "{yaml}");
            assert_ne!(packet.last(), Some(&b'\n'));
        }
    }
    let profile = Profile::from_yaml("{contexts: 500, packet_size: {exactly: 64}}").unwrap();
    let error = Load::prepare("x", &profile, Transport::Udp, 1).err().unwrap();
    assert!(error.0.contains("too small for messages"), "{error}");
    // Messages of 20 bytes at most, so that a packet comes close to its size.
    let load = from_yaml(
        "{contexts: 50, names: random, name_len: 6, tags_per_msg: 0, multivalue_p: 0, sample_p: 0, types: {count: 1, \
         gauge: 0, distribution: 0, set: 0, histogram: 0}, packet_size: {1000: 3, 200: 1}}",
    );
    let all = packets(&load, 0, 4000);
    let large = all.iter().filter(|packet| packet.len() > 900).count();
    assert!(
        all.iter()
            .all(|p| p.len() > 900 || (150..=200).contains(&p.len()))
    );
    assert!((2850..3150).contains(&large), "{large}");
}

#[test]
fn a_prebuilt_load_is_the_composed_one_in_a_circle() {
    let mut load = load("budget-1k");
    let composed = packets(&load, 0, 50);
    load.profile.mode = weir_load::profile::Mode::Prebuilt;
    load.profile.prebuilt = weir_load::units::Bytes(200_000);
    let (mut source, cycle) = load.source(0);
    let cycle = cycle.unwrap() as usize;
    assert!((20..=25).contains(&cycle), "{cycle}");
    let mut buffer = vec![0u8; source.room()];
    for index in 0..60 {
        let packet = source.packet(&mut buffer);
        assert_eq!(buffer[..packet.len], composed[index % cycle]);
    }
}

/// A setting changes only its own draws: names stay when the tags change.
#[test]
fn streams_of_chance_are_independent() {
    let one = from_yaml("{contexts: 100, multivalue_p: 0}");
    let two = from_yaml("{contexts: 100, multivalue_p: 0, unique_tag_ratio: 0.9}");
    let names = |load: &Load| -> Vec<String> {
        let model = load.model.as_ref().unwrap();
        model.contexts.iter().map(|c| model.name(c).to_string()).collect()
    };
    assert_eq!(names(&one), names(&two));
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Kolmogorov-Smirnov distance between two samples.
fn ks_distance(one: &mut [f64], two: &mut [f64]) -> f64 {
    one.sort_by(f64::total_cmp);
    two.sort_by(f64::total_cmp);
    let (mut i, mut j, mut worst) = (0, 0, 0.0f64);
    while i < one.len() && j < two.len() {
        let x = one[i].min(two[j]);
        while i < one.len() && one[i] <= x {
            i += 1;
        }
        while j < two.len() && two[j] <= x {
            j += 1;
        }
        worst = worst.max((i as f64 / one.len() as f64 - j as f64 / two.len() as f64).abs());
    }
    worst
}

/// A simulation of the published knobs, written straight from their description and sharing no code with the model: the
/// lengths of messages as drawn, the tags per message, and the shares of types must agree.
#[test]
fn the_2023_shape_agrees_with_a_simulation_of_its_knobs() {
    let mut state = 42u64;
    let mut random = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let mut between = move |a: u64, b: u64| a + (random() * (b - a + 1) as f64) as u64;
    let mut lengths = Vec::new();
    let mut tag_counts = Vec::new();
    for _ in 0..4000 {
        let tags = between(2, 50);
        let name = between(1, 200);
        let text: u64 = (0..tags).map(|_| between(1, 100) + 1 + between(1, 100) + 1).sum();
        lengths.push((name + text) as f64);
        tag_counts.push(tags as f64);
    }
    let mut profile = profiles::named("interner-8MiB-10k@tags-unique").unwrap();
    profile.contexts = weir_load::units::Range::just(4000);
    let model = Model::build(&profile, Transport::Unixgram, 1).unwrap();
    let mut mine: Vec<f64> = model
        .contexts
        .iter()
        // The name without its colon, the list without `|#` but with as many commas as tags.
        .map(|c| f64::from(c.name.len - 1 + c.tail.len - 2 + 1))
        .collect();
    let mut my_tags: Vec<f64> = model
        .contexts
        .iter()
        .map(|c| model.list(c.list).len() as f64)
        .collect();
    let limit = 1.95 * (2.0f64 / 4000.0).sqrt();
    assert!(ks_distance(&mut lengths, &mut mine) < limit);
    assert!(ks_distance(&mut tag_counts, &mut my_tags) < limit);
    // About 26 tags per context, so 26 N distinct strings when every tag is new, and a ninth of that when one in nine is.
    let unique = model.tags.len() as f64 / 4000.0;
    assert!((25.0..27.0).contains(&unique), "{unique}");
    profile.unique_tag_ratio = 0.11;
    let reused = Model::build(&profile, Transport::Unixgram, 1).unwrap();
    let ratio = model.tags.len() as f64 / reused.tags.len() as f64;
    assert!((8.0..10.5).contains(&ratio), "{ratio}");
    // Complete messages have a mean of 2.83 kB in the published simulation.
    let load = Load::prepare("interner", &profile, Transport::Unixgram, 1).unwrap();
    let mut loose = load.clone();
    loose.profile.fit = weir_load::profile::Fit::Carry;
    let manifest = manifest(&load, 4000, Vec::new());
    let shares = &manifest.totals;
    let share = |kind: &str| shares.types[kind].messages as f64 / shares.metrics as f64;
    assert!((share("c") - 100.0 / 161.0).abs() < 0.03, "{}", share("c"));
    assert!((share("d") - 50.0 / 161.0).abs() < 0.03, "{}", share("d"));
    let events = shares.events as f64 / shares.messages as f64;
    assert!((0.03..0.10).contains(&events), "{events}");
    // In blocks of those sizes messages are shorter: about 2.05 kB there.
    let sizes: Vec<f64> = packets(&load, 0, 2000)
        .iter()
        .flat_map(|p| {
            p.split(|b| *b == b'\n')
                .map(|l| l.len() as f64)
                .collect::<Vec<_>>()
        })
        .collect();
    let mean = mean(&sizes);
    assert!((1700.0..2500.0).contains(&mean), "{mean}");
}

#[test]
fn impossible_requests_are_refused_with_the_possible_values() {
    for (yaml, part) in [
        (
            "{contexts: 100, names: {list: [a, b]}, tags_per_msg: 0, types: {count: 1, gauge: 0, distribution: 0, set: 0, histogram: 0}, distinct_names: 50}",
            "contexts: 100",
        ),
        ("{contexts: 100, distinct_names: 5, distinct_tag_lists: 5}", "25"),
        (
            "{tags_per_msg: 9, tag_keys: {list: [a]}, tag_values: {list: [\"{{1-3}}\"]}}",
            "tags_per_msg",
        ),
    ] {
        let profile = Profile::from_yaml(yaml).unwrap();
        let error = Load::prepare("x", &profile, Transport::Udp, 1).err().unwrap();
        assert!(error.0.contains(part), "{yaml}: {error}");
    }
}

#[test]
fn payloads_that_a_transport_cannot_carry_are_refused() {
    let profile = Profile::from_yaml("packet_size: 70000").unwrap();
    let load = Load::prepare("x", &profile, Transport::Udp, 1).unwrap();
    let error = load.check_size(1 << 20, 1 << 20).unwrap_err();
    assert!(error.0.contains("65507"), "{error}");
    let load = Load::prepare("x", &profile, Transport::Unixgram, 1).unwrap();
    assert!(load.check_size(1 << 20, 1 << 20).is_ok());
    assert!(load.check_size(1 << 20, 32 << 10).is_err());
    let error = load.check_size(8192, 1 << 20).unwrap_err();
    assert!(error.0.contains("8192"), "{error}");
}
