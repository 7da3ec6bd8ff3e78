//! Who sent it: senders and their origins, whether they may send, and what waits until that is known.

use weir_context::{Admission, OriginId, OriginKey, OriginTags};
use weir_protocol::Message;

use super::{Hurry, Ingest, Received};
use crate::admission::{AdmissionList, AdmissionSettings, Admissions, Admitted, RefusedSender};
use crate::counts::Refusal;
use crate::origin::{OriginAnswer, OriginStats, ProcessFound, ProcessQuestions};
use crate::origin_rates::{LimitedOrigin, OriginRates};
use crate::parking::{Awaited, Parked, WAIT_NS};
use crate::senders::{Identity, Sender};

impl Ingest {
    /// From now on senders and origins are told apart; whoever calls this answers the questions that come of it.
    /// `nobody`: senders that nothing is known of have tags too.
    pub fn enable_origins(&mut self, nobody: bool) {
        self.contexts.enable_origins();
        self.may_wait = true;
        if nobody {
            self.nobody = self.contexts.hold_nobody(self.aggregator.now());
        }
    }

    /// From now on each origin may send so many bytes a second, as far as the kernel says who sent.
    pub fn limit_origins(&mut self, bytes_per_second: u64) {
        self.origin_rates = Some(OriginRates::new(bytes_per_second));
    }

    /// From now on senders at these listeners need to be allowed, where there is a list.
    pub fn limit_senders(&mut self, settings: AdmissionSettings) {
        self.admissions = Admissions::new(settings);
    }

    /// Another list of who may send. What it says of each container comes with answers.
    pub fn set_admission_list(&mut self, list: Option<AdmissionList>) {
        self.admissions.set_list(list);
    }

    /// What counts as the origin of a sender of which this is known.
    fn sender_of(&self, origin: OriginId) -> OriginId {
        if origin.is_none() { self.nobody } else { origin }
    }

    /// Takes one packet of the process `pid`, as the kernel says; 0 is a process it cannot name.
    pub fn packet_from(&mut self, packet: Received<'_>, pid: i32) {
        self.sender = self.nobody;
        let mut known = None;
        if pid > 0 && self.may_wait {
            match self.senders.find(pid) {
                Sender::Known(identity) => known = Some(identity),
                Sender::Pending if self.parking.has_room(packet.bytes.len()) => {
                    self.park(&packet, packet.bytes, Awaited::Process(pid));
                    return;
                }
                Sender::Pending => {}
            }
        }
        if self.admissions.applies(packet.listener) && !self.admits(&packet, pid, known) {
            return;
        }
        if let Some(identity) = known {
            let origin = identity.origin();
            if let Some(rates) = &mut self.origin_rates
                && !rates.admits(origin, packet.bytes.len(), packet.received)
            {
                self.counts[packet.listener].packets_rate_limited += 1;
                return;
            }
            self.sender = self.sender_of(origin);
        }
        self.packet(packet);
        self.sender = self.nobody;
    }

    /// Whether a packet that has just come may be taken. If not, it waits or is counted as refused.
    fn admits(&mut self, packet: &Received<'_>, pid: i32, known: Option<Identity>) -> bool {
        let identity = known.unwrap_or(Identity::Unknown);
        let contexts = &self.contexts;
        match self.admissions.of(identity, |origin| contexts.admission(origin)) {
            Admitted::Yes => return true,
            Admitted::No(why) => self.refuse(packet, identity, why, pid),
            Admitted::Undecided if self.parking.has_room(packet.bytes.len()) => {
                self.park(packet, packet.bytes, Awaited::Process(pid));
            }
            Admitted::Undecided => {
                self.contexts.settle_admission(identity.origin());
                return self.admits(packet, pid, known);
            }
        }
        false
    }

    fn refuse(&mut self, packet: &Received<'_>, identity: Identity, why: Refusal, pid: i32) {
        self.counts[packet.listener].packets_refused[why as usize] += 1;
        self.admissions.note(identity.origin(), why, pid, packet.received);
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

    /// When [`Ingest::feed_parked`] has something to do at the latest, in monotonic nanoseconds.
    pub fn parked_deadline(&self) -> Option<u64> {
        self.parking.deadline()
    }

    /// Whole packets of a listener that wait for their sender to be known. They are counted when they go on.
    pub fn packets_waiting(&self, listener: usize) -> u64 {
        self.parking.packets_of(listener)
    }

    /// Goes on with packets and messages whose origin is known by now, and with those that have waited long enough.
    pub fn feed_parked(&mut self, monotonic: u64, hurry: Hurry) {
        if self.parking.is_empty() {
            return;
        }
        for parked in self.parking.take() {
            let waited = hurry == Hurry::End || monotonic >= parked.received + WAIT_NS;
            let hurried = waited || hurry == Hurry::Bucket;
            let packet = Received {
                bytes: &parked.bytes,
                listener: parked.listener,
                truncated: parked.truncated,
                received: parked.received,
            };
            match parked.awaited {
                Awaited::Process(pid) => {
                    // Rather into the next bucket than refused because nobody knew yet.
                    let guarded = self.admissions.applies(parked.listener);
                    let is_late = if guarded { waited } else { hurried };
                    let mut sender = self.senders.find(pid);
                    if sender == Sender::Pending && is_late {
                        self.senders.give_up(pid);
                        self.parking.counts.gave_up += 1;
                        sender = Sender::Known(Identity::Unknown);
                    }
                    let Sender::Known(identity) = sender else {
                        self.parking.put_back(parked);
                        continue;
                    };
                    let origin = identity.origin();
                    if guarded {
                        let contexts = &mut self.contexts;
                        if is_late && !origin.is_none() && contexts.admission(origin) == Admission::Undecided
                        {
                            contexts.settle_admission(origin);
                            self.parking.counts.gave_up += 1;
                        }
                        match self.admissions.of(identity, |origin| contexts.admission(origin)) {
                            Admitted::Yes => {}
                            Admitted::No(why) => {
                                self.refuse(&packet, identity, why, pid);
                                continue;
                            }
                            Admitted::Undecided => {
                                self.parking.put_back(parked);
                                continue;
                            }
                        }
                    }
                    let counts = &mut self.counts[packet.listener];
                    counts.packets += 1;
                    counts.bytes += packet.bytes.len() as u64;
                    self.sender = self.sender_of(origin);
                    self.may_wait = !hurried;
                    self.lines(packet);
                }
                Awaited::Tags { origin, sender } => {
                    if !self.contexts.origin_tags(origin).settled {
                        if !hurried {
                            self.parking.put_back(parked);
                            continue;
                        }
                        self.contexts.settle_origin(origin);
                        self.parking.counts.gave_up += 1;
                    }
                    self.sender = sender;
                    // As a packet of its own, so that its bytes become an alias at once.
                    self.lines(packet);
                    self.contexts.release_origin(origin);
                }
            }
        }
        self.may_wait = true;
        self.sender = self.nobody;
    }

    /// Takes what was found out about a process or an origin.
    pub fn answer(&mut self, answer: OriginAnswer) {
        match answer {
            OriginAnswer::Process { pid, found } => {
                let now = self.aggregator.now();
                let identity = match found {
                    ProcessFound::Container(container) => {
                        let origin = self.contexts.hold_sender(&container, now);
                        // There is no room to tell further ones apart.
                        if origin.is_none() {
                            Identity::Unknown
                        } else {
                            Identity::Container(origin)
                        }
                    }
                    ProcessFound::NoContainer => Identity::NoContainer,
                    ProcessFound::Unknown => Identity::Unknown,
                };
                let before = self.senders.set(pid, identity);
                self.contexts.release_origin(before);
            }
            OriginAnswer::Tags {
                ticket,
                tags,
                settled,
                admission,
            } => self.contexts.answer_origin(ticket, tags, settled, admission),
        }
    }

    pub fn take_process_questions(&mut self) -> ProcessQuestions {
        let (new, again) = self.senders.take_questions();
        ProcessQuestions { new, again }
    }

    pub fn has_origin_questions(&self) -> bool {
        self.senders.has_questions() || self.contexts.has_origin_questions()
    }

    /// Once a second: processes and origins that nothing has come from for a while are forgotten.
    pub fn tick_origins(&mut self, monotonic: u64) {
        let contexts = &mut self.contexts;
        self.senders.tick(|origin| contexts.release_origin(origin));
        if let Some(rates) = &mut self.origin_rates {
            rates.forget_quiet(monotonic);
        }
        self.admissions.forget_quiet(monotonic);
        let now = self.aggregator.now();
        if now.is_multiple_of(10) {
            self.contexts.expire_origins(now);
        }
    }

    /// The origins that have sent more than they may.
    pub fn limited_origins(&self) -> Vec<LimitedOrigin> {
        let name = |origin| self.contexts.origin_text(origin).to_owned();
        let rates = self.origin_rates.as_ref();
        rates.map_or_else(Vec::new, |rates| rates.limited(name))
    }

    /// Who was lately refused.
    pub fn refused_senders(&self) -> Vec<RefusedSender> {
        self.admissions
            .refused(|origin| self.contexts.origin_text(origin).to_owned())
    }

    pub fn origin_stats(&self) -> OriginStats {
        OriginStats {
            origins: self.contexts.origin_counts(),
            origins_live: self.contexts.origins() as u64,
            processes: self.senders.counts,
            processes_live: self.senders.len() as u64,
            parking: self.parking.counts,
            parked_now: self.parking.len() as u64,
            parked_bytes: self.parking.heap_bytes() as u64,
            rate_bytes: (self.origin_rates.as_ref().map_or(0, OriginRates::heap_bytes)
                + self.admissions.heap_bytes()) as u64,
        }
    }

    /// The tags of the origin of a message that has no context of its own.
    pub(super) fn origin_tags(&mut self, key: &OriginKey<'_>) -> Option<OriginTags> {
        let now = self.aggregator.now();
        let origin = self.contexts.hold_origin(key, self.sender, now);
        let known = self.contexts.origin_tags(origin);
        self.contexts.release_origin(origin);
        known.tags
    }

    /// Lets a message wait if its origin's tags are on their way. True when it waits.
    pub(super) fn waits_for_tags(
        &mut self,
        packet: &Received<'_>,
        line: &[u8],
        message: &Message<'_>,
    ) -> bool {
        let key = match message {
            Message::Metric(metric) => OriginKey::of_message(metric.origin, metric.tags.iter()),
            Message::Event(event) => OriginKey::of_message(event.origin, event.tags.iter()),
            Message::Check(check) => OriginKey::of_message(check.origin, check.tags.iter()),
        };
        if key.is_sender_only() && self.contexts.origin_tags(self.sender).settled {
            return false;
        }
        let now = self.aggregator.now();
        let origin = self.contexts.hold_origin(&key, self.sender, now);
        let settled = self.contexts.origin_tags(origin).settled;
        if !settled && self.parking.has_room(line.len()) {
            let sender = self.sender;
            let mut terminated = Vec::with_capacity(line.len() + 1);
            terminated.extend_from_slice(line);
            terminated.push(b'\n');
            self.park(packet, &terminated, Awaited::Tags { origin, sender });
            return true;
        }
        if !settled {
            // Whoever sends more than fits while its tags are looked up gets them with a later message.
            self.contexts.settle_origin(origin);
        }
        self.contexts.release_origin(origin);
        false
    }
}
