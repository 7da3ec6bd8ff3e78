//! Series in any order, which refer to their texts by number, as records. Nothing is built for a series beside some words to sort it by, and
//! several threads share the work. The bytes are those of a [`crate::Table`] with the same series.

use std::cmp::Ordering;
use std::ops::Range;

use weir_protocol::Kind;

use crate::division::{is_divided, pieces};
use crate::record::{ALL_SUFFIXES, BODY_BYTES_MAX, HAS_HOST, HAS_INTEGRATION, HAS_SUFFIXES, SeriesHead};
use crate::wire::Writer;
use crate::{AgentId, Facts, Header, Packer, State, TooLarge, threads};

/// The most that a number of a text or a count can take in a body of this size.
const NUMBER_BYTES: usize = 3;

/// The most that a series takes beside its texts and its state: kind, form, number of tags, time, suffixes.
const HEAD_BYTES: usize = 2 + NUMBER_BYTES + 10 + 5;

/// Places whose states one job measures.
const MEASURED: usize = 4096;

/// Words of a place that most comparisons need no more than.
const WORDS: usize = 4;

/// Bytes that the encoding takes for each series: its place, and its piece.
pub const ROW_BYTES: usize = size_of::<Place>() + size_of::<Piece>();

/// Bytes that it takes for each text: the order of texts, and a number for each place in it.
pub const TEXT_BYTES: usize = 3 * size_of::<u32>();

/// Bytes that one thread takes: a body, the same compressed, and a compressor.
pub const THREAD_BYTES: usize = 4 << 20;

/// Series without order. No two of them have the same kind and texts.
pub trait Rows: Sync {
    /// Number of texts. Each is there once.
    fn texts(&self) -> usize;

    fn text(&self, number: u32) -> &str;

    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn kind(&self, at: u32) -> Kind;

    /// The numbers of its texts: name, host, integration, and tags by ascending text. `None`: it has no host, or no integration.
    fn key(&self, at: u32) -> impl Iterator<Item = Option<u32>>;

    fn value(&self, at: u32) -> (Facts, &State);
}

/// A series in the order of records.
#[derive(Clone, Copy)]
struct Place {
    /// As much of its kind and texts as fits, so that places compare as their series do, or equal.
    prefix: [u32; WORDS],
    at: u32,
}

/// A state that a record holds whole: that of a series, or a piece of a large set.
#[derive(Clone, Copy)]
struct Piece {
    at: u32,
    /// Which one of a large set.
    number: u32,
    bytes: u32,
}

/// Kept by one thread from record to record.
#[derive(Default)]
struct Scratch {
    packer: Packer,
    /// For each text its number in the record under construction.
    numbers: Vec<u32>,
}

/// Number of a text that is not in the record under construction.
const UNUSED: u32 = u32::MAX;

/// The records of these series: at least one, each small enough. `first`: the header of the first; those that follow have the next
/// numbers. The number of threads does not change the result.
pub fn encode_rows<R: Rows>(
    rows: &R,
    first: &Header,
    threads: usize,
    packer: &mut Packer,
) -> (Vec<Vec<u8>>, TooLarge) {
    let threads = if rows.len() < threads::ALONE { 1 } else { threads };
    let encoding = Encoding::new(rows, first.agent, threads);
    let mut pieces = encoding.pieces(threads);
    let (parts, too_large) = encoding.parts(&mut pieces);
    let count = parts.len() as u32;
    let mut scratch = Scratch {
        packer: std::mem::take(packer),
        ..Scratch::default()
    };
    let records = threads::map(
        threads,
        parts.len(),
        &mut scratch,
        Scratch::default,
        |scratch, part| {
            let range = parts[part].clone();
            let header = first.of_part(part as u32, count, range.start as u64);
            let body = encoding.body(&pieces[range], header.bucket_start, &mut scratch.numbers);
            scratch.packer.pack(&header, &body)
        },
    );
    *packer = scratch.packer;
    (records, too_large)
}

struct Encoding<'r, R> {
    rows: &'r R,
    own: AgentId,
    /// Numbers of texts by ascending text, and the place of each in there.
    order: Vec<u32>,
    places: Vec<u32>,
}

impl<'r, R: Rows> Encoding<'r, R> {
    fn new(rows: &'r R, own: AgentId, threads: usize) -> Self {
        let mut order: Vec<u32> = (0..rows.texts() as u32).collect();
        threads::sort(threads, &mut order, &|one: &u32, other: &u32| {
            rows.text(*one).cmp(rows.text(*other))
        });
        let mut places = vec![0; order.len()];
        for (place, text) in (0..).zip(&order) {
            places[*text as usize] = place;
        }
        Encoding {
            rows,
            own,
            order,
            places,
        }
    }

    /// The places of a series' texts, from one on; zero: it has none.
    fn ranks(&self, at: u32) -> impl Iterator<Item = u32> {
        let key = self.rows.key(at);
        key.map(|text| text.map_or(0, |text| self.places[text as usize] + 1))
    }

    fn place(&self, at: u32) -> Place {
        // A rank is at most the number of texts.
        let bits = u32::BITS - (self.order.len() as u32).leading_zeros();
        let (mut prefix, mut left) = (0u128, u128::BITS);
        let mut put = |rank: u32, bits: u32| {
            // Once one does not fit, no later one may take its place.
            left = left.saturating_sub(bits);
            if left > 0 {
                prefix |= u128::from(rank) << left;
            }
        };
        let mut ranks = self.ranks(at);
        put(ranks.next().unwrap_or_default(), bits);
        put(self.rows.kind(at) as u32, Kind::COUNT.ilog2() + 1);
        ranks.for_each(|rank| put(rank, bits));
        let word = |number: u32| (prefix >> (u128::BITS - (number + 1) * u32::BITS)) as u32;
        Place {
            prefix: [word(0), word(1), word(2), word(3)],
            at,
        }
    }

    /// By name, kind, host, integration and tags.
    fn order(&self, one: &Place, other: &Place) -> Ordering {
        one.prefix.cmp(&other.prefix).then_with(|| {
            let (mut ranks, mut others) = (self.ranks(one.at), self.ranks(other.at));
            let kinds = self.rows.kind(one.at).cmp(&self.rows.kind(other.at));
            let names = ranks.next().cmp(&others.next());
            names.then(kinds).then_with(|| ranks.cmp(others))
        })
    }

    /// The states in their order, measured.
    fn pieces(&self, threads: usize) -> Vec<Piece> {
        let mut places: Vec<Place> = (0..self.rows.len() as u32).map(|at| self.place(at)).collect();
        threads::sort(threads, &mut places, &|one: &Place, other: &Place| {
            self.order(one, other)
        });
        let chunks: Vec<&[Place]> = places.chunks(MEASURED).collect();
        let measured = threads::map(
            threads,
            chunks.len(),
            &mut Writer::default(),
            Writer::default,
            |writer, job| self.measured(chunks[job], writer),
        );
        drop(places);
        let mut pieces = Vec::with_capacity(measured.iter().map(Vec::len).sum());
        measured.iter().for_each(|some| pieces.extend_from_slice(some));
        pieces
    }

    fn measured(&self, places: &[Place], writer: &mut Writer) -> Vec<Piece> {
        let mut measured = Vec::with_capacity(places.len());
        for Place { at, .. } in places {
            let (_, state) = self.rows.value(*at);
            let mut add = |number: u32, state: &State| {
                writer.bytes.clear();
                state.write(self.own, writer);
                let bytes = writer.bytes.len() as u32;
                measured.push(Piece {
                    at: *at,
                    number,
                    bytes,
                });
            };
            match is_divided(state) {
                true => (0..)
                    .zip(pieces(state))
                    .for_each(|(number, piece)| add(number, &piece)),
                false => add(0, state),
            }
        }
        measured
    }

    /// The pieces of each record. Removes those that no record can hold.
    fn parts(&self, pieces: &mut Vec<Piece>) -> (Vec<Range<usize>>, TooLarge) {
        let mut stamps = Stamps {
            parts: vec![0; self.order.len()],
            new: Vec::new(),
        };
        let (mut starts, mut bytes, mut kept) = (vec![0], 2 * NUMBER_BYTES, 0);
        let (mut last, mut lost, mut too_large) = (None, None, TooLarge::default());
        pieces.retain(|piece| {
            let part = starts.len() as u32;
            let more = stamps.add(self.rows, piece, part);
            if last == Some(piece.at) || bytes + more > BODY_BYTES_MAX {
                stamps.take_back();
                let alone = 2 * NUMBER_BYTES + stamps.add(self.rows, piece, part + 1);
                if alone > BODY_BYTES_MAX {
                    stamps.take_back();
                    too_large.series += u64::from(lost != Some(piece.at));
                    lost = Some(piece.at);
                    return false;
                }
                starts.push(kept);
                bytes = alone;
            } else {
                bytes += more;
            }
            last = Some(piece.at);
            kept += 1;
            true
        });
        let ends = starts.iter().copied().skip(1).chain([kept]);
        let ranges = starts.iter().zip(ends).map(|(start, end)| *start..end);
        (ranges.collect(), too_large)
    }

    /// The body of a record.
    fn body(&self, pieces: &[Piece], bucket_start: i64, numbers: &mut Vec<u32>) -> Vec<u8> {
        numbers.resize(self.order.len(), UNUSED);
        let mut used = Vec::new();
        for text in pieces.iter().flat_map(|piece| self.rows.key(piece.at).flatten()) {
            if numbers[text as usize] == UNUSED {
                numbers[text as usize] = 0;
                used.push(self.places[text as usize]);
            }
        }
        used.sort_unstable();
        let mut writer = Writer::default();
        writer.number(used.len() as u64);
        for (number, place) in (0..).zip(&used) {
            let text = self.order[*place as usize];
            numbers[text as usize] = number;
            writer.block(self.rows.text(text).as_bytes());
        }
        writer.number(pieces.len() as u64);
        for piece in pieces {
            self.write(piece, bucket_start, numbers, &mut writer);
        }
        for place in used {
            numbers[self.order[place as usize] as usize] = UNUSED;
        }
        writer.bytes
    }

    fn write(&self, piece: &Piece, bucket_start: i64, numbers: &[u32], writer: &mut Writer) {
        let (facts, state) = self.rows.value(piece.at);
        let key = || self.rows.key(piece.at);
        let (mut form, mut tags) = (0, 0);
        for (part, text) in key().enumerate() {
            match (part, text) {
                (0, _) | (_, None) => {}
                (1, Some(_)) => form |= HAS_HOST,
                (2, Some(_)) => form |= HAS_INTEGRATION,
                (_, Some(_)) => tags += 1,
            }
        }
        if facts.suffixes != ALL_SUFFIXES {
            form |= HAS_SUFFIXES;
        }
        let head = SeriesHead {
            kind: self.rows.kind(piece.at),
            form,
            tags,
            seen: facts.seen.wrapping_sub(bucket_start),
            suffixes: facts.suffixes,
        };
        let references = key().flatten().map(|text| u64::from(numbers[text as usize]));
        head.write(references, writer);
        match is_divided(state) {
            true => pieces(state)[piece.number as usize].write(self.own, writer),
            false => state.write(self.own, writer),
        }
    }
}

/// The last record that each text is in, from one on.
struct Stamps {
    parts: Vec<u32>,
    /// Texts that were new with the last piece.
    new: Vec<u32>,
}

impl Stamps {
    /// The most that a piece adds to a record.
    fn add(&mut self, rows: &impl Rows, piece: &Piece, part: u32) -> usize {
        self.new.clear();
        let mut bytes = piece.bytes as usize + HEAD_BYTES;
        for text in rows.key(piece.at).flatten() {
            bytes += NUMBER_BYTES;
            let stamp = &mut self.parts[text as usize];
            if *stamp != part {
                *stamp = part;
                self.new.push(text);
                bytes += rows.text(text).len() + NUMBER_BYTES;
            }
        }
        bytes
    }

    /// The last piece is not in its record after all.
    fn take_back(&mut self) {
        for text in self.new.drain(..) {
            self.parts[text as usize] = 0;
        }
    }
}
