//! `weir send`: sends messages from the command line to an agent.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram, UnixStream};
use std::path::Path;
use std::time::Duration;

use clap::{Arg, ArgMatches, Command};
use weir_listener::Address;
use weir_protocol::{ParseOptions, parse_packet};

use super::switch;
use weir_system::failure::Failure;

/// Timeout, for an agent that stops reading.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Time to wait for the refusal of a datagram: on this machine it usually arrives before `send` returns.
const REFUSAL_HERE: Duration = Duration::from_millis(10);
const REFUSAL_ELSEWHERE: Duration = Duration::from_millis(200);

pub fn command() -> Command {
    Command::new("send")
        .about("Send messages to an agent")
        .after_help("Example: weir send 'page.views:1|c|#env:prod' --to unixgram:///run/weir/dsd.socket")
        .arg(
            Arg::new("message")
                .value_name("MESSAGE")
                .required(true)
                .num_args(1..)
                .help("A metric, event or service check such as 'name:1|c|#a:b'; each is sent as one packet"),
        )
        .arg(to_argument())
        .arg(framing_argument())
        .arg(switch("raw", "Send malformed messages too"))
}

pub fn to_argument() -> Arg {
    Arg::new("to")
        .long("to")
        .value_name("ADDRESS")
        .default_value("udp://127.0.0.1:8125")
        .help("udp://host:port, tcp://host:port, unixgram:///path (datagrams) or unix:///path (stream)")
}

pub fn framing_argument() -> Arg {
    Arg::new("framing")
        .long("framing")
        .default_value("length")
        .value_parser(["length", "newline"])
        .help("The framing of packets on TCP: each after its length in four bytes, or as lines")
}

pub fn send(arguments: &ArgMatches) -> Result<(), Failure> {
    let to = arguments.get_one::<String>("to").map_or("", String::as_str);
    let address = destination(to)?;
    let messages: Vec<&String> = arguments
        .get_many("message")
        .map(Iterator::collect)
        .unwrap_or_default();
    if !arguments.get_flag("raw") {
        for message in &messages {
            refuse_malformed(message)?;
        }
    }
    let newline = arguments
        .get_one::<String>("framing")
        .is_some_and(|framing| framing == "newline");
    deliver(&address, &messages, newline).map_err(|error| failed(&address, &error))
}

/// The error of a failed send.
pub fn failed(address: &Address, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::ConnectionRefused => "no agent receives there",
        io::ErrorKind::NotFound => "the socket does not exist",
        io::ErrorKind::PermissionDenied => "this user has no permission to write to it; see `socket_mode`",
        _ => return Failure::runtime(format!("cannot send to {address}: {error}")),
    };
    let remedy = "is the agent running? `weir run` starts it, --to names another address";
    Failure::runtime(format!("cannot send to {address}: {error}: {hint}; {remedy}"))
}

pub fn destination(text: &str) -> Result<Address, Failure> {
    let address: Address = text
        .parse()
        .map_err(|error| Failure::usage(format!("flag --to: {error}")))?;
    if let Address::Udp { port: 0, .. } | Address::Tcp { port: 0, .. } = address {
        return Err(Failure::usage(format!(
            "flag --to: {address} has no port to send to; agents listen on 8125 by default"
        )));
    }
    Ok(address)
}

/// A typo is better reported here than in a counter of the agent.
fn refuse_malformed(message: &str) -> Result<(), Failure> {
    let options = ParseOptions {
        origin_client: true,
        timestamps: true,
        eol_required: false,
    };
    let mut lines = 0;
    for parsed in parse_packet(message.as_bytes(), &options) {
        lines += 1;
        if let Err(class) = parsed {
            return Err(Failure::usage(format!(
                "{message:?} is not a valid message ({}); the form is 'name:value|type|@rate|#tag:a,tag:b' \
                 with type c, g, h, ms, d or s (--raw sends it anyway)",
                class.as_str()
            )));
        }
    }
    if lines == 0 {
        Err(Failure::usage("the message is empty (--raw sends it anyway)"))
    } else {
        Ok(())
    }
}

fn deliver(address: &Address, messages: &[&String], newline: bool) -> io::Result<()> {
    let mut sender = Sender::connect(address, newline)?;
    messages
        .iter()
        .try_for_each(|message| sender.send(message.as_bytes()))?;
    sender.finish()
}

/// The address of a Unix socket, with a file or without.
fn unix_address(path: &Path) -> io::Result<UnixAddress> {
    match path.as_os_str().as_encoded_bytes().strip_prefix(b"@") {
        Some(name) => UnixAddress::from_abstract_name(name),
        None => UnixAddress::from_pathname(path),
    }
}

/// A connection, or a socket with a destination.
pub enum Sender {
    Udp(UdpSocket),
    UnixDatagram(UnixDatagram),
    Stream { stream: Box<dyn Write>, newline: bool },
}

impl Sender {
    pub fn connect(address: &Address, newline: bool) -> io::Result<Sender> {
        Ok(match address {
            Address::Udp { host, port } => Sender::Udp(match weir_units::loopbacks(host, *port) {
                Some(both) => first_of(both, listening)?,
                None => connected(resolve(host, *port)?)?,
            }),
            Address::UnixDatagram(path) => {
                let socket = UnixDatagram::unbound()?;
                socket.set_write_timeout(Some(TIMEOUT))?;
                socket.connect_addr(&unix_address(path)?)?;
                Sender::UnixDatagram(socket)
            }
            Address::UnixStream(path) => {
                let stream = UnixStream::connect_addr(&unix_address(path)?)?;
                stream.set_write_timeout(Some(TIMEOUT))?;
                Sender::Stream {
                    stream: Box::new(stream),
                    newline: false,
                }
            }
            Address::Tcp { host, port } => {
                let connect = |target| TcpStream::connect_timeout(&target, TIMEOUT);
                let stream = match weir_units::loopbacks(host, *port) {
                    Some(both) => first_of(both, connect)?,
                    None => connect(resolve(host, *port)?)?,
                };
                stream.set_write_timeout(Some(TIMEOUT))?;
                Sender::Stream {
                    stream: Box::new(stream),
                    newline,
                }
            }
        })
    }

    /// One packet.
    pub fn send(&mut self, packet: &[u8]) -> io::Result<()> {
        match self {
            Sender::Udp(socket) => {
                whole(socket.send(packet)?, packet.len())?;
                // On this machine a refusal arrives as soon as the packet is sent.
                socket.take_error()?.map_or(Ok(()), Err)
            }
            Sender::UnixDatagram(socket) => whole(socket.send(packet)?, packet.len()),
            Sender::Stream { stream, newline } => stream.write_all(&framed(packet, *newline)),
        }
    }

    /// Waits for a refusal of the last packet.
    fn finish(self) -> io::Result<()> {
        match self {
            Sender::Udp(socket) => refused(&socket, socket.peer_addr()?),
            _ => Ok(()),
        }
    }
}

/// A closed port refuses a packet on arrival; an open one does not answer.
fn refused(socket: &UdpSocket, target: SocketAddr) -> io::Result<()> {
    let patience = if target.ip().is_loopback() {
        REFUSAL_HERE
    } else {
        REFUSAL_ELSEWHERE
    };
    socket.set_read_timeout(Some(patience))?;
    match socket.recv(&mut [0]) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Err(error),
        _ => Ok(()),
    }
}

/// Takes the first address, or else the second; the error is that of the first.
fn first_of<T>(
    [first, second]: [SocketAddr; 2],
    mut take: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    take(first).or_else(|error| take(second).map_err(|_| error))
}

fn connected(target: SocketAddr) -> io::Result<UdpSocket> {
    let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(target)?;
    Ok(socket)
}

/// A socket to a process on this machine that listens: an empty packet, which says nothing to it, would be refused at once.
fn listening(target: SocketAddr) -> io::Result<UdpSocket> {
    let socket = connected(target)?;
    socket.send(&[])?;
    socket.take_error()?.map_or(Ok(socket), Err)
}

fn resolve(host: &str, port: u16) -> io::Result<SocketAddr> {
    let found: Vec<_> = (host, port).to_socket_addrs()?.collect();
    let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
    first
        .copied()
        .ok_or_else(|| io::Error::other("the host has no address"))
}

fn whole(sent: usize, length: usize) -> io::Result<()> {
    if sent == length {
        Ok(())
    } else {
        Err(io::Error::other("the packet was cut"))
    }
}

fn framed(packet: &[u8], newline: bool) -> Vec<u8> {
    let length = (packet.len() as u32).to_le_bytes();
    match newline {
        true if packet.ends_with(b"\n") => packet.to_vec(),
        true => [packet, b"\n"].concat(),
        false => [&length[..], packet].concat(),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    use weir_system::failure::FailureKind;

    use super::*;

    fn run(arguments: &[&str], to: &str) -> Result<(), Failure> {
        let arguments = [&["weir", "send", "--to", to], arguments].concat();
        crate::cli::main(arguments.into_iter().map(OsString::from))
    }

    /// All of one connection.
    fn all(mut stream: impl io::Read) -> Vec<u8> {
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        received
    }

    #[test]
    fn every_kind_of_address_is_reached() {
        let directory = tempfile::tempdir().unwrap();
        let mut buffer = [0; 100];
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        udp.set_read_timeout(Some(TIMEOUT)).unwrap();
        let to = format!("udp://{}", udp.local_addr().unwrap());
        run(&["a:1|c|#x:y", "b:2|g"], &to).unwrap();
        for expected in ["a:1|c|#x:y", "b:2|g"] {
            let length = udp.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], expected.as_bytes());
        }

        let path = directory.path().join("datagram");
        let datagram = UnixDatagram::bind(&path).unwrap();
        datagram.set_read_timeout(Some(TIMEOUT)).unwrap();
        run(&["a:1|c"], &format!("unixgram://{}", path.display())).unwrap();
        let length = datagram.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"a:1|c");

        let path = directory.path().join("stream");
        let stream = UnixListener::bind(&path).unwrap();
        run(&["a:1|c", "b:2|g"], &format!("unix://{}", path.display())).unwrap();
        let framed = b"\x05\0\0\0a:1|c\x05\0\0\0b:2|g";
        assert_eq!(all(stream.accept().unwrap().0), framed);

        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = format!("tcp://{}", tcp.local_addr().unwrap());
        for (framing, expected) in [("length", &framed[..9]), ("newline", b"a:1|c\n")] {
            run(&["a:1|c", "--framing", framing], &to).unwrap();
            assert_eq!(all(tcp.accept().unwrap().0), expected);
        }
    }

    #[test]
    fn a_missing_receiver_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        // Nobody else asks for a port of this address.
        let free = TcpListener::bind("127.77.0.1:0").unwrap().local_addr().unwrap();
        let missing = directory.path().join("missing");
        for to in [
            format!("udp://{free}"),
            format!("tcp://{free}"),
            format!("unixgram://{}", missing.display()),
            format!("unix://{}", missing.display()),
        ] {
            let failure = run(&["a:1|c"], &to).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Runtime);
            let message = failure.message;
            assert!(
                message.contains(&to) && message.contains("is the agent running?"),
                "{message}"
            );
        }
    }

    #[test]
    fn malformed_messages_and_addresses_are_wrong_usage() {
        let nobody = "udp://127.0.0.1:9";
        for (message, to, parts) in [
            (
                "a:1|c",
                "127.0.0.1:1",
                ["flag --to", "udp://host:port", "unix:///path"],
            ),
            ("a:1|q", nobody, ["bad_type", "--raw", "name:value"]),
            ("", nobody, ["empty", "--raw", ""]),
        ] {
            let failure = run(&[message], to).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Usage);
            for part in parts {
                assert!(failure.message.contains(part), "{part:?}: {failure}");
            }
        }
    }
}
