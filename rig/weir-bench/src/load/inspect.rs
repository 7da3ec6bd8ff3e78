//! Looking at profiles.

use super::common::{ProfileArgs, print, print_line};
use crate::failure::Failure;
use std::io::Write;
use weir_load::profiles;
use weir_load::run::Sent;
use weir_load::truth::{self, Detail};
use weir_load::units::RateUnit;

pub fn profiles() -> Result<(), Failure> {
    let mut out = Vec::new();
    for profile in profiles::all() {
        writeln!(out, "{:<32} {}", profile.name, profile.about)?;
    }
    writeln!(
        out,
        "\ninterner-*, smp-* and dsd-* take @tags-unique or @tags-reused, and @smooth or @lading-burst: \
         interner-8MiB-10k@tags-unique"
    )?;
    print(&out)
}

#[derive(clap::Args)]
pub struct ShowArgs {
    #[command(flatten)]
    profile: ProfileArgs,
}

pub fn show(args: ShowArgs) -> Result<(), Failure> {
    print(args.profile.profile()?.1.to_yaml().as_bytes())
}

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    profile: ProfileArgs,
    /// Packets to look at.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    packets: u64,
    /// One JSON object instead of the table.
    #[arg(long)]
    json: bool,
}

fn quantile(sorted: &[u64], q: f64) -> u64 {
    if sorted.is_empty() {
        return 0;
    }
    sorted[((sorted.len() - 1) as f64 * q).round() as usize]
}

/// Looks at the bytes themselves, not at what the model meant to write.
pub fn run(args: Args) -> Result<(), Failure> {
    let load = args.profile.load(None)?;
    let (mut source, cycle) = load.source(0);
    let mut buffer = vec![0u8; source.room()];
    let lines = load.profile.payload.is_statsd();
    let (mut lengths, mut tags, mut per_packet, mut sizes) = (vec![], vec![], vec![], vec![]);
    for _ in 0..args.packets {
        let packet = source.packet(&mut buffer);
        sizes.push(packet.len as u64);
        per_packet.push(u64::from(packet.messages));
        if lines {
            for line in buffer[..packet.len].split(|byte| *byte == b'\n') {
                lengths.push(line.len() as u64);
                let text = String::from_utf8_lossy(line);
                tags.push(
                    text.split('|')
                        .find_map(|part| part.strip_prefix('#'))
                        .map_or(0, |list| list.split(',').count() as u64),
                );
            }
        }
    }
    let sent = [Sent {
        connection: 0,
        composed: args.packets,
        skipped: Vec::new(),
        cycle,
    }];
    let detail = Detail {
        repeats: true,
        ..Detail::default()
    };
    let truth = truth::replay(&load, &sent, &detail);
    let mean_packet = truth.totals.bytes as f64 / truth.totals.packets.max(1) as f64;
    let per_packet_mean = truth.totals.messages as f64 / truth.totals.packets.max(1) as f64;
    let rate = load
        .profile
        .rate
        .filter(|_| load.profile.rate_unit().is_some())
        .map(|rate| {
            let packets = match rate.unit {
                RateUnit::Packets => rate.per_second,
                RateUnit::Messages => rate.per_second / per_packet_mean,
                RateUnit::Bytes => rate.per_second / mean_packet,
            };
            (packets, packets * per_packet_mean, packets * mean_packet)
        });
    for values in [&mut lengths, &mut tags, &mut per_packet, &mut sizes] {
        values.sort_unstable();
    }
    let rows = [
        ("message_bytes", &lengths),
        ("tags_per_message", &tags),
        ("messages_per_packet", &per_packet),
        ("packet_bytes", &sizes),
    ];
    let model_contexts = load.model.as_ref().map(|model| model.contexts.len());
    if args.json {
        let quantiles: serde_json::Map<String, serde_json::Value> = rows
            .iter()
            .filter(|(_, values)| !values.is_empty())
            .map(|(name, values)| {
                let mean = values.iter().sum::<u64>() as f64 / values.len() as f64;
                let value = serde_json::json!({
                    "mean": mean, "min": values[0], "p10": quantile(values, 0.1), "p50": quantile(values, 0.5),
                    "p90": quantile(values, 0.9), "p99": quantile(values, 0.99), "max": quantile(values, 1.0),
                });
                ((*name).to_string(), value)
            })
            .collect();
        let object = serde_json::json!({
            "profile": load.name, "seed": load.seed, "transport": load.transport.name(),
            "contexts": model_contexts, "shape": quantiles, "totals": truth.totals, "distinct": truth.distinct,
            "digest": truth.digest,
            "rate": rate.map(|(packets, messages, bytes)| serde_json::json!({
                "packets_per_s": packets, "messages_per_s": messages, "bytes_per_s": bytes })),
        });
        return print_line(&object);
    }
    let mut out = Vec::new();
    writeln!(
        out,
        "{} (seed {}, {}): {}",
        load.name,
        load.seed,
        load.transport.name(),
        load.profile.about
    )?;
    writeln!(
        out,
        "first {} packets: {} messages, {} bytes, {}\n",
        args.packets, truth.totals.messages, truth.totals.bytes, truth.digest
    )?;
    writeln!(
        out,
        "{:<22}{:>10}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}",
        "", "mean", "min", "p10", "p50", "p90", "p99", "max"
    )?;
    for (name, values) in rows {
        if values.is_empty() {
            continue;
        }
        let mean = values.iter().sum::<u64>() as f64 / values.len() as f64;
        write!(out, "{:<22}{mean:>10.1}", name.replace('_', " "))?;
        for q in [0.0, 0.1, 0.5, 0.9, 0.99, 1.0] {
            write!(out, "{:>8}", quantile(values, q))?;
        }
        writeln!(out)?;
    }
    writeln!(out)?;
    let repeated = truth.totals.repeated_packets.unwrap_or(0);
    writeln!(
        out,
        "equal to an earlier one {repeated} of {} packets",
        args.packets
    )?;
    if let Some(model) = &load.model {
        writeln!(
            out,
            "whole profile         {} contexts, {} names, {} tags, {} tag lists",
            model.contexts.len(),
            model.names,
            model.tags.len(),
            model.lists.len()
        )?;
        let d = truth.distinct;
        writeln!(
            out,
            "in these packets      {} contexts, {} names, {} tags, {} tag lists",
            d.contexts, d.names, d.tags, d.tag_lists
        )?;
        let metrics = truth.totals.metrics.max(1) as f64;
        let shares: Vec<String> = truth
            .totals
            .types
            .iter()
            .map(|(name, t)| format!("{name} {:.2} %", t.messages as f64 * 100.0 / metrics))
            .collect();
        writeln!(out, "types                 {}", shares.join(", "))?;
        writeln!(
            out,
            "kinds                 {} metrics, {} events, {} service checks, {} malformed",
            truth.totals.metrics,
            truth.totals.events,
            truth.totals.service_checks,
            truth.totals.malformed.values().sum::<u64>()
        )?;
    }
    match rate {
        Some((packets, messages, bytes)) => writeln!(
            out,
            "at the profile's rate {messages:.0} messages/s, {packets:.0} packets/s, {:.3} MB/s",
            bytes / 1e6
        ),
        None => writeln!(out, "at the profile's rate as much as the target takes"),
    }?;
    print(&out)
}
