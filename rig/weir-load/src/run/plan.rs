//! Combines options and profile, and checks them before the first socket is opened.

use super::{Backpressure, Framing, Options, RunError};
use crate::profile::{Payload, StreamFraming, Transport};
use crate::requests;
use crate::source::Load;
use crate::units::RateUnit;
use std::time::Duration;

/// The plan of a load.
pub struct Plan {
    /// Whether packets are requests, each of which waits for its answer.
    pub http: bool,
    pub threads: u32,
    pub framing: Framing,
    pub quantum: Duration,
    /// Whether packets that the target does not accept are skipped.
    pub skip: bool,
}

fn usage(text: impl Into<String>) -> Result<(), RunError> {
    Err(RunError::Usage(text.into()))
}

impl Plan {
    pub fn of(load: &Load, options: &Options) -> Result<Plan, RunError> {
        check_times(options)?;
        check_extras(load, options)?;
        let http = load.transport == Transport::Http;
        let all = load.profile.connections;
        let on_schedule = load.profile.rate_unit().is_some();
        Ok(Plan {
            http,
            // Every HTTP connection has its own thread, because it waits for answers.
            threads: if http { all } else { options.threads.clamp(1, all) },
            framing: framing(load, options)?,
            quantum: options.quantum.unwrap_or_else(|| usual_quantum(load)),
            skip: match options.backpressure {
                Backpressure::Skip => true,
                Backpressure::Wait => false,
                Backpressure::Auto => load.transport.is_datagram() && on_schedule,
            },
        })
    }
}

fn check_times(options: &Options) -> Result<(), RunError> {
    if options.duration.is_none() && options.count.is_none() {
        return usage("say when to stop: --duration, --count or both");
    }
    if options.duration == Some(Duration::ZERO) || options.count == Some(0) {
        return usage("duration, count: zero would send nothing");
    }
    for (name, time) in [("quantum", options.quantum), ("markers", options.markers)] {
        if time.is_some_and(|time| time < Duration::from_micros(10)) {
            return usage(format!("{name}: must be 10us or longer"));
        }
    }
    Ok(())
}

fn check_extras(load: &Load, options: &Options) -> Result<(), RunError> {
    let profile = &load.profile;
    let exact = profile.packet_size_on(load.transport).exact();
    if options.gso && (load.transport != Transport::Udp || exact.is_none()) {
        return usage("gso: joining datagrams needs udp:// and a profile with `packet_size: {exactly: ...}`");
    }
    if !options.headers.is_empty() && load.transport != Transport::Http {
        return usage("headers: only requests have them, to http:// and grpc://");
    }
    if options.markers.is_some() && load.transport == Transport::Http {
        return usage("markers: a gauge between requests would be no request; they need another transport");
    }
    for header in &options.headers {
        requests::check_header(header).map_err(|error| RunError::Usage(error.to_string()))?;
    }
    if profile.first_pass_at_once && load.transport == Transport::Http {
        return usage(
            "first_pass_at_once: a process that sends requests waits for the end of its window; use another transport",
        );
    }
    let fits = options.target.takes(profile.payload);
    fits.map_err(|error| RunError::Usage(error.to_string()))
}

fn framing(load: &Load, options: &Options) -> Result<Framing, RunError> {
    let asked = load.profile.framing.map(|framing| match framing {
        StreamFraming::Length => Framing::Length,
        StreamFraming::Newline => Framing::Newline,
    });
    let framing = options.framing.or(asked).unwrap_or(match load.transport {
        Transport::Unix => Framing::Length,
        Transport::Tcp if load.profile.payload == Payload::Dogstatsd => Framing::Length,
        Transport::Tcp => Framing::Newline,
        _ => Framing::None,
    });
    let name = load.transport.name();
    let http = load.transport == Transport::Http;
    match framing == Framing::None {
        false if load.transport.is_datagram() => usage(format!(
            "framing: {name} keeps packet boundaries by itself; framing bytes would be junk to the target"
        ))?,
        false if http => usage("framing: a request is a packet by itself")?,
        true if !load.transport.is_datagram() && !http => {
            usage(format!("framing: {name} is a stream; choose length or newline"))?;
        }
        _ => {}
    }
    Ok(framing)
}

/// 1 ms, unless a usual receive buffer cannot hold the resulting burst. Shorter quanta cost the sender a fifth more per packet, because it
/// and the receiver wake more often.
fn usual_quantum(load: &Load) -> Duration {
    let size = load.profile.packet_size_on(load.transport).max() as f64;
    let packets = load.profile.rate.map_or(0.0, |rate| match rate.unit {
        RateUnit::Bytes => rate.per_second / size,
        _ => rate.per_second,
    });
    if packets > 256_000.0 {
        Duration::from_micros(250)
    } else {
        Duration::from_millis(1)
    }
}
