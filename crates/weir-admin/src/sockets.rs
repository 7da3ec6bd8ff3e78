//! The listening sockets of the admin address: for `localhost` one of each family.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::task::Poll;

use tokio::net::{TcpListener, TcpStream};

pub struct AdminSockets {
    /// At least one.
    listeners: Vec<TcpListener>,
    first: SocketAddr,
}

/// The page for a browser on this machine: an address that stands for every interface is none that can be opened.
pub fn page_url(address: SocketAddr) -> String {
    match address.ip().is_unspecified() {
        true => format!("http://localhost:{}/", address.port()),
        false => format!("http://{address}/"),
    }
}

/// An address that cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("admin: {address} cannot be bound: {error}; --admin sets another address, or off")]
pub struct AdminBindError {
    address: SocketAddr,
    error: io::Error,
}

impl AdminSockets {
    /// Binds all addresses, or uses the socket of another process where `passed` has it. `None`: there is no address.
    pub async fn bind(
        addresses: &[SocketAddr],
        mut passed: impl FnMut(SocketAddr) -> Option<std::net::TcpListener>,
    ) -> Result<Option<Self>, AdminBindError> {
        let (mut listeners, mut first) = (Vec::new(), None);
        for &address in addresses {
            let bound = match passed(address) {
                Some(listener) => listener
                    .set_nonblocking(true)
                    .and_then(|()| TcpListener::from_std(listener)),
                None => TcpListener::bind(address).await,
            };
            let failed = |error| AdminBindError { address, error };
            let listener = bound.map_err(failed)?;
            first.get_or_insert(listener.local_addr().map_err(failed)?);
            listeners.push(listener);
        }
        Ok(first.map(|first| Self { listeners, first }))
    }

    /// The first of the bound addresses, with the actual port.
    pub fn first(&self) -> SocketAddr {
        self.first
    }

    /// Copies, to be handed over.
    pub fn share(&self) -> io::Result<Vec<OwnedFd>> {
        let listeners = self.listeners.iter();
        listeners
            .map(|listener| listener.as_fd().try_clone_to_owned())
            .collect()
    }

    /// Writes the addresses to the log.
    pub fn announce(&self) {
        tracing::info!("admin on http://{}", self.first);
        let others = self.listeners.iter().skip(1);
        for address in others.filter_map(|listener| listener.local_addr().ok()) {
            tracing::info!("admin on http://{address} too");
        }
    }

    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        std::future::poll_fn(|context| {
            let mut ready = self
                .listeners
                .iter()
                .map(|listener| listener.poll_accept(context));
            ready.find(Poll::is_ready).unwrap_or(Poll::Pending)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_every_interface_is_opened_at_localhost() {
        for (bound, opened) in [
            ("127.0.0.1:8127", "http://127.0.0.1:8127/"),
            ("[::1]:8127", "http://[::1]:8127/"),
            ("10.1.2.3:9102", "http://10.1.2.3:9102/"),
            ("0.0.0.0:9102", "http://localhost:9102/"),
            ("[::]:9102", "http://localhost:9102/"),
        ] {
            assert_eq!(page_url(bound.parse().unwrap()), opened);
        }
    }
}
