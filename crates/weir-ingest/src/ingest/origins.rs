//! Origins: the interface for the worker and for the resolver.

use weir_context::OriginKey;

use super::{Ingest, Received, WaitLimit};
use crate::admission::{AdmissionControl, AdmissionList, AdmissionSettings, RefusedSender};
use crate::gate::origin_tags;
use crate::origin::{OriginAnswer, OriginStats, ProcessQuestions};
use crate::origin_rates::{LimitedOrigin, OriginRates};

impl Ingest {
    /// From now on senders and origins are distinguished, and the caller answers questions about them. `tags_unknown`: unknown senders have tags
    /// too.
    pub fn enable_origins(&mut self, tags_unknown: bool) {
        self.contexts.enable_origins();
        self.gate.may_wait = true;
        if tags_unknown {
            self.gate.unknown_sender = self.contexts.hold_unknown(self.aggregator.now());
        }
    }

    /// From now on each origin may send this many bytes a second, if the kernel identifies the sender.
    pub fn limit_origins(&mut self, bytes_per_second: u64) {
        self.gate.rates = Some(OriginRates::new(bytes_per_second));
    }

    /// From now on senders at these listeners need to be allowed, where there is a list.
    pub fn limit_senders(&mut self, settings: AdmissionSettings) {
        self.gate.admission = AdmissionControl::new(settings);
    }

    /// Replaces the list of allowed senders. Verdicts about containers come with answers.
    pub fn set_admission_list(&mut self, list: Option<AdmissionList>) {
        self.gate.admission.set_list(list);
    }

    /// Takes one packet of the process `pid`, as the kernel says; 0 is a process it cannot name.
    pub fn packet_from(&mut self, packet: Received<'_>, pid: i32) {
        let counts = &mut self.counts[packet.listener];
        if let Some(sender) = self.gate.admit(&mut self.contexts, counts, &packet, pid) {
            self.sender = sender;
            self.packet(packet);
        }
        self.sender = self.gate.unknown_sender;
    }

    /// When [`Ingest::feed_parked`] has something to do at the latest, in monotonic nanoseconds.
    pub fn parked_deadline(&self) -> Option<u64> {
        self.gate.parking.deadline()
    }

    /// Whole packets of a listener that wait until their sender is known. They are counted after that.
    pub fn packets_waiting(&self, listener: usize) -> u64 {
        self.gate.parking.packets_of(listener)
    }

    /// Processes packets and messages whose origin is known by now, and those that have waited long enough.
    pub fn feed_parked(&mut self, monotonic: u64, limit: WaitLimit) {
        if self.gate.parking.is_empty() {
            return;
        }
        for parked in self.gate.parking.take() {
            let counts = &mut self.counts[parked.listener];
            let unparked = self
                .gate
                .readmit(&mut self.contexts, counts, parked, monotonic, limit);
            let Some(unparked) = unparked else { continue };
            self.sender = unparked.sender;
            self.gate.is_late = unparked.is_late;
            // Each line is processed as a packet, so that its bytes become an alias at once.
            self.lines(&[unparked.parked.as_received()]);
            if let Some(origin) = unparked.held {
                self.contexts.release_origin(origin);
            }
        }
        self.gate.is_late = false;
        self.sender = self.gate.unknown_sender;
    }

    /// Takes the facts found about a process or an origin.
    pub fn answer(&mut self, answer: OriginAnswer) {
        match answer {
            OriginAnswer::Process { pid, found } => {
                let now = self.aggregator.now();
                self.gate.answer(&mut self.contexts, pid, found, now);
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
        let (new, again) = self.gate.senders.take_questions();
        ProcessQuestions { new, again }
    }

    pub fn has_origin_questions(&self) -> bool {
        self.gate.senders.has_questions() || self.contexts.has_origin_questions()
    }

    /// Once a second: processes and origins that nothing has come from for a while are forgotten.
    pub fn tick_origins(&mut self, monotonic: u64) {
        self.gate.tick(&mut self.contexts, monotonic);
        let now = self.aggregator.now();
        if now.is_multiple_of(10) {
            self.contexts.expire_origins(now);
        }
    }

    /// The origins that have sent more than they may.
    pub fn limited_origins(&self) -> Vec<LimitedOrigin> {
        let name = |origin| self.contexts.origin_text(origin).to_owned();
        let rates = self.gate.rates.as_ref();
        rates.map_or_else(Vec::new, |rates| rates.limited(name))
    }

    /// Senders refused recently.
    pub fn refused_senders(&self) -> Vec<RefusedSender> {
        let name = |origin| self.contexts.origin_text(origin).to_owned();
        self.gate.admission.refused(name)
    }

    pub fn origin_stats(&self) -> OriginStats {
        self.gate.stats(&self.contexts)
    }

    /// The tags of the origin of a message without a context.
    pub(super) fn origin_tags(&mut self, key: &OriginKey<'_>) -> Option<weir_context::OriginTags> {
        origin_tags(&mut self.contexts, key, self.sender, self.aggregator.now())
    }
}
