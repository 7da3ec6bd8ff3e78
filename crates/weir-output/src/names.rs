//! Addresses of the hosts that outputs send to, and connections to the first that has somebody.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::{TcpStream, UdpSocket};

/// The addresses of a host, in the order to try them. `localhost` has both families whatever the machine's table of hosts says, because its
/// server may listen on either.
async fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    match weir_units::loopbacks(host, port) {
        Some(both) => Ok(both.into()),
        None => Ok(tokio::net::lookup_host((host, port)).await?.collect()),
    }
}

fn no_address() -> io::Error {
    io::Error::other("the name has no address")
}

/// Whether there is a second address of `localhost`.
pub fn has_ipv6_loopback() -> bool {
    std::net::UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok()
}

/// A connection to the first address that accepts one. The error is that of the first.
pub async fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut first = None;
    for address in addresses(host, port).await? {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(first.unwrap_or_else(no_address))
}

/// Sockets to the addresses of a host to which there is a way, at least one. Where nobody listens on this machine the socket is left out, as
/// long as there is another.
pub async fn connect_udp(host: &str, port: u16) -> io::Result<Vec<UdpSocket>> {
    let (mut found, mut refusing, mut first) = (Vec::new(), Vec::new(), None);
    let addresses = addresses(host, port).await?;
    let is_choice = addresses.len() > 1;
    for address in addresses {
        match connected(address).await {
            Ok(socket) if is_choice && is_refused(&socket, address).await => refusing.push(socket),
            Ok(socket) => found.push(socket),
            Err(error) => first = first.or(Some(error)),
        }
    }
    if found.is_empty() {
        found = refusing;
    }
    match found.is_empty() {
        true => Err(first.unwrap_or_else(no_address)),
        false => Ok(found),
    }
}

async fn connected(address: SocketAddr) -> io::Result<UdpSocket> {
    let any = match address {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(address).await?;
    Ok(socket)
}

/// Whether no server listens there: on this machine the kernel then refuses a packet at once. It is empty, which a server ignores.
async fn is_refused(socket: &UdpSocket, address: SocketAddr) -> bool {
    address.ip().is_loopback()
        && (socket.send(&[]).await.is_err() || !matches!(socket.take_error(), Ok(None)))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use tokio::net::TcpSocket;

    use super::*;

    fn loopback(is_ipv6: bool, port: u16) -> SocketAddr {
        let ip = match is_ipv6 {
            true => IpAddr::from(Ipv6Addr::LOCALHOST),
            false => Ipv4Addr::LOCALHOST.into(),
        };
        (ip, port).into()
    }

    /// A port of TCP that is held and refuses.
    fn refusing_tcp(is_ipv6: bool, port: u16) -> io::Result<TcpSocket> {
        let socket = match is_ipv6 {
            true => TcpSocket::new_v6()?,
            false => TcpSocket::new_v4()?,
        };
        socket.bind(loopback(is_ipv6, port)).map(|()| socket)
    }

    /// The same of UDP: its socket takes packets of one other port alone.
    fn refusing_udp(is_ipv6: bool, port: u16) -> io::Result<std::net::UdpSocket> {
        let socket = std::net::UdpSocket::bind(loopback(is_ipv6, port))?;
        socket.connect(loopback(is_ipv6, 9)).map(|()| socket)
    }

    #[tokio::test]
    async fn localhost_is_where_somebody_listens() {
        if !has_ipv6_loopback() {
            return println!("skipped: this machine has no ::1");
        }
        for is_ipv6 in [false, true] {
            let (_refusing, listener) = loop {
                let listener = tokio::net::TcpListener::bind(loopback(is_ipv6, 0)).await.unwrap();
                let port = listener.local_addr().unwrap().port();
                if let Ok(refusing) = refusing_tcp(!is_ipv6, port) {
                    break (refusing, listener);
                }
            };
            let there = listener.local_addr().unwrap();
            let stream = connect_tcp("localhost", there.port()).await.unwrap();
            assert_eq!(stream.peer_addr().unwrap(), there);

            let (_refusing, receiver) = loop {
                let receiver = std::net::UdpSocket::bind(loopback(is_ipv6, 0)).unwrap();
                let port = receiver.local_addr().unwrap().port();
                if let Ok(refusing) = refusing_udp(!is_ipv6, port) {
                    break (refusing, receiver);
                }
            };
            let there = receiver.local_addr().unwrap();
            let found = connect_udp("LOCALHOST.", there.port()).await.unwrap();
            let peers: Vec<_> = found.iter().map(|socket| socket.peer_addr().unwrap()).collect();
            assert_eq!(peers, [there]);
        }
    }

    #[tokio::test]
    async fn without_anybody_the_error_is_that_of_the_first_address() {
        let refusing = refusing_tcp(false, 0).unwrap();
        let port = refusing.local_addr().unwrap().port();
        let _both = refusing_tcp(true, port);
        let error = connect_tcp("localhost", port).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
