//! The series that an output makes of a batch, as the users of its receiver see them.
//!
//! A separate encoder encodes the batch, and its payloads are decoded, so a preview cannot differ from a delivery. Nothing leaves the process.

use weir_aggregate::Batch;

use crate::delivery::{Class, Encode, Encoded, Parts, Payload};

/// The payloads of points that an encoder, which nobody else uses, makes of the only batch of a bucket.
pub(crate) fn payloads(mut encoder: impl Encode, batch: &Batch) -> Vec<Payload> {
    let mut out = Encoded::default();
    encoder.encode(batch, &mut out);
    encoder.finish(&mut out);
    let points = out
        .payloads
        .into_iter()
        .filter(|draft| draft.class == Class::Points);
    let payloads = points.map(|draft| Payload {
        id: 0,
        route: draft.route,
        class: draft.class,
        count: draft.count,
        created: 0,
        body: draft.body.into(),
    });
    payloads.collect()
}

/// The series of payloads that can be taken apart.
pub(crate) fn of_parts<P: Parts>(payloads: &[Payload], open: impl Fn(&Payload) -> Option<P>) -> Vec<String> {
    let mut series = Vec::new();
    for parts in payloads.iter().filter_map(open) {
        parts.pick(&mut |_, shown| {
            series.push(without_bounds(&shown()));
            false
        });
    }
    each_once(series)
}

/// The series of lines; `name` takes them from a line.
pub(crate) fn of_lines(payloads: &[Payload], name: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let texts = payloads
        .iter()
        .map(|payload| String::from_utf8_lossy(&payload.body));
    let series = texts.flat_map(|text| text.lines().filter_map(&name).collect::<Vec<_>>());
    each_once(series.collect())
}

/// The series of one JSON object per line: `name [tag, tag]`.
pub(crate) fn of_json(line: &str) -> Option<String> {
    let point: serde_json::Value = serde_json::from_str(line).ok()?;
    let tags = point["tags"].as_array()?.iter().filter_map(|tag| tag.as_str());
    Some(tagged(point["metric"].as_str()?, tags))
}

pub(crate) fn tagged<'a>(name: &str, tags: impl Iterator<Item = &'a str>) -> String {
    format!("{name} [{}]", tags.collect::<Vec<_>>().join(", "))
}

/// Readers take the buckets of a histogram for one series.
pub(crate) fn without_bounds(series: &str) -> String {
    let bound = ["{le=\"", ",le=\""]
        .iter()
        .find_map(|label| Some(series.find(label)? + label.len()));
    match bound.and_then(|start| Some((start, start + series[start..].find('"')?))) {
        Some((start, end)) => format!("{}...{}", &series[..start], &series[end..]),
        None => series.to_owned(),
    }
}

/// Each series once, and without brackets around no tags.
pub(crate) fn each_once(series: Vec<String>) -> Vec<String> {
    let bare = |series: &String| {
        let name = series.strip_suffix(" []").or_else(|| series.strip_suffix("{}"));
        name.unwrap_or(series).to_owned()
    };
    let mut known = std::collections::HashSet::new();
    series
        .iter()
        .map(bare)
        .filter(|one| known.insert(one.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_one_series() {
        for (series, shown) in [
            (
                r#"a_bucket{env="prod",le="0.5"}"#,
                r#"a_bucket{env="prod",le="..."}"#,
            ),
            (r#"a_bucket{le="+Inf",z="1"}"#, r#"a_bucket{le="...",z="1"}"#),
            (r#"a{vale="1"}"#, r#"a{vale="1"}"#),
            (r#"a{le=""#, r#"a{le=""#),
        ] {
            assert_eq!(without_bounds(series), shown);
        }
    }
}
