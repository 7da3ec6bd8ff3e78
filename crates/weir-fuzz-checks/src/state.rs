//! Records of state: any bytes are a record or are refused with a reason, and each record has one encoding only.

use weir_state::{Bounds, Header, Record, RecordSeries, Table, decode_body};

/// Bytes are looked at as a record, and as the body of one, which no checksum stands before.
pub fn state(bytes: &[u8]) {
    let decoded = Record::decode(bytes);
    let one_by_one = count_one_by_one(bytes);
    assert_eq!(decoded.as_ref().map(Record::len).ok(), one_by_one);
    check(decoded);
    let header = Header {
        bucket_start: 1_700_000_000,
        bucket_width: 10,
        parts: 1,
        ..Header::default()
    };
    check(decode_body(header, bytes.to_vec()));
}

/// Number of series of a record that is read one series at a time.
fn count_one_by_one(bytes: &[u8]) -> Option<usize> {
    let (mut series, mut count) = (RecordSeries::decode(bytes).ok()?, 0);
    while series.next_series().ok()?.is_some() {
        count += 1;
    }
    Some(count)
}

fn check(decoded: Result<Record, weir_state::Error>) {
    let record = match decoded {
        Ok(record) => record,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let mut table = Table::new(Bounds::NONE);
    table.add_record(&record);
    let (written, too_large) = table.encode(&record.header);
    assert_eq!(too_large.series, 0);
    if let [one] = &written[..] {
        let again = Record::decode(one).expect("what was written is a record");
        assert!(again.body() == record.body(), "another way to write the same");
    }
    // A state stays valid when it becomes a summary or is repeated.
    let mut small = Table::new(Bounds {
        members: 1,
        member_bytes: 1,
        samples: 1,
    });
    small.add_record(&record);
    small.add_record(&record);
    assert_eq!(small.len(), record.len());
}
