//! Series without order give the records of a table that has them, whatever the number of threads.

use std::collections::HashMap;

use proptest::prelude::*;
use weir_protocol::Kind;
use weir_state::{
    Bounds, ExactSum, Facts, Header, Identity, Members, Packer, Rows, State, Table, TooLarge, encode_rows,
};

use crate::merge::{facts, header, parts, table};

#[derive(Default)]
struct Scattered {
    texts: Vec<String>,
    series: Vec<(Kind, Vec<Option<u32>>, Facts, State)>,
}

impl Scattered {
    /// The series of a table, in an order that follows from the seed.
    fn of(table: &Table, seed: u64) -> Self {
        let mut all: Vec<_> = table.iter().collect();
        let scattered = |at: usize| {
            (at as u64 ^ seed)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(23)
        };
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.sort_by_key(|at| scattered(*at));
        let (mut rows, mut numbers) = (Scattered::default(), HashMap::new());
        for at in order {
            let (identity, facts, state) = &mut all[at];
            let mut number = |text: &str| {
                *numbers.entry(text.to_owned()).or_insert_with(|| {
                    rows.texts.push(text.to_owned());
                    rows.texts.len() as u32 - 1
                })
            };
            let mut key = vec![Some(number(&identity.name))];
            key.push(identity.host.as_deref().map(&mut number));
            key.push(identity.integration.as_deref().map(&mut number));
            key.extend(identity.tags.iter().map(|tag| Some(number(tag))));
            rows.series.push((identity.kind, key, *facts, state.clone()));
        }
        rows
    }

    fn encode(&self, header: &Header, threads: usize) -> (Vec<Vec<u8>>, TooLarge) {
        encode_rows(self, header, threads, &mut Packer::default())
    }
}

impl Rows for Scattered {
    fn texts(&self) -> usize {
        self.texts.len()
    }

    fn text(&self, number: u32) -> &str {
        &self.texts[number as usize]
    }

    fn len(&self) -> usize {
        self.series.len()
    }

    fn kind(&self, at: u32) -> Kind {
        self.series[at as usize].0
    }

    fn key(&self, at: u32) -> impl Iterator<Item = Option<u32>> {
        self.series[at as usize].1.iter().copied()
    }

    fn value(&self, at: u32) -> (Facts, &State) {
        let (_, _, facts, state) = &self.series[at as usize];
        (*facts, state)
    }
}

fn counter(name: &str, tags: &[&str]) -> Identity {
    Identity::new(Kind::Counter, name, Some("host"), None, tags.iter().copied())
}

fn check(table: &Table) {
    let expected = table.encode(&header());
    for threads in 1..5 {
        let rows = Scattered::of(table, threads as u64);
        let (records, too_large) = rows.encode(&header(), threads);
        assert_eq!(too_large.series, expected.1.series);
        assert!(records == expected.0, "other bytes from {threads} threads");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_series_in_any_order_give_the_records_of_a_table(parts in parts(), seed in any::<u64>()) {
        let table = table(&parts);
        let expected = table.encode(&header());
        let found = Scattered::of(&table, seed).encode(&header(), 1);
        prop_assert_eq!(found.0, expected.0);
    }
}

/// So many series that threads divide the sorting, the measuring and the records, with so many texts that places do not hold all tags.
#[test]
fn any_number_of_threads_gives_the_same_records() {
    let mut table = Table::new(Bounds::NONE);
    for at in 0..60_000_u32 {
        let numbered = |key: char, of: u32| format!("{key}:{}", at.wrapping_mul(of) % 70_000);
        let tags = ["a", "b", "c", "d", "e", "f"].map(str::to_owned);
        let tags = [&tags[..], &[numbered('g', 3), numbered('h', 7919)]].concat();
        let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
        let identity = counter(if at % 3 == 0 { "name" } else { "other" }, &tags);
        table.add(
            identity,
            facts(i64::from(at)),
            State::Counter(ExactSum::from(f64::from(at))),
        );
    }
    assert!(table.encode(&header()).0.len() > 3);
    check(&table);
}

/// Large sets are divided, and what no record can hold is counted, between other series.
#[test]
fn large_states_are_divided_or_counted() {
    let mut table = Table::new(Bounds::NONE);
    let long = "x".repeat(1_100_000);
    for number in 0..3u8 {
        let members = (0..2000u32).map(|at| [vec![number; 400], at.to_le_bytes().to_vec()].concat());
        let members: Vec<Vec<u8>> = members.collect();
        let set = Identity::new(Kind::Set, &format!("set{number}"), None, None, ["a"]);
        let members = Members::exact(members.iter().map(Vec::as_slice));
        table.add(set, facts(5), State::Set(members));
        for name in [format!("set{number}.counter"), format!("{long}{number}")] {
            table.add(
                counter(&name, &["b"]),
                facts(5),
                State::Counter(ExactSum::from(1.0)),
            );
        }
    }
    assert_eq!(table.encode(&header()).1.series, 3);
    check(&table);
    check(&Table::default());
}
