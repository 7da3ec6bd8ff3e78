//! The allocator's text dump of sampled allocations.
//!
//! `heap_v2/<sample bytes>`, then per stack a line `@ 0x... 0x...` followed by lines of counts, the one of all
//! threads being `t*: objects: bytes [...]`; a list of mappings ends it.

#[derive(Debug, Default, PartialEq)]
pub struct Dump {
    /// The mean distance between samples.
    pub sample_bytes: u64,
    pub samples: Vec<Sample>,
}

#[derive(Debug, Default, PartialEq)]
pub struct Sample {
    /// Return addresses, innermost first.
    pub frames: Vec<usize>,
    /// Live allocations.
    pub live: Amount,
    /// All allocations since the start, including live ones.
    pub total: Amount,
}

/// Sampled allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Amount {
    pub objects: u64,
    pub bytes: u64,
}

impl Amount {
    /// Estimates the total from the samples: an allocation of s bytes is sampled with probability 1 - exp(-s / R).
    pub fn scaled(&self, sample_bytes: u64) -> (i64, i64) {
        if self.objects == 0 || self.bytes == 0 || sample_bytes <= 1 {
            return (self.objects as i64, self.bytes as i64);
        }
        let size = self.bytes as f64 / self.objects as f64;
        let scale = 1.0 / -(-size / sample_bytes as f64).exp_m1();
        (
            (self.objects as f64 * scale) as i64,
            (self.bytes as f64 * scale) as i64,
        )
    }
}

/// The allocator wrote something else.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the allocator's dump starts with {0:?}")]
pub struct DumpError(String);

pub fn parse(text: &str) -> Result<Dump, DumpError> {
    let mut lines = text.lines();
    let head = lines.next().unwrap_or_default();
    let sample_bytes = head
        .strip_prefix("heap_v2/")
        .and_then(|rest| rest.trim().parse().ok())
        .ok_or_else(|| DumpError(head.to_owned()))?;
    let mut dump = Dump {
        sample_bytes,
        samples: Vec::new(),
    };
    let mut frames: Option<Vec<usize>> = None;
    for line in lines {
        if line.starts_with("MAPPED_LIBRARIES") {
            break;
        }
        if let Some(addresses) = line.strip_prefix('@') {
            frames = Some(addresses.split_whitespace().filter_map(address).collect());
        } else if let Some(counts) = line.trim_start().strip_prefix("t*:")
            && let Some(frames) = frames.take()
            && let Some((live, total)) = amounts(counts)
        {
            dump.samples.push(Sample { frames, live, total });
        }
    }
    Ok(dump)
}

fn address(text: &str) -> Option<usize> {
    usize::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// ` 3: 4096 [7: 8192]`
fn amounts(counts: &str) -> Option<(Amount, Amount)> {
    let (live, total) = counts.split_once('[')?;
    let amount = |text: &str| {
        let (objects, bytes) = text.trim().trim_end_matches(']').split_once(':')?;
        Some(Amount {
            objects: objects.trim().parse().ok()?,
            bytes: bytes.trim().parse().ok()?,
        })
    };
    Some((amount(live)?, amount(total)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_and_counts_are_read() {
        let text = "heap_v2/524288\n  t*: 3: 300 [0: 0]\n  t0: 3: 300 [0: 0]\n@ 0x10 0x20\n  t*: 2: 200 [5: 500]\n\
                    \x20 t0: 2: 200 [0: 0]\n@ 0x30\n  t*: 1: 100 [0: 0]\n\nMAPPED_LIBRARIES:\n@ 0x99\n  t*: 9: 9 [0: 0]\n";
        let dump = parse(text).unwrap();
        assert_eq!(dump.sample_bytes, 524_288);
        assert_eq!(
            dump.samples,
            [
                Sample {
                    frames: vec![0x10, 0x20],
                    live: Amount {
                        objects: 2,
                        bytes: 200
                    },
                    total: Amount {
                        objects: 5,
                        bytes: 500
                    },
                },
                Sample {
                    frames: vec![0x30],
                    live: Amount {
                        objects: 1,
                        bytes: 100
                    },
                    total: Amount::default(),
                },
            ]
        );
        assert!(parse("").is_err());
        assert!(parse("heap_v1/1\n").is_err());
    }

    #[test]
    fn a_sample_is_scaled_by_its_rate() {
        let small = Amount {
            objects: 1,
            bytes: 1024,
        };
        let (objects, bytes) = small.scaled(524_288);
        // One in about 512 such allocations is sampled.
        assert!((510..=515).contains(&objects), "{objects}");
        assert!((bytes - 1024 * 512).abs() < 2048, "{bytes}");
        let large = Amount {
            objects: 1,
            bytes: 64 << 20,
        };
        assert_eq!(large.scaled(524_288), (1, 64 << 20));
    }
}
