use memchr::memchr;

/// One non-empty line of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// The line without its newline and without the single carriage return before it.
    pub bytes: &'a [u8],
    /// Whether a newline ended it; only the last line of a packet may lack one.
    pub terminated: bool,
}

/// Splits a packet at newlines and skips empty lines, a lone carriage return included.
#[derive(Clone, Debug)]
pub struct Lines<'a> {
    rest: &'a [u8],
}

impl<'a> Lines<'a> {
    pub fn new(packet: &'a [u8]) -> Self {
        Lines { rest: packet }
    }
}

impl<'a> Iterator for Lines<'a> {
    type Item = Line<'a>;

    fn next(&mut self) -> Option<Line<'a>> {
        while !self.rest.is_empty() {
            let (line, terminated) = match memchr::memchr(b'\n', self.rest) {
                Some(end) => {
                    let line = &self.rest[..end];
                    self.rest = &self.rest[end + 1..];
                    (line, true)
                }
                None => (std::mem::take(&mut self.rest), false),
            };
            let bytes = line.strip_suffix(b"\r").unwrap_or(line);
            if !bytes.is_empty() {
                return Some(Line { bytes, terminated });
            }
        }
        None
    }
}

// Lines with several samples after one name, as etsy's StatsD, Telegraf and statsd_exporter read them: `name:1|c:2|c|@0.5|#tags`.

/// The samples of such a line. Tags and what follows them are for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleList<'a> {
    name: &'a [u8],
    samples: &'a [u8],
    tags: &'a [u8],
}

impl<'a> SampleList<'a> {
    /// `None`: there are not several samples, each with a value and a type.
    pub fn of(line: &'a [u8]) -> Option<Self> {
        let colon = memchr(b':', line)?;
        let (name, rest) = (&line[..colon], &line[colon + 1..]);
        let tags_at = rest.windows(2).position(|pair| pair == b"|#");
        let (samples, tags) = rest.split_at(tags_at.unwrap_or(rest.len()));
        let list = SampleList { name, samples, tags };
        let is_list = memchr(b':', samples).is_some() && list.samples().all(|sample| sample.contains(&b'|'));
        is_list.then_some(list)
    }

    fn samples(self) -> impl Iterator<Item = &'a [u8]> {
        self.samples.split(|&byte| byte == b':')
    }

    /// Each sample as a line of its own.
    pub fn lines(self) -> impl Iterator<Item = Vec<u8>> + use<'a> {
        self.samples()
            .map(move |sample| [self.name, b":", sample, self.tags].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sample_becomes_a_line() {
        for (line, expected) in [
            ("m:1|c:2|c", Some(&["m:1|c", "m:2|c"][..])),
            ("l:320|ms:200|ms|@0.1", Some(&["l:320|ms", "l:200|ms|@0.1"])),
            ("u:32|g:+10|g:-10|g", Some(&["u:32|g", "u:+10|g", "u:-10|g"])),
            (
                "a:1|c|@0.5:2|ms|#x:y,z:1|T5",
                Some(&["a:1|c|@0.5|#x:y,z:1|T5", "a:2|ms|#x:y,z:1|T5"]),
            ),
            ("a:1|c|#x:y", None),
            ("a:1:2|c", None),
            ("a:1|c:", None),
            ("a:1:2|ms:3|ms", None),
            ("a", None),
            ("", None),
        ] {
            let found = SampleList::of(line.as_bytes()).map(|list| {
                list.lines()
                    .map(|line| String::from_utf8(line).unwrap())
                    .collect::<Vec<_>>()
            });
            assert_eq!(
                found
                    .as_deref()
                    .map(|found| found.iter().map(String::as_str).collect::<Vec<_>>()),
                expected.map(<[&str]>::to_vec),
                "{line}"
            );
        }
    }
}
