//! From the configuration to bound sockets.

use std::net::SocketAddr;

use weir_config::EolTransport;
use weir_listener::{
    Address, AllowList, BoundSocket, Framing, ListenerConfig, ListenerId, MAX_PACKET_BYTES_LIMIT,
};
use weir_protocol::ParseOptions;

use super::access::Access;
use super::books::BoundListener;
use crate::config::Config;
use crate::failure::Failure;

/// Sockets that are bound and not read yet.
pub struct Bound {
    /// What each worker reads.
    pub of_workers: Vec<Vec<(BoundSocket, ListenerId)>>,
    /// In the order of their numbers.
    pub listeners: Vec<BoundListener>,
}

/// Binds all listeners, or none.
pub fn bind(planned: &[(ListenerConfig, ParseOptions)], workers: usize) -> Result<Bound, Failure> {
    if planned.is_empty() {
        return Err(Failure::usage(
            "no listener is configured: set udp, uds, uds_stream or tcp",
        ));
    }
    let mut of_workers: Vec<Vec<(BoundSocket, ListenerId)>> = (0..workers).map(|_| Vec::new()).collect();
    let mut listeners: Vec<BoundListener> = Vec::new();
    for (number, (listener, _)) in planned.iter().enumerate() {
        let id = ListenerId(number as u16);
        let spread = matches!(listener.address, Address::Udp { .. }) && workers > 1;
        let bound = if spread {
            weir_listener::bind_group(listener, workers)
        } else {
            weir_listener::bind(listener).map(|socket| vec![socket])
        }
        .map_err(|error| Failure::runtime(error.to_string()))?;
        let address = bound[0].address().to_string();
        let buffer = bound[0].receive_buffer();
        if let Some(remedy) = buffer.remedy() {
            tracing::warn!("{address}: {remedy}");
        }
        if let Some(warning) = bound[0].warning() {
            tracing::warn!("{address}: {warning}");
        }
        listeners.push(BoundListener {
            address,
            receive_buffer: buffer.granted as u64,
            receive_buffer_wanted: buffer.wanted.unwrap_or(buffer.granted) as u64,
        });
        for (worker, socket) in bound.into_iter().enumerate() {
            // A socket that only one worker reads goes to the workers in turn.
            let worker = if spread { worker } else { number % workers };
            of_workers[worker].push((socket, id));
        }
    }
    // Once all are there: whoever waits for one of these lines may connect to any of them.
    for ((listener, _), bound) in planned.iter().zip(&listeners) {
        tracing::info!("listening on {}{}", bound.address, Access::remark(listener));
    }
    Ok(Bound {
        of_workers,
        listeners,
    })
}

/// The listeners in the order of their numbers, each with what its messages may contain.
pub fn plan(config: &Config, access: &Access) -> Vec<(ListenerConfig, ParseOptions)> {
    let settings = &config.listeners;
    let mut planned = Vec::new();
    let mut plan = |address: Address, framing: Option<Framing>, eol_required: bool| {
        let mut listener = ListenerConfig::new(address);
        listener.framing = framing.unwrap_or(listener.framing);
        listener.receive_buffer_bytes = settings.receive_buffer.map(|bytes| bytes as usize);
        // The ring's slots are as long, so a shorter limit would save nothing.
        listener.max_packet_bytes = MAX_PACKET_BYTES_LIMIT;
        listener.socket_mode = settings.socket_mode.0;
        listener.socket_owner = config.addresses.socket_ownership.uid;
        listener.socket_group = config.addresses.socket_ownership.gid;
        listener.sticky_directory = settings.socket_directory_sticky;
        let is_unix = matches!(
            listener.address,
            Address::UnixDatagram(_) | Address::UnixStream(_)
        );
        listener.pass_credentials = config.origin.origin_detection && is_unix;
        listener.allow = AllowList::new(settings.allowed_networks.clone());
        access.apply(&mut listener);
        let options = ParseOptions {
            origin_client: config.origin.origin_client,
            timestamps: config.aggregation.timestamps,
            eol_required,
        };
        planned.push((listener, options));
    };
    let framing = match settings.tcp_framing {
        weir_config::Framing::Length => Framing::LengthPrefixed,
        weir_config::Framing::Newline => Framing::Newline,
    };
    let port_of = |address: &SocketAddr| (address.ip().to_string(), address.port());
    let udp = |address| {
        let (host, port) = port_of(address);
        Address::Udp { host, port }
    };
    let eol = |transport| settings.requires_eol(transport);
    for address in &config.addresses.udp {
        plan(udp(address), None, eol(EolTransport::Udp));
    }
    for path in &settings.uds {
        plan(
            Address::UnixDatagram(path.to_path_buf()),
            None,
            eol(EolTransport::Uds),
        );
    }
    for path in &settings.uds_stream {
        plan(
            Address::UnixStream(path.to_path_buf()),
            None,
            eol(EolTransport::Uds),
        );
    }
    for address in &config.addresses.tcp {
        let (host, port) = port_of(address);
        plan(Address::Tcp { host, port }, Some(framing), false);
    }
    share_descriptors(&mut planned);
    planned
}

/// Descriptors that connections never take: for the admin address, the outputs with their connections and files, and what
/// weir reads of the system. Far more than all of that has been seen to need.
const DESCRIPTORS_KEPT: u64 = 256;

/// Connections of all listeners together leave the others what they need.
fn share_descriptors(planned: &mut [(ListenerConfig, ParseOptions)]) {
    let limit = match crate::sys::raise_descriptor_limit() {
        Ok(limit) => limit,
        Err(error) => {
            tracing::warn!("the limit of open descriptors cannot be read: {error}");
            return;
        }
    };
    let mut streams: Vec<&mut ListenerConfig> = planned
        .iter_mut()
        .map(|(listener, _)| listener)
        .filter(|listener| listener.address.is_stream())
        .collect();
    let share = connections_max(limit) / streams.len().max(1) as u64;
    for listener in &mut streams {
        listener.max_connections = listener.max_connections.min(share.max(1) as usize);
        let most = listener.max_connections;
        tracing::debug!(
            "{}: at most {most} connections; {limit} descriptors",
            listener.address
        );
    }
}

fn connections_max(descriptors: u64) -> u64 {
    descriptors - DESCRIPTORS_KEPT.min(descriptors / 2)
}
