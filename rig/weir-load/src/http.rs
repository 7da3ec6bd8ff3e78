//! Requests over HTTP/1.1: one connection, one request at a time, the status of the answer.

use crate::profile::Payload;
use crate::records;
use crate::requests::{PostResult, Requests};
use crate::target::Socket;
use std::io;
use std::time::{Duration, Instant};
use weir_rig_base::http::Connection;

/// The requests of one connection.
pub struct Posts {
    connection: Connection,
    head: String,
    payload: Payload,
}

impl Posts {
    /// Requests to a path; `/` stands for the payload's usual path.
    pub fn new(
        payload: Payload,
        host: &str,
        path: &str,
        socket: &Socket,
        headers: &[String],
    ) -> io::Result<Posts> {
        let (usual_path, content) = records::request(payload);
        let path = if path == "/" { usual_path } else { path };
        let mut head = format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: weir-load\r\nContent-Type: {content}\r\n"
        );
        for header in headers {
            head.push_str(header);
            head.push_str("\r\n");
        }
        Ok(Posts {
            connection: connection(socket)?,
            head,
            payload,
        })
    }
}

/// Whole requests of a file, to which only the host is added.
pub struct WholeRequests {
    connection: Connection,
    headers: String,
}

impl WholeRequests {
    pub fn new(host: &str, socket: &Socket, headers: &[String]) -> io::Result<WholeRequests> {
        let mut all = format!("Host: {host}\r\n");
        headers.iter().for_each(|header| all.extend([header, "\r\n"]));
        Ok(WholeRequests {
            connection: connection(socket)?,
            headers: all,
        })
    }
}

impl Requests for WholeRequests {
    fn post(&mut self, request: &[u8], _records: u32, patience: Duration) -> io::Result<PostResult> {
        const LINE: &[u8] = b"\r\n";
        const EMPTY_LINE: &[u8] = b"\r\n\r\n";
        let find = |what: &[u8]| request.windows(what.len()).position(|bytes| bytes == what);
        let (Some(first), Some(end)) = (find(LINE), find(EMPTY_LINE)) else {
            return Err(io::Error::other("not a request"));
        };
        let (start, rest) = request.split_at(first + LINE.len());
        let (head, body) = rest.split_at(end + EMPTY_LINE.len() - start.len());
        let text = String::from_utf8_lossy;
        let head = format!("{}{}{}", text(start), self.headers, text(head));
        let response = self.connection.exchange(&head, body, Instant::now() + patience)?;
        Ok(of_status(response.status))
    }
}

fn of_status(status: u16) -> PostResult {
    match status {
        200..=299 => PostResult::Taken,
        429 | 503 => PostResult::Busy,
        status => PostResult::Rejected(status.to_string()),
    }
}

/// Requests over a connected socket, which becomes blocking.
pub fn connection(socket: &Socket) -> io::Result<Connection> {
    match socket {
        Socket::Tcp(stream) => {
            let stream = stream.try_clone()?;
            stream.set_nonblocking(false)?;
            Ok(Connection::tcp(stream))
        }
        Socket::Unix(stream) => {
            let stream = stream.try_clone()?;
            stream.set_nonblocking(false)?;
            Ok(Connection::unix(stream))
        }
        Socket::Udp(_) | Socket::Unixgram(_) => Err(io::Error::other("requests need a stream")),
    }
}

impl Requests for Posts {
    fn post(&mut self, body: &[u8], records: u32, patience: Duration) -> io::Result<PostResult> {
        let count = match self.payload {
            Payload::DdTracesJson | Payload::DdTracesMsgpack => {
                format!("X-Datadog-Trace-Count: {records}\r\n")
            }
            _ => String::new(),
        };
        let head = format!("{}{count}Content-Length: {}\r\n\r\n", self.head, body.len());
        let deadline = Instant::now() + patience;
        let response = self.connection.exchange(&head, body, deadline)?;
        Ok(of_status(response.status))
    }
}
