//! The listeners of columns: their settings, and the way to the workers.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use weir_ingest::{ListenerSettings, WorkerHandle};
use weir_listener::{Address, BoundSocket, ListenerConfig, ListenerId};

use crate::columns::{ColumnListener, ColumnSocket, Columns};
use crate::listeners::Bound;
use weir_agent::budget::Budget;
use weir_agent::state::SavedPayloads;
use weir_system::failure::Failure;

type Prepared = (Option<Arc<Columns>>, Vec<(ColumnSocket, ColumnListener)>);

/// The shared part of the listeners of columns, and each of them with its socket. `None`: there are none.
pub fn prepare(
    bound: &mut Bound,
    planned: &[(ListenerConfig, ListenerSettings)],
    workers: &[WorkerHandle],
    budget: &Budget,
    saved: SavedPayloads,
) -> Result<Prepared, Failure> {
    if bound.columns.is_empty() {
        return Ok((None, Vec::new()));
    }
    let senders = workers.iter().map(WorkerHandle::commands).collect();
    let descriptors = bound
        .columns
        .iter()
        .map(|(socket, id)| Ok((*id, socket.as_fd().try_clone_to_owned()?)));
    let descriptors = descriptors
        .collect::<io::Result<_>>()
        .map_err(|error| Failure::runtime(format!("a listener of columns cannot be shared: {error}")))?;
    let columns = Columns::new(senders, descriptors, planned.len(), budget.columns(), saved);
    let listener = |(socket, id): (BoundSocket, ListenerId)| {
        let number = usize::from(id.0);
        let (config, _) = &planned[number];
        let listener = ColumnListener {
            number,
            address: bound.listeners[number].address.clone(),
            allow: config.allow.clone(),
            rates: config.rates.clone(),
            has_credentials: config.pass_credentials,
            is_loopback: is_loopback(socket.address()),
        };
        (ColumnSocket::new(socket, columns.clone()), listener)
    };
    let sockets = std::mem::take(&mut bound.columns)
        .into_iter()
        .map(listener)
        .collect();
    Ok((Some(columns), sockets))
}

fn is_loopback(address: &Address) -> bool {
    match address {
        Address::Tcp { host, .. } => {
            let address = host.parse::<std::net::IpAddr>();
            address.is_ok_and(|address| address.to_canonical().is_loopback())
        }
        _ => false,
    }
}
