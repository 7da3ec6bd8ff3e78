//! Admission: senders and their origins, whether they may send and how much, and packets that wait for that.

use weir_context::{Admission, Contexts, OriginId, OriginKey, OriginTags};
use weir_protocol::Message;

use crate::admission::{AdmissionControl, AdmissionDecision};
use crate::counts::{IngestCounter, IngestCounts, ParkingCounter, RefusalReason};
use crate::ingest::{Received, WaitLimit};
use crate::numbers::ClientNumbers;
use crate::origin::{OriginStats, ProcessContainer};
use crate::origin_rates::OriginRates;
use crate::parking::{Awaited, Parked, Parking, WAIT_NS};
use crate::senders::{ProcessIdentity, SenderLookup, Senders};

/// Stands in front of the lines of a packet.
pub(crate) struct Gate {
    pub senders: Senders,
    pub admission: AdmissionControl,
    pub rates: Option<OriginRates>,
    pub parking: Parking,
    /// The origin of senders that nothing is known of; most often none.
    pub unknown_sender: OriginId,
    /// Whether a packet may wait for its origin: there is a resolver.
    pub may_wait: bool,
    /// Whether the packet has waited long enough, so that its messages do not wait for their tags.
    pub is_late: bool,
    /// By which a payload of columns is added once.
    pub numbers: ClientNumbers,
}

/// Packets that have waited and proceed.
pub(crate) struct UnparkedPacket {
    pub parked: Parked,
    pub sender: OriginId,
    /// An origin that was held while it waited.
    pub held: Option<OriginId>,
    pub is_late: bool,
}

/// The decision about a payload of columns.
pub(crate) enum PayloadAdmission {
    Yes {
        /// Of the process, if the kernel names one.
        container: Option<OriginId>,
        sender: OriginId,
    },
    /// A look-up is in progress.
    Waits,
    Refused(RefusalReason),
}

impl Gate {
    pub fn new() -> Self {
        Gate {
            senders: Senders::new(),
            admission: AdmissionControl::default(),
            rates: None,
            parking: Parking::default(),
            unknown_sender: OriginId::NONE,
            may_wait: false,
            is_late: false,
            numbers: ClientNumbers::default(),
        }
    }

    /// The effective origin of a sender.
    fn sender_of(&self, origin: OriginId) -> OriginId {
        if origin.is_none() {
            self.unknown_sender
        } else {
            origin
        }
    }

    /// Whether a payload of the process `pid` proceeds, and with which sender. `is_late`: it has waited long enough.
    pub fn admit_payload(
        &mut self,
        contexts: &mut Contexts,
        counts: &mut IngestCounts,
        packet: &Received<'_>,
        pid: i32,
        is_late: bool,
    ) -> PayloadAdmission {
        let mut known = None;
        if pid > 0 && self.may_wait {
            known = self.identify(pid, is_late);
            if known.is_none() {
                return PayloadAdmission::Waits;
            }
        }
        if self.admission.applies(packet.listener) {
            let identity = known.unwrap_or(ProcessIdentity::Unknown);
            let origin = identity.origin();
            let decide = |admission: &AdmissionControl, contexts: &Contexts| {
                admission.decide(identity, |origin| contexts.admission(origin))
            };
            let mut decision = decide(&self.admission, contexts);
            if decision == AdmissionDecision::Undecided {
                if !is_late {
                    return PayloadAdmission::Waits;
                }
                contexts.settle_admission(origin);
                decision = decide(&self.admission, contexts);
            }
            if let AdmissionDecision::No(reason) = decision {
                self.refuse(counts, packet, identity, reason, pid);
                return PayloadAdmission::Refused(reason);
            }
        }
        PayloadAdmission::Yes {
            container: known.map(ProcessIdentity::origin),
            sender: self.sender_of(known.map_or(OriginId::NONE, ProcessIdentity::origin)),
        }
    }

    /// Whether a payload of this length is within its sender's rate. Counts it if not.
    pub fn admits_rate(
        &mut self,
        counts: &mut IngestCounts,
        container: Option<OriginId>,
        (bytes, received): (usize, u64),
    ) -> bool {
        let (Some(rates), Some(origin)) = (&mut self.rates, container) else {
            return true;
        };
        let admits = rates.admits(origin, bytes, received);
        counts[IngestCounter::PacketsRateLimited] += u64::from(!admits);
        admits
    }

    /// Whether a new packet of the process `pid` proceeds, and with which sender. `None`: it waits, or it was counted as
    /// refused. 0 is a process that the kernel cannot name.
    pub fn admit(
        &mut self,
        contexts: &mut Contexts,
        counts: &mut IngestCounts,
        packet: &Received<'_>,
        pid: i32,
    ) -> Option<OriginId> {
        let mut known = None;
        if pid > 0 && self.may_wait {
            match self.senders.find(pid) {
                SenderLookup::Known(identity) => known = Some(identity),
                SenderLookup::Pending if self.parking.has_room(packet.bytes.len()) => {
                    self.park(packet, packet.bytes, Awaited::Process(pid));
                    return None;
                }
                SenderLookup::Pending => {}
            }
        }
        if self.admission.applies(packet.listener) && !self.is_admitted(contexts, counts, packet, pid, known)
        {
            return None;
        }
        let Some(identity) = known else {
            return Some(self.unknown_sender);
        };
        let origin = identity.origin();
        if let Some(rates) = &mut self.rates
            && !rates.admits(origin, packet.bytes.len(), packet.received)
        {
            counts[IngestCounter::PacketsRateLimited] += 1;
            return None;
        }
        Some(self.sender_of(origin))
    }

    /// Whether a packet that has just come may be taken. If not, it waits or is counted as refused.
    fn is_admitted(
        &mut self,
        contexts: &mut Contexts,
        counts: &mut IngestCounts,
        packet: &Received<'_>,
        pid: i32,
        known: Option<ProcessIdentity>,
    ) -> bool {
        let identity = known.unwrap_or(ProcessIdentity::Unknown);
        let mut admitted = self
            .admission
            .decide(identity, |origin| contexts.admission(origin));
        if admitted == AdmissionDecision::Undecided {
            if self.parking.has_room(packet.bytes.len()) {
                self.park(packet, packet.bytes, Awaited::Process(pid));
                return false;
            }
            contexts.settle_admission(identity.origin());
            admitted = self
                .admission
                .decide(identity, |origin| contexts.admission(origin));
        }
        match admitted {
            AdmissionDecision::No(reason) => self.refuse(counts, packet, identity, reason, pid),
            AdmissionDecision::Yes | AdmissionDecision::Undecided => {}
        }
        admitted == AdmissionDecision::Yes
    }

    fn refuse(
        &mut self,
        counts: &mut IngestCounts,
        packet: &Received<'_>,
        identity: ProcessIdentity,
        reason: RefusalReason,
        pid: i32,
    ) {
        counts.packets_refused[reason] += 1;
        self.admission
            .record(identity.origin(), reason, pid, packet.received);
    }

    #[cold]
    fn park(&mut self, packet: &Received<'_>, bytes: &[u8], awaited: Awaited) {
        self.parking.push(Parked {
            awaited,
            bytes: bytes.into(),
            listener: packet.listener,
            truncated: packet.truncated && matches!(awaited, Awaited::Process(_)),
            received: packet.received,
        });
    }

    /// Whether a waiting packet proceeds now. `None`: it waits longer, or it was counted as refused.
    pub fn readmit(
        &mut self,
        contexts: &mut Contexts,
        counts: &mut IngestCounts,
        parked: Parked,
        monotonic: u64,
        limit: WaitLimit,
    ) -> Option<UnparkedPacket> {
        let waited = limit == WaitLimit::NoWait || monotonic >= parked.received + WAIT_NS;
        let is_due = waited || limit == WaitLimit::BucketEnd;
        match parked.awaited {
            Awaited::Process(pid) => {
                // A guarded packet may rather go into the next bucket than be refused before its sender is known.
                let guarded = self.admission.applies(parked.listener);
                let is_late = if guarded { waited } else { is_due };
                let Some(identity) = self.identify(pid, is_late) else {
                    self.parking.put_back(parked);
                    return None;
                };
                if guarded && !self.is_readmitted(contexts, counts, &parked, pid, identity, is_late) {
                    return None;
                }
                counts[IngestCounter::Packets] += 1;
                Some(UnparkedPacket {
                    sender: self.sender_of(identity.origin()),
                    parked,
                    held: None,
                    is_late: is_due,
                })
            }
            Awaited::Tags { origin, sender } => {
                if !contexts.origin_tags(origin).settled {
                    if !is_due {
                        self.parking.put_back(parked);
                        return None;
                    }
                    contexts.settle_origin(origin);
                    self.parking.counts[ParkingCounter::GaveUp] += 1;
                }
                Some(UnparkedPacket {
                    parked,
                    sender,
                    held: Some(origin),
                    is_late: false,
                })
            }
        }
    }

    /// The identity of a process. `None`: the look-up is in progress, and the packet may wait.
    fn identify(&mut self, pid: i32, is_late: bool) -> Option<ProcessIdentity> {
        match self.senders.find(pid) {
            SenderLookup::Known(identity) => Some(identity),
            SenderLookup::Pending if is_late => {
                self.senders.abandon(pid);
                self.parking.counts[ParkingCounter::GaveUp] += 1;
                Some(ProcessIdentity::Unknown)
            }
            SenderLookup::Pending => None,
        }
    }

    /// [`Gate::is_admitted`] for a packet that has waited.
    fn is_readmitted(
        &mut self,
        contexts: &mut Contexts,
        counts: &mut IngestCounts,
        parked: &Parked,
        pid: i32,
        identity: ProcessIdentity,
        is_late: bool,
    ) -> bool {
        let origin = identity.origin();
        if is_late && !origin.is_none() && contexts.admission(origin) == Admission::Undecided {
            contexts.settle_admission(origin);
            self.parking.counts[ParkingCounter::GaveUp] += 1;
        }
        match self
            .admission
            .decide(identity, |origin| contexts.admission(origin))
        {
            AdmissionDecision::Yes => return true,
            AdmissionDecision::No(reason) => {
                self.refuse(counts, &parked.as_received(), identity, reason, pid)
            }
            AdmissionDecision::Undecided => self.parking.put_back(parked.clone()),
        }
        false
    }

    /// Takes the facts found about a process.
    pub fn answer(&mut self, contexts: &mut Contexts, pid: i32, found: ProcessContainer, now: u32) {
        let identity = match found {
            ProcessContainer::Container(container) => match contexts.hold_sender(&container, now) {
                // There is no room to distinguish further ones.
                OriginId::NONE => ProcessIdentity::Unknown,
                origin => ProcessIdentity::Container(origin),
            },
            ProcessContainer::NoContainer => ProcessIdentity::NoContainer,
            ProcessContainer::Unknown => ProcessIdentity::Unknown,
        };
        let before = self.senders.set(pid, identity);
        contexts.release_origin(before);
    }

    /// Once a second: processes and origins that nothing has come from for a while are forgotten.
    pub fn tick(&mut self, contexts: &mut Contexts, monotonic: u64) {
        self.senders.tick(|origin| contexts.release_origin(origin));
        if let Some(rates) = &mut self.rates {
            rates.forget_quiet(monotonic);
        }
        self.admission.forget_quiet(monotonic);
    }

    pub fn stats(&self, contexts: &Contexts) -> OriginStats {
        let rate_bytes = self.rates.as_ref().map_or(0, OriginRates::heap_bytes);
        OriginStats {
            origins: contexts.origin_counts(),
            processes: self.senders.counts(),
            parking: self.parking.counts(),
            parked_bytes: self.parking.heap_bytes() as u64,
            rate_bytes: (rate_bytes + self.admission.heap_bytes()) as u64,
        }
    }

    /// Lets a message wait if its origin's tags are on their way. True when it waits.
    pub fn waits_for_tags(
        &mut self,
        contexts: &mut Contexts,
        packet: &Received<'_>,
        (line, message): (&[u8], &Message<'_>),
        sender: OriginId,
        now: u32,
    ) -> bool {
        let key = origin_of(message);
        if key.is_sender_only() && contexts.origin_tags(sender).settled {
            return false;
        }
        let origin = contexts.hold_origin(&key, sender, now);
        if !contexts.origin_tags(origin).settled {
            if self.is_late {
                self.parking.counts[ParkingCounter::GaveUp] += 1;
            } else if self.parking.has_room(line.len()) {
                let terminated = [line, b"\n"].concat();
                self.park(packet, &terminated, Awaited::Tags { origin, sender });
                return true;
            } else {
                // A sender of more than fits while its tags are looked up gets them with a later message.
                contexts.settle_origin(origin);
            }
        }
        contexts.release_origin(origin);
        false
    }
}

fn origin_of<'a>(message: &Message<'a>) -> OriginKey<'a> {
    match message {
        Message::Metric(metric) => OriginKey::of_message(metric.origin, metric.tags.iter()),
        Message::Event(event) => OriginKey::of_message(event.origin, event.tags.iter()),
        Message::Check(check) => OriginKey::of_message(check.origin, check.tags.iter()),
    }
}

/// The tags of the origin of a message without a context.
pub(crate) fn origin_tags(
    contexts: &mut Contexts,
    key: &OriginKey<'_>,
    sender: OriginId,
    now: u32,
) -> Option<OriginTags> {
    let origin = contexts.hold_origin(key, sender, now);
    let known = contexts.origin_tags(origin);
    contexts.release_origin(origin);
    known.tags
}
