//! The least of an HTTP/1.1 client: one connection, one request at a time, the status of the answer.

use crate::profile::Payload;
use crate::records;
use crate::requests::{Answer, Requests};
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The requests of one connection.
pub struct Posts {
    stream: TcpStream,
    head: String,
    payload: Payload,
    buffer: Vec<u8>,
}

impl Posts {
    /// Requests to a path; to the payload's usual one when it is `/`.
    pub fn new(
        payload: Payload,
        host: &str,
        path: &str,
        stream: &TcpStream,
        headers: &[String],
    ) -> io::Result<Posts> {
        let (usual_path, content) = records::request(payload);
        let path = if path == "/" { usual_path } else { path };
        let stream = stream.try_clone()?;
        stream.set_nonblocking(false)?;
        let mut head = format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: weir-load\r\nContent-Type: {content}\r\n"
        );
        for header in headers {
            head.push_str(header);
            head.push_str("\r\n");
        }
        Ok(Posts {
            stream,
            head,
            payload,
            buffer: vec![0; 64 << 10],
        })
    }

    /// The status answered.
    fn answer(&mut self, patience: Duration) -> io::Result<u16> {
        let deadline = Instant::now() + patience;
        let mut have = 0;
        loop {
            if let Some(end) = find(&self.buffer[..have], b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&self.buffer[..end]).to_ascii_lowercase();
                let status = head
                    .split_whitespace()
                    .nth(1)
                    .and_then(|s| s.parse::<u16>().ok())
                    .ok_or_else(|| io::Error::other("the answer is not HTTP"))?;
                let done = end + 4;
                if status == 100 {
                    self.buffer.copy_within(done..have, 0);
                    have -= done;
                    continue;
                }
                let field = |name: &str| {
                    head.lines()
                        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                        .map(str::trim)
                };
                if let Some(length) = field("content-length").and_then(|v| v.parse::<usize>().ok()) {
                    self.skip(length.saturating_sub(have - done), deadline)?;
                } else if field("transfer-encoding") == Some("chunked") {
                    let mut tail = self.buffer[done..have].to_vec();
                    while !tail.ends_with(b"0\r\n\r\n") {
                        let read = self.read_some(0, deadline)?;
                        tail.extend_from_slice(&self.buffer[..read]);
                    }
                }
                return Ok(status);
            }
            if have == self.buffer.len() {
                return Err(io::Error::other("the answer's head is longer than 64 KiB"));
            }
            have += self.read_some(have, deadline)?;
        }
    }

    fn skip(&mut self, mut left: usize, deadline: Instant) -> io::Result<()> {
        while left > 0 {
            left = left.saturating_sub(self.read_some(0, deadline)?);
        }
        Ok(())
    }

    fn read_some(&mut self, at: usize, deadline: Instant) -> io::Result<usize> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.stream
            .set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match self.stream.read(&mut self.buffer[at..]) {
            Ok(0) => Err(io::ErrorKind::ConnectionReset.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(io::Error::other(format!(
                "no answer within {:?}",
                left.max(Duration::from_secs(5))
            ))),
            other => other,
        }
    }
}

impl Requests for Posts {
    fn post(&mut self, body: &[u8], records: u32, patience: Duration) -> io::Result<Answer> {
        let count = match self.payload {
            Payload::DdTracesJson | Payload::DdTracesMsgpack => {
                format!("X-Datadog-Trace-Count: {records}\r\n")
            }
            _ => String::new(),
        };
        let head = format!("{}{count}Content-Length: {}\r\n\r\n", self.head, body.len());
        self.stream.set_write_timeout(Some(patience))?;
        let mut slices = [IoSlice::new(head.as_bytes()), IoSlice::new(body)];
        let mut left = &mut slices[..];
        while !left.is_empty() {
            let written = self.stream.write_vectored(left)?;
            if written == 0 {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            IoSlice::advance_slices(&mut left, written);
        }
        Ok(match self.answer(patience)? {
            200..=299 => Answer::Taken,
            429 | 503 => Answer::Busy,
            status => Answer::Rejected(status.to_string()),
        })
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}
