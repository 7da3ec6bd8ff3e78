//! Admission of senders on Unix sockets: the control plane's verdicts about containers, and the rules for all others.

use std::collections::HashMap;

use weir_context::{Admission, OriginId};

use crate::counts::Refusal;
use crate::senders::Identity;

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
    pub why: Refusal,
    /// The process that sent last; 0 where the kernel names none.
    pub pid: i32,
    /// Packets refused since it was last quiet for a minute.
    pub packets: u64,
}

/// The decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admitted {
    Yes,
    No(Refusal),
    /// The look-up is in progress.
    Undecided,
}

struct Refused {
    pid: i32,
    packets: u64,
    /// Monotonic nanoseconds of the last.
    at: u64,
}

#[derive(Default)]
pub struct Admissions {
    settings: AdmissionSettings,
    refused: HashMap<(OriginId, Refusal), Refused>,
}

impl Admissions {
    pub fn new(settings: AdmissionSettings) -> Self {
        Admissions {
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
    pub fn of(&self, identity: Identity, of_container: impl Fn(OriginId) -> Admission) -> Admitted {
        let Some(list) = self.settings.list else {
            return Admitted::Yes;
        };
        let allowed = |allowed, otherwise| {
            if allowed {
                Admitted::Yes
            } else {
                Admitted::No(otherwise)
            }
        };
        match identity {
            Identity::NoContainer => allowed(list.no_container, Refusal::NotAllowed),
            Identity::Unknown => allowed(list.unknown, Refusal::Unknown),
            Identity::Container(origin) => match of_container(origin) {
                Admission::Allowed => Admitted::Yes,
                Admission::NotAllowed => Admitted::No(Refusal::NotAllowed),
                Admission::Unknown => allowed(list.unknown, Refusal::Unknown),
                Admission::Undecided => Admitted::Undecided,
            },
        }
    }

    /// Remembers whose packet was refused.
    #[cold]
    pub fn note(&mut self, origin: OriginId, why: Refusal, pid: i32, received: u64) {
        let room = self.refused.len() < REFUSED_MAX;
        match self.refused.get_mut(&(origin, why)) {
            Some(refused) => {
                refused.packets += 1;
                refused.pid = pid;
                refused.at = received;
            }
            None if room => {
                let refused = Refused {
                    pid,
                    packets: 1,
                    at: received,
                };
                self.refused.insert((origin, why), refused);
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
        let mut rows: Vec<(&(OriginId, Refusal), &Refused)> = self.refused.iter().collect();
        rows.sort_unstable_by_key(|((origin, why), refused)| {
            (std::cmp::Reverse(refused.packets), *origin, *why as u8)
        });
        rows.truncate(NAMED_MAX);
        rows.into_iter()
            .map(|((origin, why), refused)| RefusedSender {
                origin: name(*origin),
                why: *why,
                pid: refused.pid,
                packets: refused.packets,
            })
            .collect()
    }

    pub fn heap_bytes(&self) -> usize {
        self.refused.capacity() * (size_of::<((OriginId, Refusal), Refused)>() + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_says_what_holds_for_everybody_else() {
        let settings = |no_container, unknown| AdmissionSettings {
            list: Some(AdmissionList {
                no_container,
                unknown,
            }),
            listeners: vec![false, true],
        };
        let check = |admissions: &Admissions, identity, said, expected| {
            assert_eq!(
                admissions.of(identity, |_| said),
                expected,
                "{identity:?} {said:?}"
            );
        };
        use Admission::{Allowed, NotAllowed, Undecided, Unknown};
        let container = Identity::Container(OriginId::NONE);
        let (not_allowed, unknown) = (Admitted::No(Refusal::NotAllowed), Admitted::No(Refusal::Unknown));
        let closed = Admissions::new(settings(false, false));
        assert!(!closed.applies(0) && closed.applies(1) && !closed.applies(2));
        check(&closed, Identity::NoContainer, Allowed, not_allowed);
        check(&closed, Identity::Unknown, Allowed, unknown);
        check(&closed, container, Allowed, Admitted::Yes);
        check(&closed, container, NotAllowed, not_allowed);
        check(&closed, container, Unknown, unknown);
        check(&closed, container, Undecided, Admitted::Undecided);
        let open = Admissions::new(settings(true, true));
        check(&open, Identity::NoContainer, NotAllowed, Admitted::Yes);
        check(&open, Identity::Unknown, NotAllowed, Admitted::Yes);
        check(&open, container, Unknown, Admitted::Yes);
        check(&open, container, NotAllowed, not_allowed);
        let off = Admissions::default();
        assert!(!off.applies(1));
        check(&off, Identity::Unknown, NotAllowed, Admitted::Yes);
    }

    #[test]
    fn who_was_refused_is_bounded_and_forgotten() {
        let mut admissions = Admissions::default();
        let origin = OriginId::NONE;
        for _ in 0..3 {
            admissions.note(origin, Refusal::NotAllowed, 7, 5);
        }
        admissions.note(origin, Refusal::Unknown, 0, 5);
        let rows = admissions.refused(|_| String::new());
        assert_eq!(rows.len(), 2);
        assert_eq!(
            (rows[0].why, rows[0].pid, rows[0].packets),
            (Refusal::NotAllowed, 7, 3)
        );
        admissions.forget_quiet(5 + QUIET_SECONDS * 1_000_000_000);
        assert_eq!(admissions.refused(|_| String::new()), []);
    }
}
