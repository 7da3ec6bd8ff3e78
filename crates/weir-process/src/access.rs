//! Limits on network senders: settings for the listeners, and reports for users.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use weir_ingest::{AdmissionList, AdmissionSettings, RefusalReason, RefusedSender};
use weir_listener::{
    Address, ListenerConfig, ListenerCounter, Monotonic, RateLimited, SourceRates, TLS_SESSION_BYTES,
    TlsServer,
};
use weir_units::unit_of;

use weir_agent::books::BoundListener;
use weir_agent::budget::{Budget, Share};
use weir_agent::pipeline::PipelineState;
use weir_agent::usage::origin_name;
use weir_status::status::{RateLimitedRow, RefusedSenderRow};
use weir_system::config::{Config, tls_files};
use weir_system::failure::Failure;

/// Minimum interval of log lines about the same source or reason.
const MENTION_INTERVAL: Duration = Duration::from_secs(60);

/// Maximum sources and reasons logged within that time.
const MENTIONS_MAX: usize = 16;

/// Maximum sources that are named.
const NAMED_MAX: usize = 16;

/// Shared by all listeners. Empty if nothing is configured.
#[derive(Clone, Debug, Default)]
pub struct Access {
    rates: Option<Arc<SourceRates>>,
    tls: Option<Arc<TlsServer>>,
    tls_connections_max: usize,
    rate_per_origin: Option<u64>,
    mentioned: Arc<Mutex<HashMap<String, Mention>>>,
}

/// Files that were read again and are valid, but not applied yet.
#[derive(Default)]
pub struct Renewal {
    tls: Option<TlsServer>,
}

#[derive(Debug)]
struct Mention {
    at: Instant,
    /// The total at the last log line.
    reported: u64,
}

impl Access {
    pub fn new(config: &Config, budget: &Budget) -> Result<Access, Failure> {
        let settings = &config.listeners;
        let networks = config.addresses.rates.clone();
        let per_address = settings.senders.rate_limit_per_address;
        let is_limited = !networks.is_empty() || per_address.is_some();
        let rates = is_limited.then(|| Arc::new(SourceRates::new(networks, per_address, Monotonic::now())));
        let tls = match settings.tls() {
            None => None,
            Some(files) => {
                let server = TlsServer::load(&tls_files(&files))
                    .map_err(|error| Failure::usage(format!("tcp_tls_certificate: {error}")))?;
                Some(Arc::new(server))
            }
        };
        // Each listener has its own connections.
        let listeners = config.addresses.tcp.len();
        let share = budget.of_one(Share::TlsSessions, listeners) / TLS_SESSION_BYTES as u64;
        Ok(Access {
            rates,
            tls,
            tls_connections_max: share.max(1) as usize,
            rate_per_origin: settings.senders.rate_limit_per_origin,
            mentioned: Arc::default(),
        })
    }

    /// Reads certificates in use again. A feature that was off at the start stays off.
    ///
    /// # Errors
    ///
    /// The errors in the files; nothing has changed.
    pub fn read_again(&self, config: &Config) -> Result<Renewal, Vec<String>> {
        let mut renewal = Renewal::default();
        let mut errors = Vec::new();
        if let (Some(_), Some(files)) = (&self.tls, config.listeners.tls()) {
            match TlsServer::load(&tls_files(&files)) {
                Ok(server) => renewal.tls = Some(server),
                Err(error) => errors.push(format!("tcp_tls_certificate: {error}")),
            }
        }
        if errors.is_empty() {
            Ok(renewal)
        } else {
            Err(errors)
        }
    }

    /// Applies the files that were read again. Open connections are not affected.
    pub fn renew(&self, renewal: Renewal) {
        if let (Some(server), Some(renewed)) = (&self.tls, renewal.tls) {
            server.replace(renewed);
        }
    }

    /// The workers' settings of allowed senders.
    pub fn admission(config: &Config, listeners: &[&ListenerConfig]) -> AdmissionSettings {
        AdmissionSettings {
            list: Self::admission_list(config),
            listeners: listeners
                .iter()
                .map(|listener| listener.pass_credentials)
                .collect(),
        }
    }

    pub fn admission_list(config: &Config) -> Option<AdmissionList> {
        let list = config.listeners.allowed_origins()?;
        Some(AdmissionList {
            no_container: list.no_container(),
            unknown: list.unknown(),
        })
    }

    /// Applies the settings of one listener.
    pub fn apply(&self, listener: &mut ListenerConfig) {
        match listener.address {
            Address::Udp { .. } => listener.rates.clone_from(&self.rates),
            Address::Tcp { .. } => {
                listener.rates.clone_from(&self.rates);
                listener.tls.clone_from(&self.tls);
                if self.tls.is_some() {
                    listener.max_connections = listener.max_connections.min(self.tls_connections_max);
                }
            }
            Address::UnixDatagram(_) | Address::UnixStream(_) => {}
        }
    }

    /// A remark about a listener beside its address.
    pub fn remark(listener: &ListenerConfig) -> &'static str {
        match (&listener.tls, &listener.address) {
            (Some(_), Address::Tcp { .. }) => ", encrypted",
            _ => "",
        }
    }

    /// Sources above their rate, most losses first.
    pub fn limited(&self, state: &PipelineState) -> Vec<RateLimitedRow> {
        let mut rows: Vec<RateLimitedRow> = Vec::new();
        if let Some(rates) = &self.rates {
            rows.extend(rates.limited(NAMED_MAX).into_iter().map(row));
        }
        let per_origin = self.rate_per_origin.unwrap_or(0);
        for limited in state
            .workers
            .iter()
            .flatten()
            .flat_map(|worker| &worker.senders.limited)
        {
            let source = origin_name(&limited.origin);
            match rows.iter_mut().find(|row| row.source == source) {
                Some(row) => row.packets += limited.packets,
                None => rows.push(RateLimitedRow {
                    source,
                    bytes_per_second: per_origin,
                    packets: limited.packets,
                }),
            }
        }
        rows.sort_by_key(|row| std::cmp::Reverse(row.packets));
        rows.truncate(NAMED_MAX);
        rows
    }

    /// Refused senders of the last minute, most losses first.
    pub fn refused(state: &PipelineState) -> Vec<RefusedSenderRow> {
        let mut rows: Vec<RefusedSenderRow> = Vec::new();
        let refused = state.workers.iter().flatten();
        for sender in refused.flat_map(|worker| &worker.senders.refused) {
            let source = sender_name(sender);
            let reason = sender.reason.as_str();
            match rows
                .iter_mut()
                .find(|row| row.source == source && row.reason == reason)
            {
                Some(row) => row.packets += sender.packets,
                None => rows.push(RefusedSenderRow {
                    source,
                    reason: reason.to_owned(),
                    pid: sender.pid,
                    packets: sender.packets,
                }),
            }
        }
        rows.sort_by_key(|row| std::cmp::Reverse(row.packets));
        rows.truncate(NAMED_MAX);
        rows
    }

    /// Memory in use, by purpose.
    pub fn heap_bytes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let rates = self.rates.iter();
        rates.map(|rates| ("rate_limits", rates.heap_bytes() as u64))
    }

    /// Log lines after a flush.
    pub fn log_lines(&self, state: &PipelineState, listeners: &[BoundListener], now: Instant) -> Vec<String> {
        let mut lines = Vec::new();
        for row in self.limited(state) {
            let (source, rate) = (&row.source, row.bytes_per_second);
            if let Some(new) = self.mention(source, row.packets, now) {
                lines.push(format!(
                    "{source} sends more than its {rate} bytes per second: {new} {} dropped",
                    unit_of(new, "packets")
                ));
            }
        }
        for row in Self::refused(state) {
            let (source, reason, pid) = (&row.source, &row.reason, row.pid);
            if let Some(new) = self.mention(&format!("{source} {reason}"), row.packets, now) {
                let last = match pid {
                    0 => String::new(),
                    pid => format!(", the last of process {pid}"),
                };
                lines.push(format!(
                    "{source} may not send ({reason}, by allowed_origins): {new} {} dropped{last}",
                    unit_of(new, "packets")
                ));
            }
        }
        for (number, listener) in listeners.iter().enumerate() {
            for (what, total) in refusals(state, number) {
                let address = &listener.address;
                if let Some(new) = self.mention(&format!("{address} {what}"), total, now) {
                    lines.push(format!("{address}: {new} {what}"));
                }
            }
        }
        lines
    }

    /// The increase of a total since its last log line, if a new line is due.
    fn mention(&self, what: &str, total: u64, now: Instant) -> Option<u64> {
        let mut mentioned = self.mentioned.lock().unwrap_or_else(PoisonError::into_inner);
        let known = mentioned.get(what);
        let recent = |mention: &Mention| now.duration_since(mention.at) < MENTION_INTERVAL;
        // A total that decreased was removed meanwhile.
        let reported = known.map_or(0, |mention| mention.reported).min(total);
        if total == reported || known.is_some_and(recent) {
            return None;
        }
        if mentioned.values().filter(|mention| recent(mention)).count() >= MENTIONS_MAX {
            return None;
        }
        if has_too_many_known(&mentioned) {
            mentioned.retain(|_, mention| recent(mention));
        }
        let mention = Mention {
            at: now,
            reported: total,
        };
        mentioned.insert(what.to_owned(), mention);
        Some(total - reported)
    }
}

/// Refusals of one listener for reasons other than a single sender's, and what it could not read or name, with their numbers.
fn refusals(state: &PipelineState, listener: usize) -> [(&'static str, u64); 7] {
    let total = |counter: ListenerCounter| -> u64 {
        let workers = state.workers.iter().flatten();
        let listeners = workers.flat_map(|worker| &worker.listeners);
        listeners
            .filter(|counted| usize::from(counted.listener) == listener)
            .map(|counted| counted.socket[counter])
            .sum()
    };
    [
        (
            "connections refused (source not allowed)",
            total(ListenerCounter::ConnectionsRefusedSource),
        ),
        (
            "connections refused (all in use)",
            total(ListenerCounter::ConnectionsRefusedLimit),
        ),
        (
            "connections refused (no descriptors left)",
            total(ListenerCounter::ConnectionsRefusedDescriptors),
        ),
        (
            "connections closed (for a peer that had fewer)",
            total(ListenerCounter::ConnectionsClosedCrowded),
        ),
        (
            "connections closed (idle)",
            total(ListenerCounter::ConnectionsClosedIdle),
        ),
        (
            "frames or lines were too long (does the client send lines where each frame begins with its length?)",
            total(ListenerCounter::FramesTooLong),
        ),
        (
            "packets of senders in another process namespace (their origin stays unknown: give weir the host's namespace)",
            total(ListenerCounter::OriginErrors),
        ),
    ]
}

fn sender_name(sender: &RefusedSender) -> String {
    match (sender.origin.as_str(), sender.reason) {
        ("", RefusalReason::NotAllowed) => "processes outside of containers".to_owned(),
        ("", RefusalReason::Unknown) => "unknown senders".to_owned(),
        (origin, _) => origin_name(origin),
    }
}

/// So that forged names do not stay forever.
fn has_too_many_known(mentioned: &HashMap<String, Mention>) -> bool {
    mentioned.len() >= 64 * MENTIONS_MAX
}

fn row(limited: RateLimited) -> RateLimitedRow {
    RateLimitedRow {
        source: limited.source,
        bytes_per_second: limited.bytes_per_second,
        packets: limited.packets,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_source_is_mentioned_once_a_minute_with_what_is_new() {
        let access = Access::default();
        let start = Instant::now();
        assert_eq!(access.mention("a", 0, start), None, "nothing happened");
        assert_eq!(access.mention("a", 5, start), Some(5));
        assert_eq!(access.mention("a", 9, start + Duration::from_secs(59)), None);
        assert_eq!(access.mention("a", 9, start + MENTION_INTERVAL), Some(4));
        assert_eq!(access.mention("a", 9, start + 3 * MENTION_INTERVAL), None);
        let later = start + 3 * MENTION_INTERVAL;
        let lines = (0..100).filter(|n| access.mention(&format!("source {n}"), 1, later).is_some());
        assert_eq!(lines.count(), MENTIONS_MAX);
    }
}
