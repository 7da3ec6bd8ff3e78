//! The rig's HTTP/1.1 client: GET for readiness checks, scrapes and status, POST for loads. Every exchange has a deadline, so that a server
//! that sends a byte per second cannot block the caller.

use crate::address::resolve;
use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Maximum body size.
const BODY_MAX: usize = 256 << 20;
const HEAD_MAX: usize = 64 << 10;

/// `http://host:port/path`. The default port is 80.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Host and port as written, for the `Host` field.
    pub authority: String,
    /// From the slash on. Empty if nothing follows the authority.
    pub path: String,
}

/// Why a text is not a [`Url`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("{0:?}: http://host:port/path was expected")]
    Scheme(String),
    #[error("{0:?}: no host")]
    NoHost(String),
}

impl std::str::FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Url, UrlError> {
        let rest = text
            .strip_prefix("http://")
            .ok_or_else(|| UrlError::Scheme(text.to_owned()))?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.is_empty() {
            return Err(UrlError::NoHost(text.to_owned()));
        }
        Ok(Url {
            authority: authority.to_owned(),
            path: path.to_owned(),
        })
    }
}

impl Url {
    pub fn resolve(&self) -> io::Result<SocketAddr> {
        let port = |text: &str| text.parse().ok();
        let (host, port) = self
            .authority
            .rsplit_once(':')
            .and_then(|(host, text)| Some((host, port(text)?)))
            .unwrap_or((&self.authority, 80));
        resolve(host.trim_start_matches('[').trim_end_matches(']'), port)
    }

    /// The path, or `usual` if it is empty.
    pub fn path_or<'a>(&'a self, usual: &'a str) -> &'a str {
        if self.path.is_empty() { usual } else { &self.path }
    }
}

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    head: String,
    pub body: Vec<u8>,
}

impl Response {
    /// A header field by name, ignoring case.
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }
}

/// GET of an address such as `http://host:port/path`.
pub fn get(url: &str, timeout: Duration) -> io::Result<Response> {
    let url: Url = url
        .parse()
        .map_err(|error: UrlError| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    get_with(&url, "/", &["Accept: */*"], timeout)
}

/// GET with these header lines, on a new connection. An address without a path gets the usual path.
pub fn get_with(url: &Url, usual_path: &str, headers: &[&str], timeout: Duration) -> io::Result<Response> {
    let deadline = Instant::now() + timeout;
    let stream = TcpStream::connect_timeout(&url.resolve()?, timeout)?;
    let mut head = format!(
        "GET {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n",
        url.path_or(usual_path),
        url.authority
    );
    for header in headers {
        head.push_str(header);
        head.push_str("\r\n");
    }
    head.push_str("\r\n");
    Connection::tcp(stream).exchange(&head, &[], deadline)
}

/// The socket of a connection.
#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn write_within(&mut self, slices: &[IoSlice<'_>], time: Duration) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => {
                stream.set_write_timeout(Some(time))?;
                stream.write_vectored(slices)
            }
            Stream::Unix(stream) => {
                stream.set_write_timeout(Some(time))?;
                stream.write_vectored(slices)
            }
        }
    }

    fn read_within(&mut self, buffer: &mut [u8], time: Duration) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => {
                stream.set_read_timeout(Some(time))?;
                stream.read(buffer)
            }
            Stream::Unix(stream) => {
                stream.set_read_timeout(Some(time))?;
                stream.read(buffer)
            }
        }
    }
}

/// A connection for sequential requests.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    /// Bytes received and not yet consumed.
    pending: Vec<u8>,
    chunk: Box<[u8; 65_536]>,
}

impl Connection {
    /// Over a blocking socket.
    pub fn tcp(stream: TcpStream) -> Connection {
        Self::over(Stream::Tcp(stream))
    }

    /// Over a blocking Unix stream socket.
    pub fn unix(stream: UnixStream) -> Connection {
        Self::over(Stream::Unix(stream))
    }

    fn over(stream: Stream) -> Connection {
        Connection {
            stream,
            pending: Vec::new(),
            chunk: Box::new([0; 65_536]),
        }
    }

    /// Sends a request, whose head ends with an empty line, and reads the answer.
    pub fn exchange(&mut self, head: &str, body: &[u8], deadline: Instant) -> io::Result<Response> {
        // In one write: a server may answer and close after the first part that it reads.
        let mut slices = [IoSlice::new(head.as_bytes()), IoSlice::new(body)];
        let mut unsent = &mut slices[..];
        while !unsent.is_empty() {
            match self.stream.write_within(unsent, left(deadline)?)? {
                0 => return Err(io::ErrorKind::ConnectionReset.into()),
                written => IoSlice::advance_slices(&mut unsent, written),
            }
        }
        self.answer(deadline)
    }

    fn answer(&mut self, deadline: Instant) -> io::Result<Response> {
        loop {
            let end = self.until(b"\r\n\r\n", HEAD_MAX, deadline)?;
            let head = String::from_utf8_lossy(&self.pending[..end]).into_owned();
            self.pending.drain(..end);
            let status = status(&head).ok_or_else(|| io::Error::other("the answer is not HTTP"))?;
            if status == 100 {
                continue;
            }
            let body = self.body(&head, deadline)?;
            return Ok(Response { status, head, body });
        }
    }

    /// A server may keep the connection open although we asked it to close, so the length counts if it is known.
    fn body(&mut self, head: &str, deadline: Instant) -> io::Result<Vec<u8>> {
        if header(head, "transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
            return self.chunks(deadline);
        }
        if let Some(length) = header(head, "content-length") {
            let length = length
                .parse()
                .map_err(|_| io::Error::other(format!("the answer has a Content-Length of {length:?}")))?;
            return self.take(length, deadline);
        }
        if matches!(status(head), Some(204 | 304)) {
            return Ok(Vec::new());
        }
        while self.read(deadline)? > 0 {}
        Ok(std::mem::take(&mut self.pending))
    }

    fn chunks(&mut self, deadline: Instant) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let end = self.until(b"\r\n", HEAD_MAX, deadline)?;
            let line = String::from_utf8_lossy(&self.pending[..end]).into_owned();
            self.pending.drain(..end);
            let size = line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(size, 16)
                .map_err(|_| io::Error::other(format!("{size:?} is not the size of a chunk")))?;
            let chunk = self.take(size.saturating_add(2), deadline)?;
            if size == 0 {
                return Ok(body);
            }
            body.extend_from_slice(&chunk[..size]);
            if body.len() > BODY_MAX {
                return Err(too_long());
            }
        }
    }

    fn take(&mut self, length: usize, deadline: Instant) -> io::Result<Vec<u8>> {
        if length > BODY_MAX {
            return Err(too_long());
        }
        while self.pending.len() < length {
            self.read_more(deadline)?;
        }
        let rest = self.pending.split_off(length);
        Ok(std::mem::replace(&mut self.pending, rest))
    }

    /// Reads until these bytes have arrived, and returns the position after them.
    fn until(&mut self, needle: &[u8], most: usize, deadline: Instant) -> io::Result<usize> {
        loop {
            if let Some(at) = self
                .pending
                .windows(needle.len())
                .position(|window| window == needle)
            {
                return Ok(at + needle.len());
            }
            if self.pending.len() > most {
                return Err(io::Error::other("the answer's head is longer than 64 KiB"));
            }
            self.read_more(deadline)?;
        }
    }

    fn read_more(&mut self, deadline: Instant) -> io::Result<()> {
        match self.read(deadline)? {
            0 => Err(io::ErrorKind::ConnectionReset.into()),
            _ => Ok(()),
        }
    }

    fn read(&mut self, deadline: Instant) -> io::Result<usize> {
        if self.pending.len() > BODY_MAX + HEAD_MAX {
            return Err(too_long());
        }
        loop {
            match self.stream.read_within(&mut self.chunk[..], left(deadline)?) {
                Ok(read) => {
                    self.pending.extend_from_slice(&self.chunk[..read]);
                    return Ok(read);
                }
                // A read timed out; `left` reports it.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn left(deadline: Instant) -> io::Result<Duration> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time")),
        left => Ok(left),
    }
}

fn too_long() -> io::Error {
    io::Error::other(format!("the answer is longer than {BODY_MAX} bytes"))
}

fn status(head: &str) -> Option<u16> {
    head.strip_prefix("HTTP/1.")?
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const PATIENCE: Duration = Duration::from_secs(10);

    /// Answers one request and keeps the connection open: the client must not wait for its end.
    fn serve(answer: &'static [u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/x", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut buffer = [0; 1024];
            let _ = stream.read(&mut buffer);
            let _ = stream.write_all(answer);
            let _ = stream.read(&mut buffer);
        });
        url
    }

    fn got(answer: &'static [u8]) -> (u16, String) {
        let response = get(&serve(answer), PATIENCE).unwrap();
        (response.status, String::from_utf8(response.body).unwrap())
    }

    #[test]
    fn lengths_and_chunks_end_the_answer() {
        let sized = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(got(sized), (200, "hello".into()));
        let chunked =
            b"HTTP/1.1 503 no\r\ntransfer-encoding: Chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n";
        assert_eq!(got(chunked), (503, "abcde".into()));
        let after_continue = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 202 OK\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(got(after_continue), (202, String::new()));
    }

    #[test]
    fn one_connection_takes_several_requests() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut buffer = [0; 1024];
            for answer in ["a", "bc"] {
                let _ = stream.read(&mut buffer).unwrap();
                let text = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nX-It: {answer}\r\n\r\n{answer}",
                    answer.len()
                );
                stream.write_all(text.as_bytes()).unwrap();
            }
        });
        let mut connection = Connection::tcp(TcpStream::connect(address).unwrap());
        for want in ["a", "bc"] {
            let head = "POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n";
            let response = connection
                .exchange(head, b"hi", Instant::now() + PATIENCE)
                .unwrap();
            assert_eq!(
                (response.body.as_slice(), response.header("x-it")),
                (want.as_bytes(), Some(want))
            );
        }
        server.join().unwrap();
    }

    #[test]
    fn timeouts_and_invalid_responses_are_errors() {
        let cut = serve(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n");
        let error = get(&cut, Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(get(&serve(b"SSH-2.0\r\n\r\n0\r\n\r\n"), PATIENCE).is_err());
        assert!(get("https://localhost/", PATIENCE).is_err());
        assert!(get("http:///x", PATIENCE).is_err());
    }
}
