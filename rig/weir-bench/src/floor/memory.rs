//! The passes over bytes in memory: the floor without the kernel's part.

use super::Args;
use super::encode::Flush;
use super::pass::{Depth, Pass};
use crate::failure::Failure;
use std::hint::black_box;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};
use weir_rig_base::signal;

/// Messages are handed over in packets of this size, as from a Unix socket.
const PACKET_BYTES: usize = 8192;

pub fn run(file: &Path, args: &Args) -> Result<(), Failure> {
    let bytes = std::fs::read(file)
        .map_err(|error| Failure::Usage(format!("--memory {}: {error}", file.display())))?;
    let packets = packets(&bytes);
    if packets.is_empty() {
        return Err(Failure::Usage(format!(
            "--memory {}: no messages in it; wanted: newline-separated messages",
            file.display()
        )));
    }
    let each = args.duration.unwrap_or(Duration::from_secs(1));
    for depth in [Depth::L0, Depth::L1, Depth::L3] {
        let mut pass = Pass::new(depth);
        let outcome = rounds(each, || {
            packets.iter().map(|packet| pass.packet(black_box(packet))).sum()
        });
        print(depth.name(), "message", bytes.len(), outcome)?;
    }
    let flush = Flush::of_messages(&bytes);
    if flush.contexts() > 0 {
        let mut out = Vec::new();
        flush.encode(1_700_000_000, &mut out);
        let encoded = out.len();
        let outcome = rounds(each, || {
            out.clear();
            flush.encode(1_700_000_000, &mut out);
            black_box(&out);
            flush.contexts() as u64
        });
        print("W0", "point", encoded, outcome)?;
    }
    Ok(())
}

/// Divides newline-separated messages into packets of complete messages.
fn packets(bytes: &[u8]) -> Vec<&[u8]> {
    let mut packets = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let window = &rest[..rest.len().min(PACKET_BYTES)];
        let end = if window.len() == rest.len() {
            rest.len()
        } else {
            // A message longer than a packet stays whole.
            memchr::memrchr(b'\n', window)
                .or_else(|| memchr::memchr(b'\n', rest))
                .map_or(rest.len(), |at| at + 1)
        };
        packets.push(&rest[..end]);
        rest = &rest[end..];
    }
    packets
}

struct Outcome {
    rounds: u64,
    /// Messages or points of one round.
    items: u64,
    mean_ns: f64,
    fastest_ns: f64,
}

/// Repeats `round` for about `each`, at least three times, after one warm-up round.
fn rounds(each: Duration, mut round: impl FnMut() -> u64) -> Outcome {
    let items = round();
    let start = Instant::now();
    let mut fastest = Duration::MAX;
    let mut rounds = 0;
    while rounds < 3 || start.elapsed() < each {
        let before = Instant::now();
        // Also proves that each round did the same work.
        assert_eq!(round(), items);
        fastest = fastest.min(before.elapsed());
        rounds += 1;
        if signal::wait_termination(Duration::ZERO) {
            break;
        }
    }
    Outcome {
        rounds,
        items,
        mean_ns: start.elapsed().as_nanos() as f64 / rounds as f64 / items as f64,
        fastest_ns: fastest.as_nanos() as f64 / items as f64,
    }
}

fn print(variant: &str, unit: &str, bytes: usize, outcome: Outcome) -> Result<(), Failure> {
    let line = serde_json::json!({
        "variant": variant,
        "unit": unit,
        "items": outcome.items,
        "bytes": bytes,
        "rounds": outcome.rounds,
        "ns_per_item": outcome.mean_ns,
        "fastest_ns_per_item": outcome.fastest_ns,
        "gb_per_s": bytes as f64 / (outcome.mean_ns * outcome.items as f64),
    });
    writeln!(std::io::stdout(), "{line}")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_hold_whole_messages_and_lose_none() {
        let long = "x".repeat(3 * PACKET_BYTES);
        let text = format!("{long}\n{}{long}", "abc:1|c\n".repeat(5000));
        let packets = packets(text.as_bytes());
        assert_eq!(packets.concat(), text.as_bytes());
        let (last, others) = packets.split_last().unwrap();
        assert!(others.iter().all(|packet| packet.ends_with(b"\n")));
        assert!(last.ends_with(b"x"));
    }
}
