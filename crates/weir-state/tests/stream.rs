//! A stream of series as bytes.

use proptest::prelude::*;
use weir_protocol::Kind;
use weir_state::{AgentId, Entry, ExactSum, Facts, SeriesName, State, StreamReader, StreamWriter};

const AGENT: AgentId = AgentId([3; 16]);

fn entry<'a>(number: u32, named: Option<SeriesName<'a>>, value: f64, seen: i64) -> Entry<'a> {
    Entry {
        number,
        kind: Kind::Counter,
        named,
        facts: Facts { seen, suffixes: 5 },
        state: State::Counter(ExactSum::from(value)),
    }
}

fn read(bytes: &[u8]) -> Result<Vec<Entry<'_>>, weir_state::Error> {
    let mut reader = StreamReader::new(AGENT, bytes);
    std::iter::from_fn(|| reader.next_entry().transpose()).collect()
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        name in "[a-zü.]{1,20}",
        host in proptest::option::of("[a-z]{0,5}"),
        tags in proptest::collection::btree_set("[a-z]{1,5}:[a-z]{0,5}", 0..5),
        number in any::<u32>(),
        value in -1e9f64..1e9,
        seen in any::<i64>(),
    ) {
        let named = SeriesName {
            name: &name,
            host: host.as_deref(),
            integration: None,
            tags: tags.iter().map(String::as_str).collect(),
        };
        let entries = [entry(number, Some(named), value, seen), entry(number, None, value, seen)];
        let mut writer = StreamWriter::new(AGENT);
        entries.iter().for_each(|entry| writer.add(entry));
        let bytes = writer.finish();
        prop_assert_eq!(read(&bytes).unwrap(), entries);
        prop_assert!(read(&bytes[..bytes.len() - 1]).is_err());
    }

    /// They give entries or an error, and take no more memory than they have bytes.
    #[test]
    fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(&bytes);
    }
}

#[test]
fn tags_are_sorted_when_they_are_read() {
    let named = SeriesName {
        name: "n",
        host: None,
        integration: Some("check"),
        tags: vec!["b", "a", "b"],
    };
    let mut writer = StreamWriter::new(AGENT);
    assert!(writer.written().is_empty());
    writer.add(&entry(1, Some(named), 1.0, 2));
    let bytes = writer.finish();
    let named = read(&bytes).unwrap().remove(0).named.unwrap();
    assert_eq!(
        (named.tags.clone(), named.integration),
        (vec!["a", "b"], Some("check"))
    );
    assert_eq!(&*named.identity(Kind::Counter).tags[1], "b");
}
