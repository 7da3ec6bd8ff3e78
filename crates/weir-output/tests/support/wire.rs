//! Reads samples of one metric out of requests, for tests that look at values and times alone. What a payload is as a whole is
//! left to its owners' decoders.

use weir_output::protobuf::{Content, for_each_field};

/// When, and what: a number, or NaN for the end of a series. Times in the unit of the protocol.
pub type Samples = Vec<(u64, f64)>;

fn fields(bytes: &[u8], wanted: u32) -> Vec<&[u8]> {
    let mut found = Vec::new();
    for_each_field(bytes, |field, content| {
        if let (true, Content::Bytes(bytes)) = (field == wanted, content) {
            found.push(bytes);
        }
        Some(())
    })
    .expect("a message");
    found
}

fn number(bytes: &[u8], wanted: u32) -> u64 {
    let mut found = 0;
    for_each_field(bytes, |field, content| {
        if let (true, Content::Integer(number)) = (field == wanted, content) {
            found = number;
        }
        Some(())
    })
    .expect("a message");
    found
}

/// Remote write 1.0, of the series with this name.
pub fn samples_1(body: &[u8], name: &str, out: &mut Samples) {
    for series in fields(body, 1) {
        if fields(series, 1)
            .iter()
            .any(|label| fields(label, 2) == [name.as_bytes()])
        {
            out.extend(
                fields(series, 2)
                    .iter()
                    .map(|s| (number(s, 2), f64::from_bits(number(s, 1)))),
            );
        }
    }
}

/// Remote write 2.0, of the series with this name.
pub fn samples_2(body: &[u8], name: &str, out: &mut Samples) {
    let symbols = fields(body, 4);
    let a = symbols.iter().position(|symbol| *symbol == name.as_bytes());
    for series in fields(body, 5) {
        // Few symbols: each reference is one byte.
        let refs = fields(series, 1)[0];
        if refs.iter().any(|at| Some(usize::from(*at)) == a) {
            out.extend(
                fields(series, 2)
                    .iter()
                    .map(|s| (number(s, 2), f64::from_bits(number(s, 1)))),
            );
        }
    }
}

/// OTLP, of the sum or gauge with this name.
pub fn otlp_numbers(body: &[u8], name: &str, out: &mut Samples) {
    for resource in fields(body, 1) {
        for scope in fields(resource, 2) {
            for metric in fields(scope, 2)
                .into_iter()
                .filter(|metric| fields(metric, 1) == [name.as_bytes()])
            {
                // Field 5 is a gauge, 7 a sum.
                let data = [fields(metric, 5), fields(metric, 7)].concat();
                for point in fields(data[0], 1) {
                    let value = match number(point, 8) {
                        0 => f64::from_bits(number(point, 4)),
                        _ => f64::NAN,
                    };
                    out.push((number(point, 3), value));
                }
            }
        }
    }
}

/// Lines of InfluxDB's protocol whose measurement has this plain name, with the field `value`.
pub fn influx_lines(body: &[u8], name: &str, out: &mut Samples) {
    for line in std::str::from_utf8(body).expect("text").lines() {
        let (series, rest) = line.split_once(' ').expect("fields");
        if series.split(',').next() == Some(name) {
            let (fields, time) = rest.split_once(' ').expect("a time");
            let value = fields.strip_prefix("value=").expect("the only field");
            out.push((time.parse().unwrap(), value.parse().unwrap()));
        }
    }
}
