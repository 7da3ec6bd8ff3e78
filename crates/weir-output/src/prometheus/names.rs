//! Names and labels that every Prometheus accepts, and the rule that distinguishes metrics with the same one.

use memchr::{memchr, memchr3};
use weir_protocol::Kind;

/// Series that Prometheus writes for every target. A metric of that name without labels would take their place.
const OF_THE_SCRAPER: &[&str] = &[
    "up",
    "scrape_duration_seconds",
    "scrape_samples_scraped",
    "scrape_samples_post_metric_relabeling",
    "scrape_series_added",
    "scrape_timeout_seconds",
    "scrape_sample_limit",
    "scrape_body_size_bytes",
];

/// The prefix of weir's own series.
const OWN_PREFIX: &str = "weir_";

/// Appends `text` with everything outside of `[A-Za-z0-9_]` as `_`, and `_` before a leading digit. One character is one
/// `_`, however many bytes it has.
fn fold(text: &str, out: &mut String) {
    match text.bytes().next() {
        None => out.push('_'),
        Some(first) if first.is_ascii_digit() => out.push('_'),
        Some(_) => {}
    }
    if text.bytes().all(is_plain) {
        out.push_str(text);
        return;
    }
    for byte in text.bytes() {
        if is_plain(byte) {
            out.push(char::from(byte));
        } else if byte & 0xc0 != 0x80 {
            // Not the second or a later byte of a character.
            out.push('_');
        }
    }
}

/// Whether Prometheus takes this byte in any name.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// The name of a metric without conflicts: its name with the characters that Prometheus knows. A counter's is
/// without the `_total` that its series gets.
pub fn base_name(name: &str, kind: Kind) -> String {
    let mut folded = String::with_capacity(name.len() + 1);
    fold(name, &mut folded);
    if kind == Kind::Counter
        && let Some(stem) = folded.strip_suffix("_total").filter(|stem| !stem.is_empty())
    {
        let length = stem.len();
        folded.truncate(length);
    }
    folded
}

/// Suffixes of the base name, by kind: each is a name that no other metric may have.
fn suffixes(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Counter => &["_total", "_created"],
        Kind::Gauge | Kind::Set => &[""],
        // Includes the names of a classic histogram, which some readers derive from a native one.
        Kind::Histogram | Kind::Timing | Kind::Distribution => &["", "_sum", "_count", "_bucket", "_created"],
    }
}

/// Whether a metric with this base name would take a name that is not for users.
pub fn is_reserved(base: &str, kind: Kind) -> bool {
    suffixes(kind).iter().any(|suffix| {
        let taken = |name: &str| {
            base.len() + suffix.len() == name.len() && name.starts_with(base) && name.ends_with(suffix)
        };
        OF_THE_SCRAPER.iter().any(|name| taken(name))
            || base.starts_with(OWN_PREFIX)
            || (base.len() + 1 == OWN_PREFIX.len() && OWN_PREFIX.starts_with(base) && suffix.starts_with('_'))
    })
}

/// Hashes of every name that a metric of this base name occupies: that of the family and those of its series, which are
/// two name spaces. Equal hashes of different names only make a name distinct that need not be.
pub fn claims(base: &str, kind: Kind) -> impl Iterator<Item = u64> {
    let family = fnv(FNV_START ^ 1, base.as_bytes());
    let series = fnv(FNV_START, base.as_bytes());
    std::iter::once(family).chain(
        suffixes(kind)
            .iter()
            .map(move |suffix| fnv(series, suffix.as_bytes())),
    )
}

/// The name of a metric whose base name belongs to another one: eight hexadecimal digits of a hash of the metric's own
/// name and kind are appended, the same ones in every agent and at every start. `attempt` counts from zero.
pub fn distinct_name(base: &str, name: &str, kind: Kind, attempt: u32) -> String {
    let mut hash = fnv(FNV_START, kind.as_str().as_bytes());
    hash = fnv(hash, b"|");
    hash = fnv(hash, name.as_bytes());
    if attempt > 0 {
        hash = fnv(hash, &attempt.to_le_bytes());
    }
    format!("{base}_{:08x}", (hash ^ (hash >> 32)) as u32)
}

const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a: the same everywhere, which names that people put into dashboards have to be.
fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The first in this order keeps a base name that several metrics want: names that Prometheus takes unchanged, then by
/// kind, then by the bytes of the name.
pub fn rank(name: &str, kind: Kind) -> (bool, u8, &str) {
    let unchanged = !name.starts_with(|first: char| first.is_ascii_digit()) && name.bytes().all(is_plain);
    (!unchanged, kind as u8, name)
}

/// Writes the labels of a context as they stand in the text formats, `a="x",b="y"`, sorted by name.
#[derive(Default)]
pub struct LabelWriter {
    text: String,
    /// Position of the previous label's name.
    before: std::ops::Range<usize>,
    key: String,
}

impl LabelWriter {
    /// The last labels.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The same text, emptied for labels of another form.
    pub fn empty_text(&mut self) -> &mut String {
        self.text.clear();
        &mut self.text
    }

    /// `is_compound`: the metric is a summary or histogram, which has the labels `quantile` and `le`.
    pub fn write<'t>(
        &mut self,
        tags: impl Iterator<Item = &'t str> + Clone,
        host: Option<&str>,
        is_compound: bool,
    ) {
        self.text.clear();
        self.before = 0..0;
        // Sorted tags usually give sorted labels; others take the slow path.
        let host = host.filter(|host| !host.is_empty());
        if host.is_some() || !self.write_in_order(tags.clone(), is_compound) {
            self.text.clear();
            self.write_any_order(tags, host, is_compound);
        }
    }

    /// Returns false as soon as a label does not sort after the previous one.
    fn write_in_order<'t>(&mut self, tags: impl Iterator<Item = &'t str>, is_compound: bool) -> bool {
        for tag in tags {
            let (name, value) = split(tag);
            if value.is_empty() {
                continue;
            }
            let start = self.text.len();
            if start > 0 {
                self.text.push(',');
            }
            let at = self.text.len();
            self.key.clear();
            label_name(name, is_compound, &mut self.key);
            self.text.push_str(&self.key);
            let end = self.text.len();
            if self.text[self.before.clone()] >= self.text[at..end] {
                return false;
            }
            self.before = at..end;
            self.text.push_str("=\"");
            escape(value, &mut self.text);
            self.text.push('"');
        }
        true
    }

    fn write_any_order<'t>(
        &mut self,
        tags: impl Iterator<Item = &'t str>,
        host: Option<&str>,
        is_compound: bool,
    ) {
        let mut pairs: Vec<(String, &str)> = Vec::new();
        let mut add = |name: &str, value| {
            let mut folded = String::with_capacity(name.len() + 1);
            label_name(name, is_compound, &mut folded);
            pairs.push((folded, value));
        };
        tags.map(split)
            .filter(|(_, value)| !value.is_empty())
            .for_each(|(name, value)| add(name, value));
        if let Some(host) = host {
            add("host", host);
        }
        pairs.sort_unstable();
        pairs.dedup();
        for group in pairs.chunk_by(|a, b| a.0 == b.0) {
            if !self.text.is_empty() {
                self.text.push(',');
            }
            self.text.push_str(&group[0].0);
            self.text.push_str("=\"");
            for (at, (_, value)) in group.iter().enumerate() {
                if at > 0 {
                    self.text.push(',');
                }
                escape(value, &mut self.text);
            }
            self.text.push('"');
        }
    }
}

/// Name and value of a tag; one without a value is true.
fn split(tag: &str) -> (&str, &str) {
    match memchr(b':', tag.as_bytes()) {
        Some(colon) => (&tag[..colon], &tag[colon + 1..]),
        None => (tag, "true"),
    }
}

fn label_name(name: &str, is_compound: bool, out: &mut String) {
    if is_compound && (name == "quantile" || name == "le") {
        out.push('_');
        out.push_str(name);
        return;
    }
    fold(name, out);
    // Two underscores in front are Prometheus's own.
    if out.starts_with("__") {
        let rest = out.trim_start_matches('_').len();
        let skip = out.len() - rest - 1;
        out.drain(..skip);
    }
}

/// Appends a label's value as it stands between quotes.
pub fn escape(value: &str, out: &mut String) {
    let mut rest = value;
    while let Some(at) = memchr3(b'\\', b'"', b'\n', rest.as_bytes()) {
        out.push_str(&rest[..at]);
        out.push('\\');
        out.push(match rest.as_bytes()[at] {
            b'\n' => 'n',
            other => char::from(other),
        });
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
}

/// Calls `each` with name and escaped value of each label of a text that [`LabelWriter`] wrote.
pub fn for_each_label(mut text: &str, mut each: impl FnMut(&str, &str)) {
    while let Some((name, rest)) = text.split_once("=\"") {
        let mut escaped = false;
        let end = rest
            .bytes()
            .position(|byte| {
                let ends = byte == b'"' && !escaped;
                escaped = byte == b'\\' && !escaped;
                ends
            })
            .unwrap_or(rest.len());
        each(name, &rest[..end]);
        text = rest.get(end + 1..).unwrap_or_default();
        text = text.strip_prefix(',').unwrap_or(text);
    }
}

/// The value that was escaped.
pub fn unescape<'a>(value: &'a str, scratch: &'a mut String) -> &'a str {
    if !value.contains('\\') {
        return value;
    }
    scratch.clear();
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        scratch.push(match character {
            '\\' => match characters.next() {
                Some('n') => '\n',
                Some(other) => other,
                None => '\\',
            },
            other => other,
        });
    }
    scratch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_labels(tags: &[&str], host: Option<&str>, expected: &str) {
        let mut writer = LabelWriter::default();
        writer.write(tags.iter().copied(), host, true);
        assert_eq!(writer.text(), expected, "{tags:?}");
    }

    #[test]
    fn names() {
        for (name, kind, expected) in [
            ("a.b-c:d", Kind::Gauge, "a_b_c_d"),
            ("9lives", Kind::Gauge, "_9lives"),
            ("größe", Kind::Gauge, "gr__e"),
            ("http.requests.total", Kind::Counter, "http_requests"),
            ("_total", Kind::Counter, "_total"),
            ("x_total", Kind::Gauge, "x_total"),
        ] {
            assert_eq!(base_name(name, kind), expected, "{name}");
        }
    }

    #[test]
    fn reserved_names() {
        for (base, kind, expected) in [
            ("up", Kind::Gauge, true),
            ("up", Kind::Counter, false),
            ("weir_contexts", Kind::Gauge, true),
            ("weir", Kind::Gauge, false),
            ("weir", Kind::Timing, true),
            ("weird", Kind::Counter, false),
            ("scrape_duration_seconds", Kind::Set, true),
        ] {
            assert_eq!(is_reserved(base, kind), expected, "{base} {kind:?}");
        }
    }

    #[test]
    fn labels() {
        check_labels(&["a:1", "b"], None, r#"a="1",b="true""#);
        check_labels(&["b", "a:1"], None, r#"a="1",b="true""#);
        check_labels(&["a-b:1", "a:2"], None, r#"a="2",a_b="1""#);
        check_labels(&["k:b", "k:a", "k.:c"], None, r#"k="a,b",k_="c""#);
        check_labels(&["k.:x", "k-:x", "k-:"], None, r#"k_="x""#);
        check_labels(&["k:"], None, "");
        check_labels(&[":v"], None, r#"_="v""#);
        check_labels(
            &["__name__:evil", "quantile:1", "le:2"],
            None,
            r#"_le="2",_name__="evil",_quantile="1""#,
        );
        check_labels(&["é:ü\"\\\n"], None, r#"_="ü\"\\\n""#);
        check_labels(&["z:1", "host"], Some("web"), r#"host="true,web",z="1""#);
        check_labels(&["z:1"], Some(""), r#"z="1""#);
        check_labels(&["0:0"], None, r#"_0="0""#);
    }

    #[test]
    fn labels_can_be_read_back() {
        let values = ["", "x", "\\", "\\\"", "a\nb", "\",b=\"", "ü\\n"];
        for a in values {
            for b in values {
                let mut writer = LabelWriter::default();
                let (first, second) = (format!("a:{a}"), format!("b:{b}"));
                writer.write([first.as_str(), second.as_str()].into_iter(), None, false);
                let mut read = Vec::new();
                let mut scratch = String::new();
                for_each_label(writer.text(), |name, value| {
                    read.push((name.to_owned(), unescape(value, &mut scratch).to_owned()));
                });
                let expected: Vec<(String, String)> = [("a", a), ("b", b)]
                    .into_iter()
                    .filter(|(_, value)| !value.is_empty())
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .collect();
                assert_eq!(read, expected);
            }
        }
    }

    #[test]
    fn distinct_names_never_change() {
        // They are in people's dashboards.
        assert_eq!(
            distinct_name("a_b", "a-b", Kind::Counter, 0),
            distinct_name("a_b", "a-b", Kind::Counter, 0)
        );
        assert_ne!(
            distinct_name("a_b", "a-b", Kind::Counter, 0),
            distinct_name("a_b", "a.b", Kind::Counter, 0)
        );
        assert_ne!(
            distinct_name("a_b", "a-b", Kind::Counter, 0),
            distinct_name("a_b", "a-b", Kind::Gauge, 0)
        );
        assert_ne!(
            distinct_name("a_b", "a-b", Kind::Counter, 0),
            distinct_name("a_b", "a-b", Kind::Counter, 1)
        );
    }
}
