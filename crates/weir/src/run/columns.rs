//! The listeners of columns: their settings, and the way to the workers.

use std::sync::Arc;

use weir_ingest::{ListenerSettings, WorkerHandle};
use weir_listener::{Address, BoundSocket, ListenerConfig};

use super::listeners::Bound;
use crate::budget::Budget;
use crate::columns::{ColumnListener, Columns};

/// The shared part of the listeners of columns, and each of them with its socket. `None`: there are none.
pub fn prepare(
    bound: &mut Bound,
    planned: &[(ListenerConfig, ListenerSettings)],
    workers: &[WorkerHandle],
    budget: &Budget,
) -> (Option<Arc<Columns>>, Vec<(BoundSocket, ColumnListener)>) {
    if bound.columns.is_empty() {
        return (None, Vec::new());
    }
    let senders = workers.iter().map(WorkerHandle::commands).collect();
    let columns = Columns::new(senders, planned.len(), budget.columns());
    let listener = |(socket, id): (BoundSocket, weir_listener::ListenerId)| {
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
        (socket, listener)
    };
    let sockets = std::mem::take(&mut bound.columns)
        .into_iter()
        .map(listener)
        .collect();
    (Some(columns), sockets)
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
