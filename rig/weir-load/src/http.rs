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
        Ok(match response.status {
            200..=299 => PostResult::Taken,
            429 | 503 => PostResult::Busy,
            status => PostResult::Rejected(status.to_string()),
        })
    }
}
