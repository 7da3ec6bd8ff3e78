//! Text of whole lines over UDP: cut into datagrams, and sent.

use std::collections::BTreeMap;

use tokio::net::UdpSocket;

use crate::claims::{Notes, shown};
use crate::delivery::{BoxFuture, Outcome, Payload, Transport};
use crate::names::connect_udp;

/// The pieces of `text`, whose lines all end in a line feed, each as many whole lines as fit into `bytes_max`. A line that is longer
/// alone comes alone; the maker of the text should have left it out.
pub fn datagrams(text: &[u8], bytes_max: usize) -> impl Iterator<Item = &[u8]> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let at = next_end(rest, bytes_max);
        let (first, behind) = rest.split_at(at);
        rest = behind;
        Some(first)
    })
}

/// Length of the first of [`datagrams`].
pub fn next_end(text: &[u8], bytes_max: usize) -> usize {
    if text.len() <= bytes_max {
        return text.len();
    }
    let is_end = |byte: &u8| *byte == b'\n';
    let fitting = text[..bytes_max].iter().rposition(is_end);
    let alone = || text.iter().position(is_end);
    fitting.or_else(alone).map_or(text.len(), |at| at + 1)
}

/// Sends payloads as datagrams. The name is looked up for each.
pub struct Udp {
    pub host: (String, u16),
    pub bytes_max: usize,
    pub notes: Notes,
}

impl Udp {
    async fn attempt(&self, body: &[u8]) -> std::io::Result<()> {
        let (host, port) = &self.host;
        let mut last = std::io::Error::other("the name has no address");
        for socket in connect_udp(host, *port).await? {
            match self.send_all(&socket, body).await {
                Ok(()) => return Ok(()),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn send_all(&self, socket: &UdpSocket, body: &[u8]) -> std::io::Result<()> {
        for datagram in datagrams(body, self.bytes_max) {
            socket.send(datagram).await?;
        }
        Ok(())
    }
}

impl Transport for Udp {
    fn send(&self, payload: Payload) -> BoxFuture<'_, Outcome> {
        Box::pin(async move {
            match self.attempt(&payload.body).await {
                Ok(()) => Outcome::Delivered,
                Err(error) => Outcome::Retry {
                    error: format!("cannot send: {error}"),
                    after: None,
                },
            }
        })
    }

    fn details(&self) -> BTreeMap<&'static str, String> {
        shown(&self.notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_lines_as_many_as_fit() {
        let check = |text: &str, max: usize, expected: &[&str]| {
            let found: Vec<&str> = datagrams(text.as_bytes(), max)
                .map(|piece| std::str::from_utf8(piece).unwrap())
                .collect();
            assert_eq!(found, expected);
        };
        check("", 10, &[]);
        check("aa\nbb\ncc\n", 9, &["aa\nbb\ncc\n"]);
        check("aa\nbb\ncc\n", 8, &["aa\nbb\n", "cc\n"]);
        check("aa\nbb\ncc\n", 3, &["aa\n", "bb\n", "cc\n"]);
        check("aa\nlong line\ncc\n", 4, &["aa\n", "long line\n", "cc\n"]);
    }
}
