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
        };
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
                for _ in 0..if dist { 1 + random.next(9) } else { 1 } {
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
