//! Framing against a naive twin, for the property test and the fuzz target.

use crate::Framing;
use crate::framing::{End, FeedResult, Framer, FramingCounts, PacketEntries};
use crate::partial::PartialPool;

/// The result of a stream: its packets and how it ended.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    packets: Vec<Vec<u8>>,
    too_long: u64,
    empty: u64,
    discarded_bytes: u64,
    cut: bool,
}

/// Sees the whole stream at once and looks at one byte after the other.
fn naive(framing: Framing, max: usize, stream: &[u8], orderly: bool) -> Outcome {
    let mut outcome = Outcome::default();
    if framing == Framing::Newline {
        let mut lines: Vec<&[u8]> = stream.split(|byte| *byte == b'\n').collect();
        let last = lines.pop().unwrap_or_default();
        for line in lines {
            if line.len() > max {
                outcome.too_long += 1;
                outcome.discarded_bytes += line.len() as u64 + 1;
            } else {
                outcome.packets.push([line, b"\n"].concat());
            }
        }
        if last.len() > max {
            outcome.too_long += 1;
            outcome.discarded_bytes += last.len() as u64;
        } else if !last.is_empty() && orderly {
            outcome.packets.push(last.to_vec());
        } else if !last.is_empty() {
            outcome.cut = true;
            outcome.discarded_bytes += last.len() as u64;
        }
        return outcome;
    }
    let mut rest = stream;
    while !rest.is_empty() {
        let Some((header, body)) = rest.split_first_chunk::<4>() else {
            break;
        };
        let length = u32::from_le_bytes(*header) as usize;
        if length > max {
            outcome.too_long = 1;
            return outcome;
        }
        let Some((frame, behind)) = body.split_at_checked(length) else {
            break;
        };
        if frame.is_empty() {
            outcome.empty += 1;
        } else {
            outcome.packets.push(frame.to_vec());
        }
        rest = behind;
    }
    outcome.cut = !rest.is_empty();
    outcome.discarded_bytes = rest.len() as u64;
    outcome
}

/// Sees the stream in the chunks given, as the event loop would read it.
fn chunked(framing: Framing, max: usize, chunks: &[&[u8]], orderly: bool) -> Outcome {
    let start = max + 4;
    let longest = chunks.iter().map(|chunk| chunk.len()).max().unwrap_or(0);
    let mut memory = vec![0xAA; start + longest];
    let mut pool = PartialPool::new(usize::MAX);
    let mut entries = PacketEntries::new();
    let mut counts = FramingCounts::default();
    let mut framer = Framer::new(framing, max);
    let mut outcome = Outcome::default();
    let mut bad = false;
    for chunk in chunks {
        memory[start..start + chunk.len()].copy_from_slice(chunk);
        let end = start + chunk.len();
        let packets = &mut outcome.packets;
        let fed = framer.feed(
            &mut memory,
            start,
            end,
            &mut pool,
            &mut entries,
            &mut counts,
            |memory, entries| {
                for entry in entries {
                    let packet = &memory[entry.start as usize..][..entry.length as usize];
                    assert!(packet.len() <= max + usize::from(framing == Framing::Newline));
                    if framing == Framing::Newline {
                        packets.extend(packet.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec));
                    } else {
                        packets.push(packet.to_vec());
                    }
                }
            },
        );
        assert!(
            framer.partial_bytes() < max + 4,
            "a partial frame holds no more than a frame"
        );
        match fed {
            FeedResult::All => {}
            FeedResult::NoRoom(_) => panic!("the budget is unlimited"),
            FeedResult::TooLong => {
                bad = true;
                break;
            }
        }
    }
    let packets = &mut outcome.packets;
    let end = framer.finish(orderly && !bad, &mut pool, &mut counts, |memory, entries| {
        packets.extend(
            entries
                .iter()
                .map(|entry| memory[..entry.length as usize].to_vec()),
        );
    });
    outcome.cut = end == End::Cut;
    outcome.too_long = counts.too_long;
    outcome.empty = counts.empty;
    // After a bad length, how much had been read behind it depends on the chunks.
    outcome.discarded_bytes = if bad { 0 } else { counts.discarded_bytes };
    outcome
}

/// Feeds a stream in pieces and compares with the naive twin. The first bytes of `data` choose the framing, the limit,
/// how the stream ends, and the sizes of the pieces; the rest is the stream. Any bytes are valid.
///
/// # Panics
///
/// When the two disagree.
pub fn stream_framing(data: &[u8]) {
    let Some((&[choice, limit, step, seed], stream)) = data.split_first_chunk::<4>() else {
        return;
    };
    let framing = if choice & 1 == 0 {
        Framing::LengthPrefixed
    } else {
        Framing::Newline
    };
    let orderly = choice & 2 == 0;
    let max = if choice & 4 == 0 {
        usize::from(limit % 40) + 1
    } else {
        8192
    };
    let mut chunks = Vec::new();
    let mut rest = stream;
    let mut state = u32::from(seed) | 1;
    while !rest.is_empty() {
        // A step of 0 makes single bytes.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let length = 1 + (state >> 16) as usize % (usize::from(step) + 1);
        let (chunk, behind) = rest.split_at(length.min(rest.len()));
        chunks.push(chunk);
        rest = behind;
    }
    let expected = naive(framing, max, stream, orderly);
    let found = chunked(framing, max, &chunks, orderly);
    assert_eq!(
        found,
        expected,
        "{framing:?}, limit {max}, orderly {orderly}, {} chunks",
        chunks.len()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }

        fn below(&mut self, bound: usize) -> usize {
            (self.next() % bound as u64) as usize
        }
    }

    /// A stream that is mostly well formed, so that frames end, begin and are cut everywhere.
    fn plausible(random: &mut Random, newline: bool, max: usize) -> Vec<u8> {
        let mut stream = Vec::new();
        for _ in 0..random.below(40) {
            let length = match random.below(12) {
                0 => 0,
                1 => max,
                2 if random.below(4) == 0 => max + 1 + random.below(3 * max),
                _ => random.below(max + 1),
            };
            if !newline {
                stream.extend_from_slice(&(length as u32).to_le_bytes());
            }
            stream.extend((0..length).map(|at| b'a' + (at % 26) as u8));
            if newline {
                stream.push(b'\n');
            }
        }
        let keep = stream.len() - random.below(stream.len() / 4 + 1).min(stream.len());
        stream.truncate(keep);
        stream
    }

    #[test]
    fn any_chunks_of_any_stream_equal_the_naive_twin() {
        let seed = std::env::var("WEIR_TEST_SEED")
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or_else(|| {
                let now = std::time::SystemTime::now()
                    .duration_since(std::time::UNIX_EPOCH)
                    .unwrap();
                now.as_nanos() as u64 | 1
            });
        println!("WEIR_TEST_SEED={seed}");
        let mut random = Random(seed);
        for round in 0..20_000 {
            let head = [
                random.next() as u8,
                random.next() as u8,
                random.next() as u8,
                random.next() as u8,
            ];
            let mut data = head.to_vec();
            let max = if head[0] & 4 == 0 {
                usize::from(head[1] % 40) + 1
            } else {
                8192
            };
            if random.below(4) == 0 {
                let length = random.below(300);
                data.extend((0..length).map(|_| [b'\n', 0, 1, 7, random.next() as u8][random.below(5)]));
            } else if max < 8192 || round % 50 == 0 {
                data.extend(plausible(&mut random, head[0] & 1 == 1, max));
            }
            stream_framing(&data);
        }
    }
}
