//! `tests/vectors/sketches.jsonl`: what this sketch makes of values, for the sketches of the clients.
#![allow(clippy::disallowed_methods, reason = "the test reads the vectors")]

use std::fmt::Write as _;
use weir_sketch::{BIAS, GAMMA, NORM_MIN, Sketch, key};

const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors/sketches.jsonl");
/// Keys whose boundary lies in the range that clients look up in tables: below 2^64.
const KEYS: i16 = 4199;

/// The smallest value above a key, by bisection.
fn boundary(k: i16) -> f64 {
    if k == 0 {
        return NORM_MIN;
    }
    let middle = GAMMA.powi(i32::from(k) - BIAS);
    let (mut below, mut above) = (middle.to_bits(), (middle * GAMMA).to_bits());
    while above - below > 1 {
        let value = below + (above - below) / 2;
        if key(f64::from_bits(value)) > k {
            above = value;
        } else {
            below = value;
        }
    }
    f64::from_bits(above)
}

/// FNV-1a of the bits of all boundaries, least significant byte first.
fn digest() -> u64 {
    let bytes = (1..=KEYS).flat_map(|k| boundary(k).to_bits().to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Values between 0 and 1 from a fixed generator.
fn random(seed: u64) -> impl Iterator<Item = f64> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 11) as f64 / (1u64 << 53) as f64
    })
}

fn list(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(",")
}

fn sketch_line(id: &str, values: &[(f64, u64)]) -> String {
    let mut sketch = Sketch::new();
    values.iter().for_each(|(v, n)| sketch.insert(*v, *n));
    let mut line = format!("{{\"id\":\"{id}\",");
    if values.iter().all(|(_, n)| *n == 1) {
        let values = list(values.iter().map(|(v, _)| format!("{v:?}")));
        write!(line, "\"values\":[{values}],").unwrap();
    } else {
        let values = list(values.iter().map(|(v, n)| format!("[{v:?},{n}]")));
        write!(line, "\"weighted\":[{values}],").unwrap();
    }
    let bins = list(sketch.bins().iter().map(|b| format!("[{},{}]", b.k, b.n)));
    let (cnt, sum, min, max) = (sketch.cnt(), sketch.sum(), sketch.min(), sketch.max());
    write!(
        line,
        "\"cnt\":{cnt},\"sum\":{sum:?},\"min\":{min:?},\"max\":{max:?},\"bins\":[{bins}]}}"
    )
    .unwrap();
    line
}

/// One sample in the middle of each bin from `first` to `last`: too many keys for one sketch.
fn collapsed_line(first: i16, last: i16) -> String {
    let mut sketch = Sketch::new();
    (first..=last).for_each(|k| sketch.insert(weir_sketch::lower(k), 1));
    let bins = sketch.bins();
    let (lowest, highest) = (bins[0], bins[bins.len() - 1]);
    format!(
        "{{\"id\":\"collapsed\",\"each_key\":[{first},{last}],\"bins_len\":{},\"lowest\":[{},{}],\"highest\":[{},{}]}}",
        bins.len(),
        lowest.k,
        lowest.n,
        highest.k,
        highest.n
    )
}

fn vectors() -> String {
    let once = |values: &[f64]| values.iter().map(|v| (*v, 1)).collect::<Vec<_>>();
    let spread = |seed, n, low: f64, decades: f64| {
        let values = random(seed).map(move |r| 10f64.powf(low + r * decades)).take(n);
        values.map(|v| (v, 1)).collect::<Vec<_>>()
    };
    let mut lines = vec![format!(
        "{{\"id\":\"boundaries\",\"keys\":{KEYS},\"fnv1a\":\"{:016x}\"}}",
        digest()
    )];
    let beside = [0, 1, 2, 29, 800, 1337, 1338, 1339, 2000, 2675, 4198]
        .iter()
        .flat_map(|k| {
            let above = boundary(*k);
            let below = f64::from_bits(above.to_bits() - 1);
            [below, above, -below, -above].map(|v| format!("[{v:?},{}]", key(v)))
        });
    lines.push(format!("{{\"id\":\"keys\",\"keys\":[{}]}}", list(beside)));
    lines.push(sketch_line("three", &once(&[1.0, 1.0, 10.0])));
    lines.push(sketch_line("signs", &once(&[-2.5, 0.0, 1e-10, 42.0, -0.0])));
    lines.push(sketch_line(
        "extremes",
        &once(&[
            f64::MAX,
            -1e300,
            f64::MIN_POSITIVE,
            9007199254740992.0,
            1e-9,
            1.8446744073709552e19,
            5e-324,
            -1e-9,
        ]),
    ));
    lines.push(sketch_line("three decades", &spread(1, 600, 0.0, 3.0)));
    lines.push(sketch_line("wide", &spread(2, 400, -8.0, 26.0)));
    let mut both = spread(3, 300, -2.0, 5.0);
    both.iter_mut().step_by(3).for_each(|(v, _)| *v = -*v);
    both.extend([(0.0, 1); 40]);
    lines.push(sketch_line("both signs and zero", &both));
    let full = u64::from(u32::MAX);
    lines.push(sketch_line(
        "counts beyond 32 bits",
        &[
            (1.0, full),
            (1.0, 3),
            (2.0, full),
            (3.0, 2 * full + 7),
            (4.0, 70_000),
            (5.0, 1),
        ],
    ));
    lines.push(collapsed_line(-2500, 2499));
    lines.push(collapsed_line(1, 4096));
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[test]
fn vectors_are_what_the_sketch_makes() {
    let written = std::fs::read_to_string(VECTORS).expect("the vectors are in the repository");
    for (written, made) in written.lines().zip(vectors().lines()) {
        assert_eq!(written, made);
    }
    assert_eq!(written, vectors(), "child_writes_vectors writes the file");
}

#[test]
#[ignore = "child: writes the vectors"]
fn child_writes_vectors() {
    std::fs::write(VECTORS, vectors()).expect("the folder is there");
}

/// Around what a counter of the dense window holds, with either sign, one at a time and all at once.
#[test]
fn a_key_that_a_counter_cannot_hold_is_counted_all_the_same() {
    for (sign, many) in [1.0, -1.0]
        .into_iter()
        .flat_map(|sign| (250..=260).map(move |many| (sign, many)))
    {
        let mut sketch = Sketch::new();
        (0..200).for_each(|i| sketch.insert_one(if i % 2 == 0 { 1.0 } else { -1.0 }));
        sketch.insert(sign, u64::from(many));
        (0..many).for_each(|_| sketch.insert_one(sign));
        let (negative, positive) = if sign < 0.0 { (2 * many, 0) } else { (0, 2 * many) };
        let bins: Vec<(i16, u32)> = sketch.bins().iter().map(|bin| (bin.k, bin.n)).collect();
        assert_eq!(bins, [(-1338, 100 + negative), (1338, 100 + positive)]);
    }
}
