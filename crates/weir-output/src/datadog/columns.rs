//! Series and sketches as columns, for the third version of the intake.

use weir_columns::wire::COLUMNS;
use weir_columns::{Column, Encoder, MetricType, OriginRef, Resources, Row, SketchPoint, TagSet, encode};
use weir_sketch::Sketch;

use super::series::{self, Head, Point, PointKind};
use crate::assemble::PayloadLimits;
use crate::compress::Compressor;
use crate::delivery::{Class, Draft, Encoded, Items, Reason};
use crate::settings::Compression;

/// A column of at least this many bytes is compressed as a block of its own, with statistics of its own.
const BLOCK_MIN: usize = 512;
/// Compressed bytes that ends of blocks and of frames take at most, over all columns.
const BLOCKS_MAX: usize = 32 * COLUMNS;

/// Collects the rows of one payload, and ends it when the next row might not fit. Rows of a full payload are not encoded again: whether
/// one fits is decided before it is written.
///
/// Rows and texts wait uncompressed until there are so many that they might be too large. Each column's part is then compressed on its own,
/// which shows its true length. A payload is the concatenation of such parts, which a reader takes for one stream.
pub struct ColumnAssembler {
    route: u16,
    limits: PayloadLimits,
    compression: (Compression, i32),
    encoder: Encoder,
    compressor: Option<Compressor>,
    /// Compressed parts, by column.
    packed: [Vec<u8>; COLUMNS],
    packed_len: usize,
    /// At most what the payload is without compression, and what of it is not packed.
    bound: usize,
    pending_bound: usize,
    count: u32,
    /// The payload has one row, of which only compression shows whether it fits.
    is_full: bool,
    /// Counts payloads: numbers of dictionaries end with theirs.
    epoch: u64,
    /// By the place of a tag list in its batch: the epoch, and the numbers that are valid in it.
    lists: Vec<(u64, Lists)>,
}

/// The numbers that series with the same tags and host share.
#[derive(Clone, Copy, Default)]
struct Lists {
    tags: TagSet,
    resources: Resources,
}

impl ColumnAssembler {
    /// `seed`: see [`Encoder::new`].
    pub fn new(route: u16, limits: PayloadLimits, compression: (Compression, i32), seed: u64) -> Self {
        ColumnAssembler {
            route,
            limits,
            compression,
            encoder: Encoder::new(seed),
            compressor: None,
            packed: Default::default(),
            packed_len: 0,
            bound: 0,
            pending_bound: 0,
            count: 0,
            is_full: false,
            epoch: 0,
            lists: Vec::new(),
        }
    }

    /// The content of the open payload.
    pub fn open(&self) -> Items {
        Items::of(Class::Points, u64::from(self.count))
    }

    /// Another batch: its tag lists are others.
    pub fn begin_batch(&mut self) {
        self.epoch += 1;
    }

    /// Adds a point. `list`: the place of its tags in the batch, if its host is the batch's.
    pub fn add<'t, T: Iterator<Item = &'t str> + Clone>(
        &mut self,
        point: &Point<'_, T>,
        list: Option<usize>,
        device_resource: bool,
        out: &mut Encoded,
    ) {
        let Head { timestamp, .. } = point.head;
        let name = [point.name, point.suffix];
        let bytes = name[0].len() + name[1].len() + encode::POINT_BYTES_MAX;
        if !self.room(bytes + head_bytes(&point.head), out) {
            return;
        }
        let Lists { tags, resources } = self.lists(list, |encoder| {
            let head = point.head;
            let tags = head.tags.clone();
            let kept = tags.clone().filter(|tag| series::keeps(tag, device_resource));
            let device = series::device(tags.clone()).filter(|_| device_resource);
            let named = device.map(|name| ("device", name)).into_iter();
            #[expect(
                clippy::map_identity,
                reason = "makes pairs that are as short-lived as the host"
            )]
            let more = named
                .chain(tags.filter_map(series::resource))
                .map(|(kind, name)| (kind, name));
            let host = host(head.host);
            Lists {
                tags: encoder.tag_set(TagSet::default(), kept),
                resources: encoder.resources(host.chain(more)),
            }
        });
        let row = Row {
            name: self
                .encoder
                .name(if name[1].is_empty() { &name[..1] } else { &name }),
            tags,
            resources,
            origin: origin(&mut self.encoder, point.head.origin),
            interval: point.interval,
            ..Row::new(match point.kind {
                PointKind::Count => MetricType::Count,
                PointKind::Rate => MetricType::Rate,
                PointKind::Gauge => MetricType::Gauge,
            })
        };
        self.encoder.row(&row, &[(timestamp, point.value)]);
    }

    /// Adds a sketch. Its tags stay as they are: sketches have no resource but the host.
    pub fn add_sketch<'t, T: Iterator<Item = &'t str> + Clone>(
        &mut self,
        head: &Head<'_, T>,
        name: &str,
        sketch: &Sketch,
        list: Option<usize>,
        out: &mut Encoded,
    ) {
        let bins = sketch.bins();
        // Its summary may be of three doubles, its count of ten bytes more.
        let summary = 2 * encode::POINT_BYTES_MAX + 16;
        let bytes = name.len() + summary + bins.len() * encode::BIN_BYTES_MAX;
        if !self.room(bytes + head_bytes(head), out) {
            return;
        }
        let Lists { tags, resources } = self.lists(list, |encoder| Lists {
            tags: encoder.tag_set(TagSet::default(), head.tags.clone()),
            resources: encoder.resources(host(head.host)),
        });
        let row = Row {
            name: self.encoder.name(&[name]),
            tags,
            resources,
            origin: origin(&mut self.encoder, head.origin),
            ..Row::new(MetricType::Sketch)
        };
        let point = SketchPoint {
            timestamp: head.timestamp,
            sum: sketch.sum(),
            min: sketch.min(),
            max: sketch.max(),
            count: sketch.cnt(),
        };
        let bins = bins.iter().map(|bin| (i32::from(bin.k), u64::from(bin.n)));
        self.encoder.sketches(&row, std::iter::once((point, bins)));
    }

    /// The numbers of a series' lists, from `make` if it is the first of its list.
    fn lists(&mut self, list: Option<usize>, make: impl FnOnce(&mut Encoder) -> Lists) -> Lists {
        let Some(at) = list else {
            return make(&mut self.encoder);
        };
        let known = &mut self.lists;
        if known.len() <= at {
            known.resize(at + 1, (0, Lists::default()));
        }
        match known[at] {
            (epoch, lists) if epoch == self.epoch => lists,
            _ => {
                let lists = make(&mut self.encoder);
                known[at] = (self.epoch, lists);
                lists
            }
        }
    }

    /// Whether one more point of at most so many bytes can be added, after the open payload has ended if it was full. If not, the point is
    /// dropped.
    fn room(&mut self, bytes: usize, out: &mut Encoded) -> bool {
        if self.encoder.empty_bound() + bytes > self.limits.uncompressed {
            out.dropped(Reason::TooLarge, Class::Points, 1);
            return false;
        }
        if self.count > 0 && !self.fits(bytes) {
            self.finish(out);
        }
        if self.count == 0 {
            self.epoch += 1;
            self.bound = self.encoder.empty_bound();
            self.pending_bound = self.bound;
            self.is_full = self.compressed_bound(bytes) > self.limits.compressed;
        }
        self.bound += bytes;
        self.pending_bound += bytes;
        self.count += 1;
        true
    }

    fn fits(&mut self, bytes: usize) -> bool {
        if self.is_full || self.count >= self.limits.count {
            return false;
        }
        if self.is_within(bytes) {
            return true;
        }
        // All that was added is known by now.
        self.measure();
        if self.is_within(bytes) {
            return true;
        }
        // Packing ends blocks, so it is worth it only while a good part of the payload is at stake.
        let is_packable = self.bound + bytes <= self.limits.uncompressed
            && self.pending_bound >= self.limits.compressed / 16
            && self.compression.0 != Compression::None;
        if is_packable {
            self.pack();
            self.measure();
        }
        is_packable && self.is_within(bytes)
    }

    fn is_within(&self, bytes: usize) -> bool {
        self.bound + bytes <= self.limits.uncompressed
            && self.compressed_bound(bytes) <= self.limits.compressed
    }

    fn measure(&mut self) {
        self.bound = self.encoder.payload_bound();
        self.pending_bound = self.encoder.pending_bound() + self.encoder.empty_bound();
    }

    /// At most what the payload is once it is compressed, with so many more bytes.
    fn compressed_bound(&self, more: usize) -> usize {
        let pending = self.pending_bound + more;
        // As `Compressor::bound`, of whichever kind.
        self.packed_len + pending + pending / 64 + 256 + BLOCKS_MAX
    }

    /// Compresses everything that waits, column by column.
    fn pack(&mut self) {
        self.encoder.sort();
        let (kind, level) = self.compression;
        let compressor = self
            .compressor
            .get_or_insert_with(|| Compressor::new(kind, level));
        for column in Column::ALL {
            let pending = self.encoder.pending(column);
            if pending.len() >= BLOCK_MIN {
                compressor.write(pending);
                let part = compressor.finish();
                self.packed_len += part.len();
                self.packed[column as usize].extend_from_slice(&part);
                self.encoder.take(column);
            }
        }
    }

    /// Ends the open payload, if there is one.
    pub fn finish(&mut self, out: &mut Encoded) {
        if self.count == 0 {
            return;
        }
        self.encoder.sort();
        let body = self.body();
        let count = std::mem::take(&mut self.count);
        if body.len() > self.limits.compressed {
            // Only a single point can get here.
            out.dropped(Reason::TooLarge, Class::Points, u64::from(count));
        } else {
            out.payloads.push(Draft {
                route: self.route,
                class: Class::Points,
                count,
                body,
            });
        }
        self.encoder.clear();
        self.packed.iter_mut().for_each(Vec::clear);
        self.packed_len = 0;
        self.epoch += 1;
    }

    fn body(&mut self) -> Vec<u8> {
        let (kind, level) = self.compression;
        let compressor = self
            .compressor
            .get_or_insert_with(|| Compressor::new(kind, level));
        let (mut body, mut header) = (Vec::new(), Vec::new());
        self.encoder.payload_header(&mut header);
        for column in Column::ALL {
            self.encoder.column_header(&mut header, column);
            compressor.write(&header);
            header.clear();
            let (packed, pending) = (&self.packed[column as usize], self.encoder.pending(column));
            if !packed.is_empty() {
                body.extend_from_slice(&compressor.finish());
                body.extend_from_slice(packed);
            }
            if pending.len() >= BLOCK_MIN && compressor.unflushed() > 0 {
                compressor.flush();
            }
            compressor.write(pending);
            if pending.len() >= BLOCK_MIN {
                compressor.flush();
            }
        }
        let last = compressor.finish();
        if body.is_empty() {
            return last;
        }
        body.extend_from_slice(&last);
        body.shrink_to_fit();
        body
    }
}

/// The most that a series takes beside its name and points.
fn head_bytes<'t, T: Iterator<Item = &'t str> + Clone>(head: &Head<'_, T>) -> usize {
    // A tag is a tag, or a device, or the name of a resource.
    let of_tags = head
        .tags
        .clone()
        .map(|tag| tag.len() + 2 * encode::TAG_BYTES_MAX)
        .sum::<usize>();
    head.host.len() + of_tags + encode::ROW_BYTES_MAX
}

fn host(name: &str) -> std::option::IntoIter<(&str, &str)> {
    (!name.is_empty()).then_some(("host", name)).into_iter()
}

fn origin(encoder: &mut Encoder, origin: series::Origin) -> OriginRef {
    encoder.origin(weir_columns::Origin {
        product: series::PRODUCT_AGENT as i32,
        category: origin.category() as i32,
        service: origin.service() as i32,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use weir_columns::payload;

    use super::*;
    use crate::compress::decompressed;

    const TIME: i64 = 1_700_000_000;

    /// A text that does not compress.
    fn noise(n: usize, seed: u64) -> String {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut letter = || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            char::from(
                b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"[(state >> 58) as usize],
            )
        };
        (0..n).map(|_| letter()).collect()
    }

    fn assembler(limits: PayloadLimits, compression: Compression) -> ColumnAssembler {
        ColumnAssembler::new(9, limits, (compression, 0), 1)
    }

    fn add(assembler: &mut ColumnAssembler, name: &str, tags: &[String], value: f64, out: &mut Encoded) {
        let tags = tags.iter().map(String::as_str);
        let point = Point {
            head: Head {
                host: "host",
                tags: &tags,
                timestamp: TIME,
                origin: series::Origin::Dogstatsd,
            },
            name,
            suffix: "",
            kind: PointKind::Gauge,
            value,
            interval: 10,
        };
        assembler.add(&point, None, true, out);
    }

    /// Adds a series for each tag, and checks that each payload is within the limits and that all have each series once. Returns the
    /// numbers of points.
    fn check(tags: &[String], limits: PayloadLimits, compression: Compression) -> Vec<u32> {
        let mut assembler = assembler(limits, compression);
        let mut out = Encoded::default();
        for (at, tag) in tags.iter().enumerate() {
            let name = format!("name{}", at % 7);
            add(
                &mut assembler,
                &name,
                &[tag.clone(), "env:x".into()],
                at as f64,
                &mut out,
            );
        }
        assembler.finish(&mut out);
        assembler.finish(&mut out);
        assert!(assembler.open().is_zero() && out.dropped.is_empty());
        let mut found = BTreeSet::new();
        for draft in &out.payloads {
            assert!(draft.body.len() <= limits.compressed && draft.count <= limits.count);
            let plain = decompressed(compression, &draft.body).unwrap();
            assert!(plain.len() <= limits.uncompressed, "{}", plain.len());
            let read = payload::Payload::read(&plain).unwrap();
            assert_eq!(read.series().len(), draft.count as usize);
            for series in read.series() {
                let value = series.points()[0].value as usize;
                let expected: BTreeSet<&str> = [tags[value].as_str(), "env:x"].into();
                assert_eq!(series.tags().into_iter().collect::<BTreeSet<_>>(), expected);
                assert_eq!(series.name(), format!("name{}", value % 7));
                assert_eq!(series.resources(), [("host", "host")]);
                assert!(found.insert(value));
            }
        }
        assert_eq!(found.len(), tags.len());
        out.payloads.iter().map(|draft| draft.count).collect()
    }

    #[test]
    fn payloads_end_before_each_limit() {
        let limits = PayloadLimits {
            compressed: 40_000,
            uncompressed: 200_000,
            count: 1000,
        };
        let short: Vec<String> = (0..2001).map(|i| format!("id:{i}")).collect();
        let random: Vec<String> = (0..3000).map(|i| noise(60, i)).collect();
        let long: Vec<String> = (0..300).map(|i| format!("{i}{}", "x".repeat(4000))).collect();
        for compression in [Compression::Zstd, Compression::Gzip, Compression::None] {
            assert_eq!(
                check(&short[..1001], limits, compression).iter().sum::<u32>(),
                1001
            );
            let counts = check(&random, limits, compression);
            // Well filled: 60 letters of 6 bits each, in 40,000 bytes.
            let (_, full) = counts.split_last().unwrap();
            let least = if compression == Compression::None {
                250
            } else {
                550
            };
            assert!(
                full.iter().all(|count| *count > least),
                "{compression:?}: {counts:?}"
            );
            let counts = check(&long, limits, compression);
            assert!(counts.iter().all(|count| *count <= 50), "{counts:?}");
            if compression != Compression::None {
                assert!(counts[0] >= 45, "the uncompressed limit alone: {counts:?}");
            }
        }
        assert_eq!(
            check(&short, limits, Compression::Zstd),
            [1000, 1000, 1],
            "the count alone"
        );
    }

    #[test]
    fn a_point_beyond_a_limit_is_dropped_alone() {
        let limits = PayloadLimits {
            compressed: 4000,
            uncompressed: 20_000,
            count: 10,
        };
        let mut assembler = assembler(limits, Compression::Zstd);
        let mut out = Encoded::default();
        add(&mut assembler, "before", &[], 1.0, &mut out);
        // Too large compressed, too large at all, and only at first sight.
        add(&mut assembler, "noise", &[noise(8000, 1)], 1.0, &mut out);
        add(&mut assembler, "long", &["x".repeat(20_000)], 1.0, &mut out);
        add(&mut assembler, "after", &[], 1.0, &mut out);
        add(&mut assembler, "fits", &["x".repeat(8000)], 1.0, &mut out);
        add(&mut assembler, "last", &[], 1.0, &mut out);
        assembler.finish(&mut out);
        assert_eq!(out.dropped[&Reason::TooLarge], Items::of(Class::Points, 2));
        assert_eq!(out.payloads.iter().map(|draft| draft.count).sum::<u32>(), 4);
        assert!(
            out.payloads
                .iter()
                .all(|draft| draft.body.len() <= limits.compressed)
        );
    }

    /// One series with this name and no tags: the lengths of its payloads, and how many points were dropped.
    fn one(name: &str, limits: PayloadLimits, compression: Compression) -> (Vec<usize>, Items) {
        let mut assembler = assembler(limits, compression);
        let mut out = Encoded::default();
        add(&mut assembler, name, &[], 1.0, &mut out);
        assembler.finish(&mut out);
        let dropped = out.dropped.get(&Reason::TooLarge).copied().unwrap_or_default();
        (
            out.payloads.iter().map(|draft| draft.body.len()).collect(),
            dropped,
        )
    }

    #[test]
    fn a_limit_that_is_reached_is_not_exceeded() {
        let large = PayloadLimits {
            compressed: 100_000,
            uncompressed: 100_000,
            count: 3,
        };
        let none = Items::default();
        let dropped = Items::of(Class::Points, 1);
        let tags: Vec<String> = (0..4).map(|i| format!("id:{i}")).collect();
        for (points, expected) in [(2, &[2][..]), (3, &[3]), (4, &[3, 1])] {
            assert_eq!(check(&tags[..points], large, Compression::Zstd), expected);
        }
        let name = noise(8000, 1);
        for compression in [Compression::Zstd, Compression::Gzip, Compression::None] {
            let (lengths, _) = one(&name, large, compression);
            let compressed = lengths[0];
            let reached = PayloadLimits { compressed, ..large };
            assert_eq!(one(&name, reached, compression), (vec![compressed], none));
            let exceeded = PayloadLimits {
                compressed: compressed - 1,
                ..large
            };
            assert_eq!(one(&name, exceeded, compression), (Vec::new(), dropped));
        }
        // Without compression, the most that it may take decides before it is written.
        let head = Head {
            host: "host",
            tags: &std::iter::empty(),
            timestamp: TIME,
            origin: series::Origin::Dogstatsd,
        };
        let bytes = name.len() + encode::POINT_BYTES_MAX + head_bytes(&head);
        let uncompressed = Encoder::new(1).empty_bound() + bytes;
        let reached = PayloadLimits {
            uncompressed,
            ..large
        };
        assert_eq!(one(&name, reached, Compression::None).1, none);
        let exceeded = PayloadLimits {
            uncompressed: uncompressed - 1,
            ..large
        };
        assert_eq!(one(&name, exceeded, Compression::None), (Vec::new(), dropped));
    }

    #[test]
    fn payloads_that_grow_side_by_side_have_their_own_points() {
        let limits = PayloadLimits {
            compressed: 100_000,
            uncompressed: 100_000,
            count: 3,
        };
        let mut both = [
            assembler(limits, Compression::None),
            ColumnAssembler::new(8, limits, (Compression::None, 0), 1),
        ];
        let mut out = Encoded::default();
        for at in 0..8 {
            let tags = [format!("id:{at}")];
            // The second one gets every other point, and ends its payloads at other times.
            add(&mut both[0], "first", &tags, f64::from(at), &mut out);
            if at % 2 == 0 {
                add(&mut both[1], "second", &tags, f64::from(at), &mut out);
            }
        }
        both.iter_mut().for_each(|one| one.finish(&mut out));
        let mut found = Vec::new();
        for draft in &out.payloads {
            let read = payload::Payload::read(&draft.body).unwrap();
            for series in read.series() {
                let value = series.points()[0].value;
                assert_eq!(series.tags(), [format!("id:{value}")]);
                assert_eq!(series.points()[0].timestamp, TIME);
                let name = if draft.route == 9 { "first" } else { "second" };
                assert_eq!(series.name(), name);
                found.push((draft.route, value as u32));
            }
        }
        found.sort_unstable();
        let second = (0..8).step_by(2).map(|at| (8, at));
        let expected: Vec<(u16, u32)> = second.chain((0..8).map(|at| (9, at))).collect();
        assert_eq!(found, expected);
        let counts: Vec<(u16, u32)> = out
            .payloads
            .iter()
            .map(|draft| (draft.route, draft.count))
            .collect();
        assert_eq!(counts, [(9, 3), (9, 3), (8, 3), (9, 2), (8, 1)]);
    }

    #[test]
    fn lists_of_a_batch_end_with_it_and_with_the_payload() {
        let limits = PayloadLimits {
            compressed: 100_000,
            uncompressed: 100_000,
            count: 2,
        };
        let mut assembler = assembler(limits, Compression::None);
        let mut out = Encoded::default();
        for (batch, tag) in ["a", "b"].into_iter().enumerate() {
            assembler.begin_batch();
            for at in 0..3 {
                let tags = [tag.to_owned()];
                let tags = tags.iter().map(String::as_str);
                let point = Point {
                    head: Head {
                        host: "",
                        tags: &tags,
                        timestamp: TIME + at,
                        origin: series::Origin::Agent,
                    },
                    name: "n",
                    suffix: ".s",
                    kind: PointKind::Rate,
                    value: batch as f64,
                    interval: 10,
                };
                assembler.add(&point, Some(5), true, &mut out);
            }
        }
        assembler.finish(&mut out);
        let mut found = Vec::new();
        for draft in &out.payloads {
            let read = payload::Payload::read(&draft.body).unwrap();
            for series in read.series() {
                assert_eq!((series.name(), series.resources()), ("n.s", &[][..]));
                found.push((series.points()[0].value, series.tags()[0].to_owned()));
            }
        }
        let (a, b) = ((0.0, "a".to_owned()), (1.0, "b".to_owned()));
        assert_eq!(found, [a.clone(), a.clone(), a, b.clone(), b.clone(), b]);
    }
}
