//! Message parts after the name: values with type and rate, and complete events and service checks.

use super::builder::{Builder, draw};
use super::{Entry, GAUGE, KINDS, Notice, Piece, SET};
use crate::compose::SERIAL_DIGITS;
use crate::manifest::Decimal;
use crate::profile::{Value, ValueKind};
use crate::rng::{self, Rng};
use crate::words;
use std::fmt::Write as _;

/// Space for a number that is inserted when the message is composed.
const SERIAL_ROOM: &str = "000000000000";
const _: () = assert!(SERIAL_ROOM.len() == SERIAL_DIGITS);

/// A number as text and as value.
struct Number {
    text: String,
    value: Decimal,
}

fn number(rng: &mut Rng, value: &Value) -> Number {
    let with_fraction = rng.chance(value.float_p);
    let whole: i64 = match value.kind {
        ValueKind::Lognormal { median, sigma } => {
            (median * rng::exp(sigma * rng.normal())).clamp(0.0, 999_999.0) as i64
        }
        ValueKind::Uniform { min, max } => {
            let span = (i128::from(max) - i128::from(min) + 1) as u128;
            (i128::from(min) + ((u128::from(rng.next_u64()) * span) >> 64) as i128) as i64
        }
        ValueKind::Constant(value) => value,
        ValueKind::SmallInts => rng.below(1001) as i64,
        ValueKind::Sequence => unreachable!("written by the composer"),
    };
    if !with_fraction {
        return Number {
            text: whole.to_string(),
            value: Decimal::from_int(whole),
        };
    }
    // Beyond 2^53 a double has no fraction, so it is written as an integer.
    if whole.unsigned_abs() >= 1 << 53 {
        let text = format!("{}", whole as f64);
        let value = text.parse().expect("an integer");
        return Number { text, value };
    }
    let fraction = rng.below(10u64.pow(value.decimals));
    let sign = if whole < 0 { "-" } else { "" };
    let text = format!(
        "{sign}{}.{fraction:0width$}",
        whole.unsigned_abs(),
        width = value.decimals as usize
    );
    let value = text.parse().expect("a plain decimal");
    Number { text, value }
}

/// `1/n` as text that reads back as the nearest double.
fn rate_text(n: u32) -> String {
    format!("{}", 1.0 / f64::from(n))
}

pub(super) fn build_entries(b: &mut Builder<'_>, seed: u64, kind: usize) -> Vec<Entry> {
    let p = b.profile;
    let mut rng = Rng::new(seed, "values", kind as u64);
    let letter = KINDS[kind];
    let is_set = kind == SET as usize;
    let sampled = !is_set && kind != GAUGE as usize;
    // Numbered values are inserted when a message is composed; only the rate is drawn.
    let numbered = p.value.kind == ValueKind::Sequence;
    let count = if is_set {
        if numbered { 1 } else { p.set_members as usize }
    } else {
        p.value.pool as usize
    };
    let mut entries = Vec::with_capacity(count);
    for index in 0..count {
        let packed = !is_set && rng.chance(p.multivalue_p);
        let samples = if packed { draw(&mut rng, p.multivalue_n) } else { 1 };
        let mut text = String::new();
        let mut sum = Decimal::ZERO;
        let (mut min, mut max, mut last) = (None, None, Decimal::ZERO);
        for position in 0..if numbered { 0 } else { samples } {
            if position > 0 {
                text.push(':');
            }
            if is_set {
                // Unique by the index, of varying length.
                let tail = rng.below(1 << 20);
                let _ = write!(text, "u{index:x}-{tail:x}");
                continue;
            }
            let number = number(&mut rng, &p.value);
            text.push_str(&number.text);
            sum.micros += number.value.micros;
            min = Some(min.map_or(number.value, |m: Decimal| m.min(number.value)));
            max = Some(max.map_or(number.value, |m: Decimal| m.max(number.value)));
            last = number.value;
        }
        text.push('|');
        text.push_str(letter);
        let mut weight = 1;
        if sampled && rng.chance(p.sample_p) {
            weight = p.sample_rates[rng.below(p.sample_rates.len() as u64) as usize];
            text.push_str("|@");
            text.push_str(&rate_text(weight));
        }
        let text = b.store(&text);
        entries.push(Entry {
            text,
            samples: samples as u32,
            weight,
            sum,
            min: min.unwrap_or_default(),
            max: max.unwrap_or_default(),
            last,
        });
    }
    entries
}

pub(super) fn build_events(b: &mut Builder<'_>, seed: u64) -> Vec<Notice> {
    let mut rng = Rng::new(seed, "events", 0);
    let pick = |rng: &mut Rng, words: &[&'static str]| words[rng.below(words.len() as u64) as usize];
    (0..256)
        .map(|index| {
            let service = pick(&mut rng, words::SERVICES);
            let title = format!("{} {} event {index}", service, pick(&mut rng, words::COMPONENTS));
            let text: Vec<&str> = (0..rng.between(3, 40))
                .map(|_| pick(&mut rng, words::METRICS))
                .collect();
            let text = format!("{} {SERIAL_ROOM}", text.join(" "));
            let mut head = format!("_e{{{},{}}}:{title}|{text}", title.len(), text.len());
            let number = (head.len() - SERIAL_DIGITS) as u32;
            if rng.chance(0.5) {
                let _ = write!(head, "|h:host-{}", rng.below(100));
            }
            if rng.chance(0.5) {
                let _ = write!(head, "|k:key-{}", rng.below(100));
            }
            if rng.chance(0.3) {
                head.push_str("|p:low");
            }
            if rng.chance(0.5) {
                let kinds = ["error", "warning", "info", "success"];
                let _ = write!(head, "|t:{}", pick(&mut rng, &kinds));
            }
            Notice {
                head: b.store(&head),
                after: Piece::default(),
                key: title,
                number: Some(number),
            }
        })
        .collect()
}

pub(super) fn build_checks(b: &mut Builder<'_>, seed: u64) -> Vec<Notice> {
    let mut rng = Rng::new(seed, "checks", 0);
    let pick = |rng: &mut Rng, words: &[&'static str]| words[rng.below(words.len() as u64) as usize];
    (0..64)
        .map(|index| {
            let status = [0, 0, 0, 1, 2, 3][rng.below(6) as usize];
            let name = format!(
                "{}.{}.can_connect",
                pick(&mut rng, words::SERVICES),
                pick(&mut rng, words::COMPONENTS)
            );
            // Every second check has a text.
            let (after, number) = if index % 2 == 0 {
                let text = format!("|m:state {SERIAL_ROOM} reached");
                (b.store(&text), Some("|m:state ".len() as u32))
            } else {
                (Piece::default(), None)
            };
            Notice {
                head: b.store(&format!("_sc|{name}|{status}")),
                after,
                key: format!("{name}|{status}"),
                number,
            }
        })
        .collect()
}
