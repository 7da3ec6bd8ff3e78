//! Messages as real traffic has them: mixed kinds, names and tags of different lengths. Of the benchmark and of the test that counts
//! its instructions.

use std::fmt::Write;

pub struct Random(pub u64);

impl Random {
    fn next(&mut self, bound: usize) -> usize {
        // SplitMix64; the high bits of the product are uniform enough for load.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(z ^ (z >> 31)) * bound as u128) >> 64) as usize
    }
}

/// The numbers of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Values {
    /// Up to four digits in front of a point and three behind it, as in most traffic.
    #[default]
    Mixed,
    /// Three digits.
    Short,
    /// Floats with all their digits.
    Floats,
    /// Integers of 64 bits.
    Integers,
    /// Floats with an exponent.
    Exponents,
    /// As in the string interner's experiments: integers of 64 bits, half of them with six decimals; several in one of twelve messages.
    Interner,
}

#[allow(dead_code, reason = "not all programs choose by name")]
impl Values {
    /// The names that a command line has.
    pub fn from_name(name: &str) -> Option<Values> {
        Some(match name {
            "mixed" => Values::Mixed,
            "short" => Values::Short,
            "floats" => Values::Floats,
            "integers" => Values::Integers,
            "exponents" => Values::Exponents,
            "interner" => Values::Interner,
            _ => return None,
        })
    }

    fn write(self, line: &mut String, random: &mut Random) {
        // Uniform between 0 and 1, in steps of 2^-53.
        let fraction = |random: &mut Random| random.next(1 << 53) as f64 / (1u64 << 53) as f64;
        let _ = match self {
            Values::Mixed => unreachable!("these depend on the kind"),
            Values::Short => write!(line, "{}", 100 + random.next(900)),
            Values::Floats => write!(line, "{}", fraction(random) * 100.0),
            Values::Integers => write!(line, "{}", (random.next(usize::MAX) as i64)),
            Values::Exponents => write!(line, "{:e}", fraction(random) * 1e-6),
            Values::Interner if random.next(2) == 0 => {
                write!(
                    line,
                    "{}.{:06}",
                    random.next(usize::MAX) as i64,
                    random.next(1_000_000)
                )
            }
            Values::Interner => write!(line, "{}", random.next(usize::MAX) as i64),
        };
    }

    /// The number of them in a message.
    fn count(self, dist: bool, random: &mut Random) -> usize {
        match self {
            Values::Interner if random.next(100) < 8 => 2 + random.next(31),
            _ if dist => 1 + random.next(9),
            _ => 1,
        }
    }
}

/// The form of messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shape {
    /// Tags in a random order.
    pub permute: bool,
    /// Up to nine values in a message.
    pub dist: bool,
    pub values: Values,
}

pub struct Context {
    name: String,
    kind: &'static str,
    tags: Vec<String>,
}

/// Contexts of mixed kinds, or distributions alone, with so many tags each.
pub fn contexts(count: usize, tag_count: usize, dist: bool, random: &mut Random) -> Vec<Context> {
    let kinds: Vec<&str> = [("c", 208), ("g", 66), ("d", 72), ("s", 9), ("h", 1)]
        .iter()
        .flat_map(|&(kind, weight)| std::iter::repeat_n(kind, weight))
        .collect();
    // Lengths differ as they do in real traffic: what branches on them must not look better than it is.
    let words: Vec<String> = (0..64).map(|_| word(random, 3, 12)).collect();
    let values: Vec<String> = (0..count / 3 + 17).map(|_| word(random, 3, 10)).collect();
    (0..count)
        .map(|i| Context {
            name: (0..2 + random.next(3)).fold(format!("m{i}"), |name, _| {
                format!("{name}.{}", words[random.next(words.len())])
            }),
            kind: if dist {
                "d"
            } else {
                kinds[random.next(kinds.len())]
            },
            tags: (0..tag_count)
                .map(|t| {
                    let key = &words[(i + t * 9) % words.len()];
                    // Beyond as many tags as there are words, keys are numbered.
                    let number = match t / words.len() {
                        0 => String::new(),
                        more => more.to_string(),
                    };
                    format!("{key}{number}:{}", values[random.next(values.len())])
                })
                .collect(),
        })
        .collect()
}

/// Contexts as those of the string interner's experiments: names of up to 200 bytes, 2 to 50 tags, keys and values of up to 100 bytes, one tag in nine
/// of no other context.
#[allow(dead_code, reason = "not all programs have them")]
pub fn interner_contexts(count: usize, random: &mut Random) -> Vec<Context> {
    const KINDS: [(&str, usize); 4] = [("c", 100), ("g", 10), ("d", 50), ("h", 1)];
    let mut known: Vec<String> = Vec::new();
    (0..count)
        .map(|i| {
            let mut at = random.next(161);
            let kind = KINDS.iter().find(|(_, weight)| {
                let found = at < *weight;
                at = at.saturating_sub(*weight);
                found
            });
            let tags = (0..2 + random.next(49)).map(|_| {
                if known.is_empty() || random.next(9) == 0 {
                    known.push(format!("{}:{}", word(random, 1, 100), word(random, 1, 100)));
                }
                known[random.next(known.len())].clone()
            });
            Context {
                tags: tags.collect(),
                name: format!("m{i}{}", word(random, 1, 195)),
                kind: kind.map_or("c", |(kind, _)| kind),
            }
        })
        .collect()
}

fn word(random: &mut Random, least: usize, most: usize) -> String {
    let length = least + random.next(most - least + 1);
    (0..length)
        .map(|_| char::from(b'a' + random.next(26) as u8))
        .collect()
}

/// Packets of 8 KiB, or of one message where that is longer; a tenth of the messages have a rate.
pub fn packets(contexts: &[Context], messages: usize, shape: Shape, random: &mut Random) -> Vec<Vec<u8>> {
    let Shape {
        permute,
        dist,
        values,
    } = shape;
    let mut packets = Vec::new();
    let mut packet = String::new();
    for _ in 0..messages {
        let context = &contexts[random.next(contexts.len())];
        let mut line = String::new();
        let _ = match context.kind {
            "s" => write!(line, "{}:user-{}|s", context.name, random.next(500)),
            kind if values != Values::Mixed => {
                line.push_str(&context.name);
                for _ in 0..values.count(dist, random) {
                    line.push(':');
                    values.write(&mut line, random);
                }
                write!(line, "|{kind}")
            }
            "d" if dist => {
                line.push_str(&context.name);
                for _ in 0..=random.next(8) {
                    let _ = write!(line, ":{}.{}", random.next(1000), random.next(10));
                }
                write!(line, "|d")
            }
            "d" => write!(
                line,
                "{}:{}.{}|d",
                context.name,
                random.next(1000),
                random.next(100)
            ),
            kind if random.next(3) == 0 => {
                write!(
                    line,
                    "{}:{}.{}|{kind}",
                    context.name,
                    random.next(10_000),
                    random.next(1000)
                )
            }
            kind => write!(line, "{}:{}|{kind}", context.name, random.next(10_000)),
        };
        if random.next(10) == 0 && context.kind != "g" {
            line.push_str("|@0.5");
        }
        let mut order: Vec<usize> = (0..context.tags.len()).collect();
        if permute {
            for at in (1..order.len()).rev() {
                order.swap(at, random.next(at + 1));
            }
        }
        for (at, tag) in order.iter().enumerate() {
            line.push_str(if at == 0 { "|#" } else { "," });
            line.push_str(&context.tags[*tag]);
        }
        if !packet.is_empty() && packet.len() + line.len() + 1 > 8192 {
            packets.push(std::mem::take(&mut packet).into_bytes());
        }
        packet.push_str(&line);
        packet.push('\n');
    }
    packets.push(packet.into_bytes());
    packets
}
