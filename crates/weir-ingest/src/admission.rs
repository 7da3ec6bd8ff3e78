//! Admission of senders on Unix sockets: the control plane's verdicts about containers, and the rules for all others.

use std::collections::HashMap;

use weir_context::{Admission, OriginId};

use crate::counts::RefusalReason;
use crate::senders::ProcessIdentity;

/// Senders that are named as not allowed.
const NAMED_MAX: usize = 16;

/// Maximum refused senders that are remembered. For further ones only packets are counted.
const REFUSED_MAX: usize = 1024;

/// Seconds without a packet after which one is forgotten. An origin's number goes to another one later than that.
const QUIET_SECONDS: u64 = 60;

/// The allowed senders, without the verdicts about containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdmissionSettings {
    /// `None`: all senders.
    pub list: Option<AdmissionList>,
    /// By listener number: whether the kernel identifies senders there. Other listeners are not limited.
    pub listeners: Vec<bool>,
}

/// The rules for senders without a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionList {
    pub no_container: bool,
    pub unknown: bool,
}

/// A sender that may not send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedSender {
    /// As `weir_context::OriginKey::from_text` reads it; empty where it is not in a container, or unknown.
    pub origin: String,
    pub reason: RefusalReason,
    /// The process that sent last; 0 where the kernel names none.
    pub pid: i32,
    /// Packets refused since it was last quiet for a minute.
    pub packets: u64,
}

/// The decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionDecision {
    Yes,
    No(RefusalReason),
    /// The look-up is in progress.
    Undecided,
}

struct RefusalRecord {
    pid: i32,
    packets: u64,
    /// Monotonic nanoseconds of the last.
    at: u64,
}

#[derive(Default)]
pub struct AdmissionControl {
    settings: AdmissionSettings,
    refused: HashMap<(OriginId, RefusalReason), RefusalRecord>,
}

impl AdmissionControl {
    pub fn new(settings: AdmissionSettings) -> Self {
        AdmissionControl {
            settings,
            refused: HashMap::new(),
        }
    }

    /// Another list, from now on.
    pub fn set_list(&mut self, list: Option<AdmissionList>) {
        self.settings.list = list;
        self.refused.clear();
    }

    /// Whether senders at this listener need to be allowed.
    #[inline]
    pub fn applies(&self, listener: usize) -> bool {
        self.settings.list.is_some() && self.settings.listeners.get(listener) == Some(&true)
    }

    /// Whether a sender may send. `of_container`: the verdict about its container.
    #[inline]
    pub fn decide(
        &self,
        identity: ProcessIdentity,
        of_container: impl Fn(OriginId) -> Admission,
    ) -> AdmissionDecision {
        let Some(list) = self.settings.list else {
            return AdmissionDecision::Yes;
        };
        let allowed = |allowed, otherwise| {
            if allowed {
                AdmissionDecision::Yes
            } else {
                AdmissionDecision::No(otherwise)
            }
        };
        match identity {
            ProcessIdentity::NoContainer => allowed(list.no_container, RefusalReason::NotAllowed),
            ProcessIdentity::Unknown => allowed(list.unknown, RefusalReason::Unknown),
            ProcessIdentity::Container(origin) => match of_container(origin) {
                Admission::Allowed => AdmissionDecision::Yes,
                Admission::NotAllowed => AdmissionDecision::No(RefusalReason::NotAllowed),
                Admission::Unknown => allowed(list.unknown, RefusalReason::Unknown),
                Admission::Undecided => AdmissionDecision::Undecided,
            },
        }
    }

    /// Remembers whose packet was refused.
    #[cold]
    pub fn record(&mut self, origin: OriginId, reason: RefusalReason, pid: i32, received: u64) {
        let room = self.refused.len() < REFUSED_MAX;
        match self.refused.get_mut(&(origin, reason)) {
            Some(refused) => {
                refused.packets += 1;
                refused.pid = pid;
                refused.at = received;
            }
            None if room => {
                let refused = RefusalRecord {
                    pid,
                    packets: 1,
                    at: received,
                };
                self.refused.insert((origin, reason), refused);
            }
            None => {}
        }
    }

    /// Once in a while.
    pub fn forget_quiet(&mut self, now: u64) {
        self.refused
            .retain(|_, refused| now.saturating_sub(refused.at) < QUIET_SECONDS * 1_000_000_000);
    }

    /// Senders refused recently, most losses first.
    pub fn refused(&self, mut name: impl FnMut(OriginId) -> String) -> Vec<RefusedSender> {
        let mut rows: Vec<(&(OriginId, RefusalReason), &RefusalRecord)> = self.refused.iter().collect();
        rows.sort_unstable_by_key(|((origin, reason), refused)| {
            (std::cmp::Reverse(refused.packets), *origin, *reason as u8)
        });
        rows.truncate(NAMED_MAX);
        rows.into_iter()
            .map(|((origin, reason), refused)| RefusedSender {
                origin: name(*origin),
                reason: *reason,
                pid: refused.pid,
                packets: refused.packets,
            })
            .collect()
    }

    pub fn heap_bytes(&self) -> usize {
        self.refused.capacity() * (size_of::<((OriginId, RefusalReason), RefusalRecord)>() + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_decides_about_senders_without_a_container() {
        let settings = |no_container, unknown| AdmissionSettings {
            list: Some(AdmissionList {
                no_container,
                unknown,
            }),
            listeners: vec![false, true],
        };
        let check = |admission: &AdmissionControl, identity, said, expected| {
            assert_eq!(
                admission.decide(identity, |_| said),
                expected,
                "{identity:?} {said:?}"
            );
        };
        use Admission::{Allowed, NotAllowed, Undecided, Unknown};
        let container = ProcessIdentity::Container(OriginId::NONE);
        let (not_allowed, unknown) = (
            AdmissionDecision::No(RefusalReason::NotAllowed),
            AdmissionDecision::No(RefusalReason::Unknown),
        );
        let closed = AdmissionControl::new(settings(false, false));
        assert!(!closed.applies(0) && closed.applies(1) && !closed.applies(2));
        check(&closed, ProcessIdentity::NoContainer, Allowed, not_allowed);
        check(&closed, ProcessIdentity::Unknown, Allowed, unknown);
        check(&closed, container, Allowed, AdmissionDecision::Yes);
        check(&closed, container, NotAllowed, not_allowed);
        check(&closed, container, Unknown, unknown);
        check(&closed, container, Undecided, AdmissionDecision::Undecided);
        let open = AdmissionControl::new(settings(true, true));
        check(
            &open,
            ProcessIdentity::NoContainer,
            NotAllowed,
            AdmissionDecision::Yes,
        );
        check(
            &open,
            ProcessIdentity::Unknown,
            NotAllowed,
            AdmissionDecision::Yes,
        );
        check(&open, container, Unknown, AdmissionDecision::Yes);
        check(&open, container, NotAllowed, not_allowed);
        let off = AdmissionControl::default();
        assert!(!off.applies(1));
        check(&off, ProcessIdentity::Unknown, NotAllowed, AdmissionDecision::Yes);
    }

    #[test]
    fn refused_senders_are_bounded_and_forgotten() {
        let mut admission = AdmissionControl::default();
        let origin = OriginId::NONE;
        for _ in 0..3 {
            admission.record(origin, RefusalReason::NotAllowed, 7, 5);
        }
        admission.record(origin, RefusalReason::Unknown, 0, 5);
        let rows = admission.refused(|_| String::new());
        assert_eq!(rows.len(), 2);
        assert_eq!(
            (rows[0].reason, rows[0].pid, rows[0].packets),
            (RefusalReason::NotAllowed, 7, 3)
        );
        admission.forget_quiet(5 + QUIET_SECONDS * 1_000_000_000);
        assert_eq!(admission.refused(|_| String::new()), []);
    }
}
