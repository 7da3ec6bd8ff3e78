//! Streamed answers of the agent.

use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use clap::{Arg, ArgAction};

use super::agent::{error_message, foreign, get, unreachable};
use weir_system::failure::Failure;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum bytes of a header, and of an error.
const HEAD_BYTES_MAX: u64 = 16 << 10;

/// A filter of messages by their tags.
pub fn where_argument() -> Arg {
    Arg::new("where")
        .long("where")
        .value_name("KEY:VALUE")
        .action(ArgAction::Append)
        .help("Only messages with this tag, or with any value of KEY; several are combined with AND")
}

/// The query string of a URL.
pub fn query(pairs: &[(&str, String)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (name, value) in pairs.iter().filter(|(_, value)| !value.is_empty()) {
        query.append_pair(name, value);
    }
    query.finish()
}

/// The body of a streamed answer.
pub struct Body {
    reader: BufReader<TcpStream>,
}

impl Body {
    /// Sends a request. `quiet`: timeout between two parts of the answer.
    pub fn open(address: SocketAddr, path: &str, quiet: Duration) -> Result<Body, Failure> {
        let failed = |error| unreachable(address, &error);
        let mut stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).map_err(failed)?;
        stream.set_read_timeout(Some(quiet)).map_err(failed)?;
        stream.set_write_timeout(Some(CONNECT_TIMEOUT)).map_err(failed)?;
        let request = get(address, path)?;
        // A peer that hangs up early may have answered.
        let _ = stream.write_all(request.as_bytes());
        let mut reader = BufReader::new(stream);
        let head = head(&mut reader).map_err(failed)?;
        let code = head.split_whitespace().nth(1).unwrap_or_default();
        if head.starts_with("HTTP/1.") && code == "200" {
            return Ok(Body { reader });
        }
        Err(refused(address, &head, code, &mut reader))
    }

    /// Ends the stream from another thread.
    pub fn stopper(&self) -> io::Result<impl FnOnce() + Send + 'static> {
        let stream = self.reader.get_ref().try_clone()?;
        // A stream that has ended needs no shutdown.
        Ok(move || drop(stream.shutdown(Shutdown::Both)))
    }
}

impl io::Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reader.read(buffer)
    }
}

impl BufRead for Body {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.reader.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.reader.consume(amount);
    }
}

/// Whether the agent has cut its answer, instead of ending it.
pub fn is_cut(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionReset
}

/// Up to the empty line.
fn head(reader: &mut impl BufRead) -> io::Result<String> {
    let mut head = String::new();
    let mut limited = reader.take(HEAD_BYTES_MAX);
    while !head.ends_with("\r\n\r\n") {
        if limited.read_line(&mut head)? == 0 {
            break;
        }
    }
    Ok(head)
}

fn refused(address: SocketAddr, head: &str, code: &str, reader: &mut impl BufRead) -> Failure {
    let mut body = String::new();
    // An unreadable body is ignored.
    let _ = reader.take(HEAD_BYTES_MAX).read_to_string(&mut body);
    match error_message(code, &body).filter(|_| head.starts_with("HTTP/1.")) {
        Some(reason) => Failure::runtime(format!("the agent at {address} says {reason}")),
        None => foreign(address, head),
    }
}
