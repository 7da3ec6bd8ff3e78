//! Payloads sent as requests over HTTP or gRPC. Each waits for its answer.

use crate::grpc::Calls;
use crate::http::{Posts, WholeRequests};
use crate::profile::Payload;
use crate::source::Load;
use crate::target::{Socket, Target};
use std::io;
use std::time::Duration;

/// A target's answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PostResult {
    Taken,
    /// Overloaded: this request is lost, continue with the next.
    Busy,
    /// Refused, with the target's reason.
    Rejected(String),
}

/// The requests of one connection.
pub trait Requests: Send {
    /// Sends one body with this many records and waits for the answer.
    fn post(&mut self, body: &[u8], records: u32, patience: Duration) -> io::Result<PostResult>;
}

/// Opens requests over a connected socket, with headers `Name: value` in each.
pub fn open(
    load: &Load,
    target: &Target,
    socket: &Socket,
    headers: &[String],
) -> io::Result<Box<dyn Requests>> {
    let payload = load.profile.payload;
    match (target, socket) {
        (Target::Http { host, .. }, _) if payload == Payload::File => {
            Ok(Box::new(WholeRequests::new(host, socket, headers)?))
        }
        (Target::HttpUnix(_), _) if payload == Payload::File => {
            Ok(Box::new(WholeRequests::new("localhost", socket, headers)?))
        }
        (Target::Http { host, path, .. }, _) => {
            Ok(Box::new(Posts::new(payload, host, path, socket, headers)?))
        }
        (Target::HttpUnix(_), _) => Ok(Box::new(Posts::new(payload, "localhost", "/", socket, headers)?)),
        (Target::Grpc { host, .. }, Socket::Tcp(stream)) => {
            Ok(Box::new(Calls::new(payload, host, stream, headers)?))
        }
        _ => Err(io::Error::other("requests need an http or grpc target")),
    }
}

/// The header is not `Name: value` on one line.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("headers: {0:?} is not `Name: value` on one line")]
pub struct HeaderError(String);

/// Checks that a header is `Name: value` on one line.
pub fn check_header(header: &str) -> Result<(), HeaderError> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    match header.split_once(':') {
        Some((name, value))
            if !name.is_empty()
                && name.bytes().all(token)
                && !value.bytes().any(|byte| byte < b' ' || byte == 0x7f) =>
        {
            Ok(())
        }
        _ => Err(HeaderError(header.to_owned())),
    }
}
