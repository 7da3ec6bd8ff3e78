//! Looking at profiles.

use super::common::ProfileArgs;
use crate::common::{print, print_line};
use crate::failure::Failure;
use std::io::Write;
use weir_load::manifest::{Manifest, Totals};
use weir_load::profiles;
use weir_load::run::SentStream;
use weir_load::source::Load;
use weir_load::truth::{self, Detail};
use weir_load::units::RateUnit;
use weir_regress::describe::{mean, quantile};

pub fn profiles() -> Result<(), Failure> {
    let mut out = Vec::new();
    for profile in profiles::all() {
        writeln!(out, "{:<32} {}", profile.name, profile.about)?;
    }
    writeln!(
        out,
        "\ninterner-*, smp-* and dsd-* take @tags-unique or @tags-reused, @smooth or @lading-burst, and @contexts-first: \
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
    /// Number of packets to inspect.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    packets: u64,
    /// One JSON object instead of the table.
    #[arg(long)]
    json: bool,
}

/// Lengths and counts of packets and messages.
#[derive(Default)]
struct Shape {
    message_bytes: Vec<f64>,
    tags: Vec<f64>,
    messages: Vec<f64>,
    packet_bytes: Vec<f64>,
}

impl Shape {
    fn packet(&mut self, packet: &[u8], messages: u32, lines: bool) {
        self.packet_bytes.push(packet.len() as f64);
        self.messages.push(f64::from(messages));
        for line in packet.split(|byte| *byte == b'\n').filter(|_| lines) {
            self.message_bytes.push(line.len() as f64);
            let text = String::from_utf8_lossy(line);
            let tags = text.split('|').find_map(|part| part.strip_prefix('#'));
            self.tags
                .push(tags.map_or(0.0, |list| list.split(',').count() as f64));
        }
    }

    /// The rows of the table, by name.
    fn rows(&self) -> impl Iterator<Item = (&'static str, &[f64])> {
        [
            ("message_bytes", self.message_bytes.as_slice()),
            ("tags_per_message", &self.tags),
            ("messages_per_packet", &self.messages),
            ("packet_bytes", &self.packet_bytes),
        ]
        .into_iter()
        .filter(|(_, values)| !values.is_empty())
    }
}

/// Packets, messages and bytes per second.
#[derive(Clone, Copy)]
struct Rates {
    packets: f64,
    messages: f64,
    bytes: f64,
}

/// The rates that result from the profile's rate; `None` if the load sends as much as the target accepts.
fn rates(load: &Load, totals: &Totals) -> Option<Rates> {
    load.profile.rate_unit()?;
    let rate = load.profile.rate?;
    let packets = totals.packets.max(1) as f64;
    let (messages, bytes) = (totals.messages as f64 / packets, totals.bytes as f64 / packets);
    let packets = match rate.unit {
        RateUnit::Packets => rate.per_second,
        RateUnit::Messages => rate.per_second / messages,
        RateUnit::Bytes => rate.per_second / bytes,
    };
    Some(Rates {
        packets,
        messages: packets * messages,
        bytes: packets * bytes,
    })
}

/// Examines the bytes themselves, not the model's intent.
pub fn run(args: Args) -> Result<(), Failure> {
    let load = args.profile.load(None)?;
    let (mut source, cycle) = load.source(0);
    let mut buffer = vec![0u8; source.room()];
    let lines = load.profile.payload.is_statsd();
    let mut shape = Shape::default();
    for _ in 0..args.packets {
        let packet = source.packet(&mut buffer);
        shape.packet(&buffer[..packet.len], packet.messages, lines);
    }
    let sent = [SentStream {
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
    let rates = rates(&load, &truth.totals);
    if args.json {
        return print_line(&as_json(&load, &shape, &truth, rates));
    }
    let mut out = Vec::new();
    write_shape(&mut out, &load, &shape, &truth)?;
    write_contents(&mut out, &load, &truth)?;
    match rates {
        Some(at) => writeln!(
            out,
            "at the profile's rate {:.0} messages/s, {:.0} packets/s, {:.3} MB/s",
            at.messages,
            at.packets,
            at.bytes / 1e6
        ),
        None => writeln!(out, "at the profile's rate as much as the target takes"),
    }?;
    print(&out)
}

fn as_json(load: &Load, shape: &Shape, truth: &Manifest, rates: Option<Rates>) -> serde_json::Value {
    let quantiles: serde_json::Map<String, serde_json::Value> = shape
        .rows()
        .map(|(name, values)| {
            let value = serde_json::json!({
                "mean": mean(values), "min": quantile(values, 0.0), "p10": quantile(values, 0.1), "p50": quantile(values, 0.5),
                "p90": quantile(values, 0.9), "p99": quantile(values, 0.99), "max": quantile(values, 1.0),
            });
            (name.to_owned(), value)
        })
        .collect();
    serde_json::json!({
        "profile": load.name, "seed": load.seed, "transport": load.transport.name(),
        "contexts": load.model.as_ref().map(|model| model.contexts.len()), "shape": quantiles,
        "totals": truth.totals, "distinct": truth.distinct, "digest": truth.digest,
        "rate": rates.map(|at| serde_json::json!({
            "packets_per_s": at.packets, "messages_per_s": at.messages, "bytes_per_s": at.bytes })),
    })
}

fn write_shape(out: &mut Vec<u8>, load: &Load, shape: &Shape, truth: &Manifest) -> std::io::Result<()> {
    let (name, transport, about) = (&load.name, load.transport.name(), &load.profile.about);
    let totals = &truth.totals;
    writeln!(out, "{name} (seed {}, {transport}): {about}", load.seed)?;
    writeln!(
        out,
        "first {} packets: {} messages, {} bytes, {}\n",
        shape.packet_bytes.len(),
        totals.messages,
        totals.bytes,
        truth.digest
    )?;
    let heads = ["mean", "min", "p10", "p50", "p90", "p99", "max"];
    writeln!(
        out,
        "{:<22}{:>10}{}",
        "",
        heads[0],
        heads[1..]
            .iter()
            .map(|head| format!("{head:>8}"))
            .collect::<String>()
    )?;
    for (name, values) in shape.rows() {
        write!(out, "{:<22}{:>10.1}", name.replace('_', " "), mean(values))?;
        for q in [0.0, 0.1, 0.5, 0.9, 0.99, 1.0] {
            write!(out, "{:>8.0}", quantile(values, q))?;
        }
        writeln!(out)?;
    }
    let repeated = totals.repeated_packets.unwrap_or(0);
    let packets = shape.packet_bytes.len();
    writeln!(out, "\nequal to an earlier one {repeated} of {packets} packets")
}

fn write_contents(out: &mut Vec<u8>, load: &Load, truth: &Manifest) -> std::io::Result<()> {
    let Some(model) = &load.model else { return Ok(()) };
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
    let totals = &truth.totals;
    let metrics = totals.metrics.max(1) as f64;
    let share = |messages: u64| messages as f64 * 100.0 / metrics;
    let types = totals.types.iter();
    let shares: Vec<String> = types
        .map(|(name, t)| format!("{name} {:.2} %", share(t.messages)))
        .collect();
    writeln!(out, "types                 {}", shares.join(", "))?;
    writeln!(
        out,
        "kinds                 {} metrics, {} events, {} service checks, {} malformed",
        totals.metrics,
        totals.events,
        totals.service_checks,
        totals.malformed.values().sum::<u64>()
    )
}
