//! The scrape while a flush is on its way.

use crate::support;

use std::collections::BTreeMap;
use std::sync::Arc;

use support::*;
use weir_aggregate::{BATCH_ROWS, Weights};
use weir_output::prometheus::{Format, Scrape};

/// The type of each metric that is shown.
fn types(scrape: &Arc<Scrape>) -> BTreeMap<String, String> {
    let mut rendering = scrape.render(Format::Text, false, &[], 0);
    let body: Vec<u8> = std::iter::from_fn(|| rendering.next_piece()).flatten().collect();
    let text = String::from_utf8(body).unwrap();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types
        .map(|line| {
            let (name, of_type) = line.split_once(' ').unwrap();
            (name.to_owned(), of_type.to_owned())
        })
        .collect()
}

/// Several kinds of one name come in several parts of one flush, in an order that depends on hashes. Who scraped in between saw
/// the plain name at one kind and, a moment later, at another.
#[test]
fn a_name_of_several_kinds_has_one_owner_whenever_it_is_scraped() {
    let names = BATCH_ROWS;
    let lines = |i: usize| format!("m{i}:1|g\nm{i}:2|ms\nm{i}:x|s\n");
    let messages: String = (0..names).map(lines).collect();
    let parts = batches(&messages);
    assert!(parts.len() > 2, "{} parts", parts.len());
    let scrape = Arc::new(Scrape::new(
        remote_write("").as_scrape(),
        Weights::Exact,
        usize::MAX,
    ));
    let mut seen: BTreeMap<String, String> = BTreeMap::new();
    for part in &parts {
        scrape.take(part, 0);
        for (name, of_type) in types(&scrape) {
            let before = seen.insert(name.clone(), of_type.clone());
            assert!(
                before.as_ref().is_none_or(|before| *before == of_type),
                "{name} was a {before:?} and is a {of_type}"
            );
        }
    }
    assert_eq!(seen.len(), 3 * names);
    // A gauge comes before a set and a timing.
    let plain = (0..names).filter(|i| seen[&format!("m{i}")] == "gauge").count();
    assert_eq!(plain, names);
    assert_eq!(scrape.status().renamed, 2 * names);
}
