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
