//! Builds request bodies item by item, within a limit.

use crate::compress::Compressor;
use crate::delivery::{Class, Draft, Encoded, Items, Reason};
use crate::settings::Compression;

/// The limits of one request to a backend.
#[derive(Clone, Copy, Debug)]
pub struct PayloadLimits {
    pub compressed: usize,
    pub uncompressed: usize,
    /// Points, events or checks.
    pub count: u32,
}

/// The bytes around and between the items.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    pub head: Vec<u8>,
    pub separator: Vec<u8>,
    pub tail: Vec<u8>,
}

/// Streams items into the compressor and starts another payload when the next item might not fit. Memory: one compressed
/// body.
pub struct Assembler {
    route: u16,
    class: Class,
    limits: PayloadLimits,
    frame: Frame,
    compression: (Compression, i32),
    /// Made for the first item: an output that never sees an event needs no compressor for it.
    compressor: Option<Compressor>,
    count: u32,
    raw: usize,
}

impl Assembler {
    pub fn new(
        route: u16,
        class: Class,
        limits: PayloadLimits,
        frame: Frame,
        compression: (Compression, i32),
    ) -> Self {
        Self {
            route,
            class,
            limits,
            frame,
            compression,
            compressor: None,
            count: 0,
            raw: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The content of the open payload.
    pub fn open(&self) -> Items {
        Items::of(self.class, u64::from(self.count))
    }

    /// Adds an item that stands for `count` points, events or checks.
    pub fn add(&mut self, item: &[u8], count: u32, out: &mut Encoded) {
        let separator = self.frame.separator.len();
        if !self.fits(separator + item.len(), count) {
            self.finish(out);
        }
        if self.count == 0 {
            return self.add_first(item, count, out);
        }
        let compressor = self.compressor.as_mut().expect("a payload is open");
        compressor.write(&self.frame.separator);
        compressor.write(item);
        self.raw += separator + item.len();
        self.count += count;
    }

    fn fits(&mut self, more: usize, count: u32) -> bool {
        let tail = self.frame.tail.len();
        let Some(compressor) = self.compressor.as_mut().filter(|_| self.count > 0) else {
            return true;
        };
        if self.count + count > self.limits.count || self.raw + more + tail > self.limits.uncompressed {
            return false;
        }
        if compressor.bound(more + tail) > self.limits.compressed {
            // The bound assumes that nothing unflushed compresses at all. Flushing shows the truth, but ends a block, so
            // it is worth it only while a good part of the payload is at stake.
            if compressor.unflushed() < self.limits.compressed / 16 {
                return false;
            }
            compressor.flush();
            return compressor.bound(more + tail) <= self.limits.compressed;
        }
        true
    }

    fn add_first(&mut self, item: &[u8], count: u32, out: &mut Encoded) {
        let raw = self.frame.head.len() + item.len() + self.frame.tail.len();
        if raw > self.limits.uncompressed || count > self.limits.count {
            return out.dropped(Reason::TooLarge, self.class, u64::from(count));
        }
        let (compression, level) = self.compression;
        let compressor = self
            .compressor
            .get_or_insert_with(|| Compressor::new(compression, level));
        let surely_fits = compressor.bound(raw) <= self.limits.compressed;
        compressor.write(&self.frame.head);
        compressor.write(item);
        self.raw = raw - self.frame.tail.len();
        self.count = count;
        if !surely_fits {
            // Whether an item this large fits shows only once it is compressed, so it travels alone.
            self.finish(out);
        }
    }

    /// Ends the open payload, if there is one.
    pub fn finish(&mut self, out: &mut Encoded) {
        let Some(compressor) = self.compressor.as_mut().filter(|_| self.count > 0) else {
            return;
        };
        compressor.write(&self.frame.tail);
        let body = compressor.finish();
        let count = std::mem::take(&mut self.count);
        if body.len() > self.limits.compressed {
            // Only a single item can get here.
            out.dropped(Reason::TooLarge, self.class, u64::from(count));
        } else {
            out.payloads.push(Draft {
                route: self.route,
                class: self.class,
                count,
                body,
            });
        }
    }

    /// Gives the compressor's memory back until the next item.
    pub fn rest(&mut self) {
        if self.count == 0 {
            self.compressor = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize, seed: u64) -> Vec<u8> {
        let mut state = seed | 1;
        (0..n)
            .map(|_| {
                state = state
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                (state >> 56) as u8
            })
            .collect()
    }

    /// Puts items through and checks that each payload is within the limits and all together are the items.
    fn check(items: &[Vec<u8>], limits: PayloadLimits, compression: Compression) -> Vec<Draft> {
        let frame = Frame {
            head: b"[".to_vec(),
            separator: b",".to_vec(),
            tail: b"]".to_vec(),
        };
        let mut assembler = Assembler::new(1, Class::Points, limits, frame, (compression, 0));
        let mut out = Encoded::default();
        for item in items {
            assembler.add(item, 1, &mut out);
        }
        assembler.finish(&mut out);
        assembler.finish(&mut out);
        assert!(assembler.is_empty());
        let mut total = 0;
        let mut next = items.iter().filter(|item| item.len() + 2 <= limits.uncompressed);
        for payload in &out.payloads {
            assert!(payload.body.len() <= limits.compressed && payload.count <= limits.count);
            let raw = match compression {
                Compression::Zstd => zstd::decode_all(&payload.body[..]).unwrap(),
                Compression::None => payload.body.clone(),
                _ => unreachable!(),
            };
            assert!(raw.len() <= limits.uncompressed);
            let expected: Vec<&[u8]> = next
                .by_ref()
                .take(payload.count as usize)
                .map(Vec::as_slice)
                .collect();
            assert!(
                raw == [b"[", &expected.join(&b","[..])[..], b"]"].concat(),
                "payload of {}",
                payload.count
            );
            total += u64::from(payload.count);
        }
        let dropped = out.dropped.get(&Reason::TooLarge).map_or(0, |items| items.points);
        assert_eq!(total + dropped, items.len() as u64);
        out.payloads
    }

    #[test]
    fn split_by_every_limit() {
        let limits = PayloadLimits {
            compressed: 10_000,
            uncompressed: 50_000,
            count: 1000,
        };
        let small: Vec<Vec<u8>> = (0..2001).map(|i| format!("item {i}").into_bytes()).collect();
        for compression in [Compression::Zstd, Compression::None] {
            check(&small, limits, compression);
            let incompressible: Vec<Vec<u8>> = (0..100).map(|i| noise(777, i)).collect();
            check(&incompressible, limits, compression);
        }
        let counts: Vec<u32> = check(&small, limits, Compression::Zstd)
            .iter()
            .map(|p| p.count)
            .collect();
        assert_eq!(counts, [1000, 1000, 1], "the count limit alone");
        let compressible: Vec<Vec<u8>> = (0..100).map(|_| vec![b'x'; 4000]).collect();
        let counts: Vec<u32> = check(&compressible, limits, Compression::Zstd)
            .iter()
            .map(|p| p.count)
            .collect();
        assert_eq!(
            counts,
            [12, 12, 12, 12, 12, 12, 12, 12, 4],
            "the uncompressed limit alone"
        );
    }

    #[test]
    fn payloads_are_filled_well_before_the_compressed_limit_ends_them() {
        // Half noise, half text: compresses to somewhat more than half.
        let items: Vec<Vec<u8>> = (0..4000)
            .map(|i| [noise(100, i), vec![b'y'; 100]].concat())
            .collect();
        let limits = PayloadLimits {
            compressed: 50_000,
            uncompressed: 5_000_000,
            count: 1_000_000,
        };
        let payloads = check(&items, limits, Compression::Zstd);
        let (_, full) = payloads.split_last().unwrap();
        assert!(
            full.iter().all(|payload| payload.body.len() > 45_000),
            "{:?}",
            full.iter().map(|p| p.body.len()).collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_single_item_beyond_a_limit_is_dropped_alone() {
        let limits = PayloadLimits {
            compressed: 1000,
            uncompressed: 5000,
            count: 10,
        };
        let frame = Frame::default();
        let mut assembler = Assembler::new(1, Class::Events, limits, frame, (Compression::Zstd, 0));
        let mut out = Encoded::default();
        assembler.add(b"before", 1, &mut out);
        assembler.add(&noise(2000, 1), 1, &mut out);
        assembler.add(&[0; 6000], 1, &mut out);
        assembler.add(b"after", 1, &mut out);
        // Larger than the compressed limit, but not once compressed.
        assembler.add(&[0; 3000], 1, &mut out);
        assembler.finish(&mut out);
        assert_eq!(out.dropped[&Reason::TooLarge], Items::of(Class::Events, 2));
        assert_eq!(out.payloads.iter().map(|p| p.count).sum::<u32>(), 3);
        assert!(out.payloads.iter().all(|p| p.body.len() <= 1000));
    }
}
