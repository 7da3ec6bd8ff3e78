//! The packets of a run: a profile prepared for a transport, and one stream of packets per connection.

use crate::columns;
use crate::compose::{Composer, Packet};
use crate::model::{Model, PAD};
use crate::own::OwnPayload;
use crate::profile::{Mode, Payload, Profile, ProfileError, Transport, UDP_PACKET_MAX};
use crate::records::Records;
use crate::sys::Span;
use std::path::Path;
use std::sync::Arc;

/// A deterministic stream of packets: each start gives the same packets.
pub trait PacketSource: Send {
    /// Buffer size that `packet` needs.
    fn room(&self) -> usize;
    /// Writes the next packet at the start of `out`.
    fn packet(&mut self, out: &mut [u8]) -> Packet;
    /// Whether the next packet may have a context that was never sent.
    fn is_first_pass(&self) -> bool {
        false
    }
}

impl PacketSource for Composer {
    fn room(&self) -> usize {
        self.packet_room()
    }
    fn packet(&mut self, out: &mut [u8]) -> Packet {
        Composer::packet(self, out)
    }
    fn is_first_pass(&self) -> bool {
        Composer::is_first_pass(self)
    }
}

/// Packets built before the run and repeated.
pub struct Prebuilt {
    bytes: Vec<u8>,
    spans: Vec<Span>,
    next: usize,
    room: usize,
}

impl Prebuilt {
    /// Fills `memory` bytes with the packets of a source.
    pub fn new(mut source: Box<dyn PacketSource>, memory: u64) -> Prebuilt {
        let room = source.room();
        let mut bytes = vec![0u8; memory as usize + room];
        let mut spans = Vec::new();
        let mut at = 0;
        while at + room <= bytes.len() {
            let packet = source.packet(&mut bytes[at..]);
            spans.push(Span {
                off: at,
                len: packet.len,
                messages: packet.messages,
            });
            at += packet.len;
        }
        bytes.truncate(at);
        bytes.shrink_to_fit();
        Prebuilt {
            bytes,
            spans,
            next: 0,
            room,
        }
    }

    /// The packets of a file, from a place that depends on the connection.
    fn of(payload: &OwnPayload, connection: u32, connections: u32) -> Prebuilt {
        let mut bytes = Vec::new();
        let mut spans = Vec::new();
        for (packet, messages) in &payload.packets {
            spans.push(Span {
                off: bytes.len(),
                len: packet.len(),
                messages: *messages,
            });
            bytes.extend_from_slice(packet);
        }
        Prebuilt {
            bytes,
            next: spans.len() * connection as usize / connections as usize,
            room: spans.iter().map(|span| span.len).max().unwrap_or(0),
            spans,
        }
    }

    pub fn packets(&self) -> u64 {
        self.spans.len() as u64
    }
}

impl PacketSource for Prebuilt {
    fn room(&self) -> usize {
        self.room
    }

    fn packet(&mut self, out: &mut [u8]) -> Packet {
        let span = self.spans[self.next];
        self.next = (self.next + 1) % self.spans.len();
        out[..span.len].copy_from_slice(&self.bytes[span.off..span.off + span.len]);
        Packet {
            len: span.len,
            messages: span.messages,
        }
    }
}

/// A profile prepared for a transport and a seed.
#[derive(Clone)]
pub struct Load {
    pub profile: Profile,
    /// The name the user gave.
    pub name: String,
    pub transport: Transport,
    pub seed: u64,
    /// Absent for payloads of records.
    pub model: Option<Arc<Model>>,
    /// The content of the user's file.
    own: Option<Arc<OwnPayload>>,
}

impl Load {
    /// Does everything that takes time.
    pub fn prepare(
        name: &str,
        profile: &Profile,
        transport: Transport,
        seed: u64,
    ) -> Result<Load, ProfileError> {
        profile.validate()?;
        // Payloads with their own HTTP bodies need an HTTP intake. DogStatsD's messages become columns there.
        let payload = profile.payload;
        let (fits, allowed) = match payload {
            Payload::DdLogs
            | Payload::DdTracesJson
            | Payload::DdTracesMsgpack
            | Payload::OtlpLogs
            | Payload::OtlpMetrics
            | Payload::OtlpTraces => (transport == Transport::Http, carriers(Transport::Http)),
            Payload::Dogstatsd | Payload::File => (true, ""),
            Payload::Statsd => (transport != Transport::Http, "udp, unixgram, unix, tcp"),
            Payload::Syslog3164 | Payload::Syslog5424 | Payload::Json | Payload::ApacheCommon => (true, ""),
        };
        if !fits {
            return Err(ProfileError(format!(
                "payload {}: is not carried over {}; allowed: {allowed}",
                payload.name(),
                carriers(transport)
            )));
        }
        if payload == Payload::Dogstatsd && transport == Transport::Http {
            columns::check(profile)?;
        }
        let model = if profile.payload.is_statsd() {
            Some(Arc::new(Model::build(profile, transport, seed)?))
        } else {
            None
        };
        let own = profile
            .file
            .as_ref()
            .map(|file| OwnPayload::read(Path::new(file), profile, transport));
        let own = own.transpose()?.map(Arc::new);
        let mut profile = profile.clone();
        profile.rate = profile.rate.or(own.as_ref().and_then(|own| own.rate));
        Ok(Load {
            profile,
            own,
            name: name.to_string(),
            transport,
            seed,
            model,
        })
    }

    /// Whether messages are aggregated and sent as columns.
    pub fn is_columns(&self) -> bool {
        self.profile.payload == Payload::Dogstatsd && self.transport == Transport::Http
    }

    /// The composed stream of a connection, in any mode.
    pub fn composed(&self, connection: u32) -> Box<dyn PacketSource> {
        let connections = self.profile.connections;
        match (&self.model, &self.own) {
            (Some(model), _) => Box::new(Composer::new(model, connection, connections)),
            (None, Some(own)) => Box::new(Prebuilt::of(own, connection, connections)),
            (None, None) => Box::new(Records::new(&self.profile, self.transport, self.seed, connection)),
        }
    }

    /// The stream of a connection as sent, and after how many packets it repeats.
    pub fn source(&self, connection: u32) -> (Box<dyn PacketSource>, Option<u64>) {
        let composed = self.composed(connection);
        match self.profile.mode {
            Mode::Composed => (composed, None),
            Mode::Prebuilt => {
                let share = self.profile.prebuilt.0 / u64::from(self.profile.connections);
                let prebuilt = Prebuilt::new(composed, share);
                let packets = prebuilt.packets();
                (Box::new(prebuilt), Some(packets))
            }
        }
    }

    /// Maximum size of a packet.
    pub fn packet_max(&self) -> u64 {
        if let Some(own) = &self.own {
            return own
                .packets
                .iter()
                .map(|(bytes, _)| bytes.len())
                .max()
                .unwrap_or(0) as u64;
        }
        let message = self.model.as_ref().map_or(0, |m| m.message_max as u64);
        self.profile.packet_size_on(self.transport).max().max(message)
    }

    /// Refuses sizes that the transport or the target's buffer cannot carry.
    pub fn check_size(&self, target_buffer: u64, send_buffer: u64) -> Result<(), ProfileError> {
        let most = self.packet_max();
        let limit = match self.transport {
            Transport::Udp => Some((UDP_PACKET_MAX, "the largest UDP payload")),
            Transport::Unixgram => Some((
                send_buffer.saturating_sub(512),
                "the socket's send buffer (net.core.wmem_max)",
            )),
            _ => None,
        };
        if let Some((limit, what)) = limit
            && most > limit
        {
            return Err(ProfileError(format!(
                "packet_size: packets of up to {most} bytes do not fit {what}, {limit} bytes"
            )));
        }
        if self.profile.payload.is_statsd() && self.transport != Transport::Http && most > target_buffer {
            return Err(ProfileError(format!(
                "packet_size: packets of up to {most} bytes exceed the target's buffer of {target_buffer} bytes \
                 (--target-buffer; --oversize-ok sends them anyway)"
            )));
        }
        Ok(())
    }
}

/// The URL schemes of a transport.
fn carriers(transport: Transport) -> &'static str {
    match transport {
        Transport::Http => "http or grpc",
        other => other.name(),
    }
}

/// Padding after the last packet of a buffer.
pub const SPARE: usize = 2 * PAD;
