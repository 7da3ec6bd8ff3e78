//! The smallest HTTP client that a ready check and a scrape need: GET, HTTP/1.1, one connection per request.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Largest body that is read.
const BODY_MAX: usize = 256 << 20;

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub body: Vec<u8>,
}

/// GET `http://host:port/path`. The whole exchange ends at the deadline.
pub fn get(url: &str, timeout: Duration) -> io::Result<Response> {
    let deadline = Instant::now() + timeout;
    let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("{url}: {what}"));
    let rest = url
        .strip_prefix("http://")
        .ok_or_else(|| bad("only http:// addresses can be asked"))?;
    let (authority, path) = match rest.find('/') {
        Some(i) => rest.split_at(i),
        None => (rest, "/"),
    };
    let authority_with_port = if authority
        .rsplit_once(':')
        .is_some_and(|(_, p)| p.parse::<u16>().is_ok())
    {
        authority.to_owned()
    } else {
        format!("{authority}:80")
    };
    let address = authority_with_port
        .to_socket_addrs()?
        .next()
        .ok_or_else(|| bad("no address"))?;
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_write_timeout(Some(timeout))?;
    // In one piece: a server may answer and close after the first one it reads.
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\nAccept: */*\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut data = Vec::new();
    let mut chunk = [0; 65536];
    loop {
        // One deadline for all reads: a server that sends a byte per second must not hold the caller.
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(n) => data.extend_from_slice(&chunk[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        if data.len() > BODY_MAX {
            return Err(bad("the answer is too long"));
        }
        if complete(&data) {
            break;
        }
    }
    parse(&data).ok_or_else(|| bad("the answer is not HTTP"))
}

fn head_end(data: &[u8]) -> Option<usize> {
    data.windows(4).position(|w| w == b"\r\n\r\n").map(|i| i + 4)
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|l| {
        let (k, v) = l.split_once(':')?;
        k.eq_ignore_ascii_case(name).then(|| v.trim())
    })
}

/// Servers may keep the connection open in spite of our wish, so the length decides where it is known.
fn complete(data: &[u8]) -> bool {
    let Some(end) = head_end(data) else { return false };
    let head = String::from_utf8_lossy(&data[..end]);
    if let Some(length) = header(&head, "content-length").and_then(|v| v.parse::<usize>().ok()) {
        return data.len() >= end + length;
    }
    header(&head, "transfer-encoding").is_some_and(|v| v.eq_ignore_ascii_case("chunked"))
        && data.ends_with(b"0\r\n\r\n")
}

fn parse(data: &[u8]) -> Option<Response> {
    let end = head_end(data)?;
    let head = String::from_utf8_lossy(&data[..end]);
    let status = head
        .strip_prefix("HTTP/1.")?
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()?;
    let mut body = data[end..].to_vec();
    if header(&head, "transfer-encoding").is_some_and(|v| v.eq_ignore_ascii_case("chunked")) {
        body = dechunk(&body)?;
    }
    Some(Response { status, body })
}

fn dechunk(mut data: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    loop {
        let line_end = data.windows(2).position(|w| w == b"\r\n")?;
        let size = std::str::from_utf8(&data[..line_end])
            .ok()?
            .split(';')
            .next()?
            .trim();
        let size = usize::from_str_radix(size, 16).ok()?;
        data = &data[line_end + 2..];
        if size == 0 {
            return Some(out);
        }
        out.extend_from_slice(data.get(..size)?);
        data = data.get(size + 2..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn serve(answer: &'static [u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/x", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut s, _) = listener.accept().unwrap();
            let mut buffer = [0; 1024];
            let _ = s.read(&mut buffer);
            let _ = s.write_all(answer);
            // Kept open: the client must not wait for the end of the connection.
            let _ = s.read(&mut buffer);
        });
        url
    }

    #[test]
    fn lengths_and_chunks_end_the_answer() {
        let r = get(
            &serve(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"),
            Duration::from_secs(10),
        )
        .unwrap();
        assert_eq!((r.status, r.body.as_slice()), (200, b"hello".as_slice()));
        let chunked =
            b"HTTP/1.1 503 no\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n";
        let r = get(&serve(chunked), Duration::from_secs(10)).unwrap();
        assert_eq!((r.status, r.body.as_slice()), (503, b"abcde".as_slice()));
    }

    #[test]
    fn silence_and_nonsense_are_errors() {
        assert!(
            get(
                &serve(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n"),
                Duration::from_millis(50)
            )
            .is_err()
        );
        assert!(get(&serve(b"SSH-2.0\r\n\r\n0\r\n\r\n"), Duration::from_millis(200)).is_err());
        assert!(get("https://localhost/", Duration::from_secs(1)).is_err());
    }
}
