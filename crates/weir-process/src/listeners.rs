//! Binds the configured sockets.

use std::net::SocketAddr;

use weir_config::{EolTransport, ListenerReading};
use weir_ingest::ListenerSettings;
use weir_listener::{
    Address, AllowList, BoundSocket, Framing, ListenerConfig, ListenerId, MAX_PACKET_BYTES_LIMIT,
};
use weir_protocol::ParseOptions;

use crate::access::Access;
use crate::kept::{self, Adopted, PassedSockets};
use weir_admin::tap::TapListener;
use weir_agent::books::BoundListener;
use weir_agent::hand_over::HandedListener;
use weir_system::config::Config;
use weir_system::failure::Failure;
use weir_system::notify::Notify;

/// Sockets that are bound and not read yet.
pub struct Bound {
    /// The sockets of each worker.
    pub of_workers: Vec<Vec<(BoundSocket, ListenerId)>>,
    /// Sockets of the listeners of columns, which the control plane serves.
    pub columns: Vec<(BoundSocket, ListenerId)>,
    /// In the order of listener numbers.
    pub listeners: Vec<BoundListener>,
    /// The same in the form for another process.
    pub sources: Vec<HandedListener>,
}

impl Bound {
    /// Counts drops from the previous process's last values, by socket number.
    pub fn count_drops_from(&mut self, drops: &[(u64, u32)]) {
        for (socket, _) in self.of_workers.iter_mut().flatten() {
            socket.count_drops_from(drops);
        }
    }

    /// Called when the previous process no longer reads them.
    pub fn own(&mut self) {
        self.of_workers
            .iter_mut()
            .flatten()
            .chain(&mut self.columns)
            .for_each(|(socket, _)| socket.own());
    }
}

/// Binds all listeners, or none. Uses passed sockets where they fit.
pub fn bind(
    planned: &[(ListenerConfig, ListenerSettings)],
    workers: usize,
    mut passed: PassedSockets,
    notify: &Notify,
) -> Result<Bound, Failure> {
    if planned.is_empty() {
        return Err(Failure::usage(
            "no listener is configured: set udp, uds, uds_stream, tcp, http or http_uds",
        ));
    }
    // The kernel would give datagrams to further sockets at once, and they would be lost if the previous process had to continue.
    let may_add = !passed.are_of_process();
    let mut of_workers: Vec<Vec<(BoundSocket, ListenerId)>> = (0..workers).map(|_| Vec::new()).collect();
    let mut listeners: Vec<BoundListener> = Vec::new();
    let mut sockets: Vec<Vec<Adopted>> = Vec::new();
    for (listener, reading) in planned {
        let is_udp = matches!(listener.address, Address::Udp { .. });
        let spread = is_udp && workers > 1;
        // A process with more workers had more sockets for the address, and each may hold datagrams.
        let mut bound = passed.adopt((listener, reading), if is_udp { usize::MAX } else { 1 })?;
        let kept = bound.len();
        let missing = match bound.first() {
            None if spread => weir_listener::bind_group(listener, workers),
            None => weir_listener::bind(listener).map(|socket| vec![socket]),
            Some(first) if spread && may_add => {
                weir_listener::bind_beside(listener, &first.socket, workers.saturating_sub(kept))
            }
            Some(_) => Ok(Vec::new()),
        };
        let missing = missing.map_err(|error| Failure::runtime(error.to_string()))?;
        if spread && !may_add && (1..workers).contains(&kept) {
            tracing::warn!(
                "{}: {kept} of {workers} workers receive, as many as the previous process had sockets; a start without a hand-over \
                 uses all of them",
                listener.address
            );
        }
        bound.extend(missing.into_iter().map(Adopted::own));
        let first = &bound[0].socket;
        let address = shown(first.address(), reading);
        let buffer = first.receive_buffer();
        if let Some(remedy) = buffer.remedy() {
            tracing::warn!("{address}: {remedy}");
        }
        if let Some(warning) = first.warning() {
            tracing::warn!("{address}: {warning}");
        }
        listeners.push(BoundListener {
            address,
            receive_buffer: buffer.granted as u64,
            receive_buffer_wanted: buffer.wanted.unwrap_or(buffer.granted) as u64,
            kept: kept as u64,
        });
        sockets.push(bound);
    }
    passed.close_the_rest(notify);
    keep_all(planned, &mut sockets, notify);
    let source =
        |((listener, reading), bound): (&(ListenerConfig, ListenerSettings), &Vec<Adopted>)| HandedListener {
            address: shown(&listener.address, reading),
            of_unit: bound.iter().any(|bound| bound.of_unit),
        };
    let sources = planned.iter().zip(&sockets).map(source).collect();
    let mut columns = Vec::new();
    for (number, bound) in sockets.into_iter().enumerate() {
        if planned[number].1.takes_columns {
            columns.extend(
                bound
                    .into_iter()
                    .map(|bound| (bound.socket, ListenerId(number as u16))),
            );
            continue;
        }
        let spread = bound.len() > 1;
        for (worker, bound) in bound.into_iter().enumerate() {
            // Sockets that only one worker reads are assigned in turn.
            let worker = if spread { worker } else { number };
            of_workers[worker % workers].push((bound.socket, ListenerId(number as u16)));
        }
    }
    // After all are bound: a program that waits for one of these lines may connect to any of them.
    for ((listener, _), bound) in planned.iter().zip(&listeners) {
        let kept = if bound.kept > 0 {
            ", on a socket that was passed"
        } else {
            ""
        };
        tracing::info!("listening on {}{}{kept}", bound.address, Access::remark(listener));
    }
    Ok(Bound {
        of_workers,
        columns,
        listeners,
        sources,
    })
}

/// The address of a listener, in the form of `per_listener`.
pub fn shown(address: &Address, reading: &ListenerSettings) -> String {
    match address {
        Address::Tcp { .. } if reading.takes_columns => address.to_string().replacen("tcp", "http", 1),
        Address::UnixStream(path) if reading.takes_columns => format!("http+unix://{}", path.display()),
        _ => address.to_string(),
    }
}

/// Stores sockets with the service manager, unless they belong to a socket unit.
fn keep_all(planned: &[(ListenerConfig, ListenerSettings)], sockets: &mut [Vec<Adopted>], notify: &Notify) {
    let own = |bound: &&mut Adopted| !bound.of_unit;
    let number = sockets.iter_mut().flatten().filter(own).count();
    let most = notify.store_max();
    if most == 0 || number == 0 {
        return;
    }
    if number > most {
        tracing::warn!(
            "{number} sockets should survive a restart, but the service manager keeps at most {most}, so it keeps none; raise FileDescriptorStoreMax="
        );
        return;
    }
    for ((listener, reading), bound) in planned.iter().zip(sockets) {
        let own = bound.iter_mut().filter(|bound| !bound.of_unit);
        let mut own: Vec<_> = own.map(|bound| &mut bound.socket).collect();
        kept::keep(notify, &shown(&listener.address, reading), &mut own);
    }
}

/// The same listeners, for readers of their packets.
pub fn tap_listeners(
    planned: &[(ListenerConfig, ListenerSettings)],
    bound: &[BoundListener],
) -> Vec<TapListener> {
    let all = planned.iter().zip(bound);
    let listeners = all.map(|((_, reading), bound)| TapListener {
        address: bound.address.clone(),
        reading: *reading,
    });
    listeners.collect()
}

/// The listeners in the order of their numbers, each with its parse settings.
pub fn plan(config: &Config, access: &Access) -> Vec<(ListenerConfig, ListenerSettings)> {
    let settings = &config.listeners;
    let mut planned = Vec::new();
    let mut plan = |transport: &str, address: Address, framing: Option<Framing>, eol_required: bool| {
        let takes_columns = matches!(transport, "http" | "http_uds");
        let as_columns = ListenerSettings {
            takes_columns,
            ..ListenerSettings::default()
        };
        let own = settings.reading(transport, &shown(&address, &as_columns));
        let mut listener = ListenerConfig::new(address);
        listener.framing = framing.unwrap_or(listener.framing);
        listener.receive_buffer_bytes = settings.receive_buffer.map(|bytes| bytes as usize);
        // The ring's slots have this length, so a shorter limit would save nothing.
        listener.max_packet_bytes = MAX_PACKET_BYTES_LIMIT;
        listener.socket_mode = settings.socket_file.socket_mode.0;
        listener.socket_owner = config.addresses.socket_ownership.uid;
        listener.socket_group = config.addresses.socket_ownership.gid;
        listener.sticky_directory = settings.socket_file.socket_directory_sticky;
        let is_unix = matches!(
            listener.address,
            Address::UnixDatagram(_) | Address::UnixStream(_)
        );
        listener.pass_credentials = config.origin.origin_detection && is_unix;
        listener.allow = AllowList::new(settings.senders.allowed_networks.clone());
        access.apply(&mut listener);
        let options = ParseOptions {
            origin_client: config.origin.origin_client,
            timestamps: config.aggregation.timestamps,
            eol_required,
        };
        let reading = ListenerSettings {
            parse: options,
            gauge_deltas: own
                .and_then(ListenerReading::own_gauge_deltas)
                .unwrap_or(config.aggregation.statsd_gauge_deltas),
            sample_lists: own
                .and_then(ListenerReading::own_sample_lists)
                .unwrap_or(config.aggregation.statsd_sample_lists),
            names: own.and_then(ListenerReading::own_tag_styles).into(),
            takes_columns,
            merge_within: own
                .and_then(ListenerReading::own_merge)
                .unwrap_or(true)
                .then_some(settings.http_merge_within.as_secs() as u32),
        };
        planned.push((listener, reading));
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
        plan("udp", udp(address), None, eol(EolTransport::Udp));
    }
    for path in &settings.uds {
        plan(
            "uds",
            Address::UnixDatagram(path.to_path_buf()),
            None,
            eol(EolTransport::Uds),
        );
    }
    for path in &settings.uds_stream {
        plan(
            "uds_stream",
            Address::UnixStream(path.to_path_buf()),
            None,
            eol(EolTransport::Uds),
        );
    }
    for address in &config.addresses.tcp {
        let (host, port) = port_of(address);
        plan("tcp", Address::Tcp { host, port }, Some(framing), false);
    }
    for address in &config.addresses.http {
        let (host, port) = port_of(address);
        plan("http", Address::Tcp { host, port }, None, false);
    }
    for path in &settings.http_uds {
        plan("http_uds", Address::UnixStream(path.to_path_buf()), None, false);
    }
    share_ports(&mut planned);
    share_descriptors(&mut planned);
    planned
}

/// `[::]` takes IPv4 too, unless `0.0.0.0` with the same port is a listener of its own.
fn share_ports(planned: &mut [(ListenerConfig, ListenerSettings)]) {
    let in_ipv4 = |address: &Address| match address {
        Address::Udp { host, port } if host == "::" && *port != 0 => Some(Address::Udp {
            host: "0.0.0.0".to_owned(),
            port: *port,
        }),
        Address::Tcp { host, port } if host == "::" && *port != 0 => Some(Address::Tcp {
            host: "0.0.0.0".to_owned(),
            port: *port,
        }),
        _ => None,
    };
    let all: Vec<Address> = planned
        .iter()
        .map(|(listener, _)| listener.address.clone())
        .collect();
    for (listener, _) in planned {
        listener.sharing.ipv6_only = in_ipv4(&listener.address).is_some_and(|address| all.contains(&address));
    }
}

/// Descriptors reserved for the admin address, the outputs with their connections and files, and files that weir reads. Far more than we
/// have seen in use.
const DESCRIPTORS_KEPT: u64 = 256;

/// Limits the connections of all listeners together.
fn share_descriptors(planned: &mut [(ListenerConfig, ListenerSettings)]) {
    let limit = match weir_system::sys::raise_descriptor_limit() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv6_leaves_a_port_to_a_listener_for_ipv4() {
        let only = |addresses: &[&str]| -> Vec<bool> {
            let listener = |address: &&str| {
                let address = address.parse().unwrap();
                (ListenerConfig::new(address), ListenerSettings::default())
            };
            let mut planned: Vec<_> = addresses.iter().map(listener).collect();
            share_ports(&mut planned);
            planned
                .iter()
                .map(|(listener, _)| listener.sharing.ipv6_only)
                .collect()
        };
        assert_eq!(only(&["udp://[::]:1", "udp://0.0.0.0:1"]), [true, false]);
        assert_eq!(only(&["tcp://0.0.0.0:1", "tcp://[::]:1"]), [false, true]);
        for others in [
            ["udp://[::]:1", "udp://0.0.0.0:2"],
            ["udp://[::]:1", "tcp://0.0.0.0:1"],
            ["udp://[::]:1", "udp://127.0.0.1:1"],
            ["udp://[::1]:1", "udp://0.0.0.0:1"],
        ] {
            assert_eq!(only(&others), [false, false], "{others:?}");
        }
    }
}
