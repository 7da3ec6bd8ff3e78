//! The long way: from the parts of a message to its context, which is made where there is none.

use weir_protocol::{Kind, Metric};
use weir_rules::{RuleId, Subject};

use super::limits::{Room, share};
use super::{
    Context, ContextId, Contexts, FILTERED, FIRST_ID, FREE, LiveContext, Lookup, NO_RAW, NOBODY, ON_TRIAL,
    OVERFLOW_NAMES_MAX, OVERFLOW_TAG, RawContext, RawId, STALE, Target, context_of, partition,
};
use crate::origins::{OriginId, OriginKey};
use crate::rules::{Resolved, Rules, Trial, keep_last_special, sort_and_dedup};
use crate::strings::StringId;
use crate::tag_lists::TagListId;
use crate::usage::LimitReason;

impl Contexts {
    /// The miss path: finds or makes the context of a metric from its parsed parts. `sender` is the origin of the process
    /// that sent it; `now` is the second of the agent's clock. Tags of an origin that are not known yet count as none until
    /// they come.
    pub fn resolve(&mut self, metric: &Metric<'_>, sender: OriginId, now: u32) -> Lookup {
        let mut tags: Vec<&str> = metric.tags.iter().collect();
        keep_last_special(&mut tags);
        let key = OriginKey::of_message(metric.origin, tags.iter().copied());
        let origin = self.origins.acquire(&key, sender, &self.secret, now);
        let known = self.origins.known(origin);
        sort_and_dedup(&mut tags);

        self.strings.clear_new_tags();
        let name = self.strings.acquire(metric.name, &self.secret);
        let tag_list = self
            .tag_lists
            .acquire(&tags, &mut self.strings, &self.secret, &mut self.scratch.ids);
        let kind = metric.kind;
        let hash = self.raw_hash(kind, name, tag_list, origin);
        self.raw_created = false;
        let known_raw = self.find_raw(hash, kind, name, tag_list, origin);
        if let Some(slot) = known_raw {
            self.release_raw_parts(name, tag_list, origin);
            let raw = RawId {
                slot,
                generation: self.targets[slot as usize].generation,
            };
            if let Some(lookup) = self.resolve_raw(raw, now) {
                return lookup;
            }
        }

        tags.extend(known.tags.iter().flat_map(|tags| tags.iter().map(AsRef::as_ref)));
        let mut resolved = std::mem::take(&mut self.scratch.resolved);
        let rules = self.rules.clone();
        let mut subject = rules.subject(kind, metric.name, tags.iter().copied());
        let verdict = rules.apply(&mut subject, &mut resolved);
        let passes = verdict.passes;
        self.count_applied(&resolved.applied);
        let room = self.room(origin);
        let created_before = self.created_since_count;
        let target = if !passes {
            Ok(None)
        } else {
            match self.context_for(&subject, &resolved, &rules, room) {
                Some(id) => Ok(Some(id)),
                None => {
                    self.count_refused(&subject, &metric.values, origin);
                    Err(self.overflow(&subject, &resolved, &rules))
                }
            }
        };
        let rule = resolved.applied.dropped_by;
        let lookup = match (target, known_raw) {
            (Ok(to), Some(slot)) => self.lead(slot, &subject, to, rule, &verdict.trials, now),
            (Ok(to), None) if self.may_remember(room) => {
                let slot = self.add_raw(name, tag_list, origin, kind, hash);
                // A raw context that leads to a known one takes memory too.
                self.created_since_count = self.created_since_count.max(created_before + 1);
                self.lead(slot, &subject, to, rule, &verdict.trials, now)
            }
            (Ok(to), None) => {
                self.release_raw_parts(name, tag_list, origin);
                match to {
                    Some(id) => Lookup::Unremembered(id),
                    None => Lookup::Filtered(NO_RAW),
                }
            }
            (Err(lookup), known_raw) => {
                if known_raw.is_none() {
                    self.release_raw_parts(name, tag_list, origin);
                }
                lookup
            }
        };
        self.scratch.resolved = resolved;
        lookup
    }

    /// Lets a raw context that leads nowhere lead to a context, or to none because a rule filters it.
    fn lead(
        &mut self,
        slot: u32,
        subject: &Subject<'_>,
        to: Option<ContextId>,
        rule: Option<RuleId>,
        trials: &[Trial<'_>],
        now: u32,
    ) -> Lookup {
        let target = &mut self.targets[slot as usize];
        let raw = RawId {
            slot,
            generation: target.generation,
        };
        let Some(id) = to else {
            target.to = FILTERED;
            let entry = &mut self.raw[slot as usize];
            (entry.last_seen, entry.next) = (now, rule.map_or(NOBODY, |rule| rule.0));
            self.loose.push(raw);
            return Lookup::Filtered(raw);
        };
        target.to = id.0 + FIRST_ID;
        let context = &mut self.contexts[subject.kind as usize][id.0 as usize];
        // The rules may have changed since it was made.
        context.suffix_mask = subject.suffix_mask;
        let next = std::mem::replace(&mut context.first_raw, slot);
        let entry = &mut self.raw[slot as usize];
        (entry.next, entry.previous) = (next, NOBODY);
        if next != NOBODY {
            self.raw[next as usize].previous = slot;
        }
        if !trials.is_empty() && self.follow(slot, id, subject, trials) {
            return Lookup::OnTrial(id, raw);
        }
        Lookup::Context(id, raw)
    }

    #[cold]
    fn follow(&mut self, slot: u32, id: ContextId, subject: &Subject<'_>, trials: &[Trial<'_>]) -> bool {
        let secret = self.secret;
        let digest = |subject: &Subject<'_>| secret.bytes(format!("{subject:?}").as_bytes());
        let is_followed = self
            .trials
            .follow(slot, (subject.kind, id), subject, trials, digest);
        if is_followed {
            self.targets[slot as usize].to |= ON_TRIAL;
        }
        is_followed
    }

    /// Takes a raw context that leads to a context out of that context's list.
    pub(super) fn unlink(&mut self, slot: u32) {
        let RawContext {
            next, previous, kind, ..
        } = self.raw[slot as usize];
        if next != NOBODY {
            self.raw[next as usize].previous = previous;
        }
        if previous != NOBODY {
            self.raw[previous as usize].next = next;
        } else {
            let id = context_of(self.targets[slot as usize].to).0 as usize;
            self.contexts[usize::from(kind)][id].first_raw = next;
        }
        if !self.trials.is_empty() {
            self.trials.forget(slot);
        }
    }

    /// Finds or makes a resolved context; `None` when a new one would not fit the limits.
    fn context_for(
        &mut self,
        subject: &Subject<'_>,
        resolved: &Resolved,
        rules: &Rules,
        room: Room,
    ) -> Option<ContextId> {
        let Subject {
            kind,
            name,
            tags,
            suffix_mask,
            ..
        } = subject;
        let kind = *kind;
        let copied_name = rules.copied_name(name, kind);
        let host = subject.host.as_deref();
        let id = self.find_or_add(name, kind, host, tags, resolved, *suffix_mask, room)?;
        if let Some(copied) = copied_name
            && self.contexts[kind as usize][id.0 as usize].copy_to.is_none()
        {
            let copy = self.find_or_add(&copied, Kind::Distribution, host, tags, resolved, u32::MAX, room);
            self.contexts[kind as usize][id.0 as usize].copy_to = copy;
            if let Some(copy) = copy {
                self.contexts[Kind::Distribution as usize][copy.0 as usize].is_copy = true;
            }
        }
        Some(id)
    }

    fn overflow(&mut self, subject: &Subject<'_>, resolved: &Resolved, rules: &Rules) -> Lookup {
        let kind = subject.kind;
        if matches!(kind, Kind::Gauge | Kind::Set) {
            return Lookup::Refused;
        }
        let mut tags: Vec<&str> = rules.extra_tags().iter().map(String::as_str).collect();
        tags.push(OVERFLOW_TAG);
        sort_and_dedup(&mut tags);
        let before = self.live_count;
        // They must not take the room that the limit was to keep.
        let left = self.contexts_left().unwrap_or(0);
        let room = if self.overflow_names < left.max(OVERFLOW_NAMES_MAX) {
            Room::Always
        } else {
            Room::No(self.refused_by)
        };
        let mask = subject.suffix_mask;
        match self.find_or_add(&subject.name, kind, None, &tags, resolved, mask, room) {
            Some(id) => {
                self.overflow_names += self.live_count - before;
                Lookup::Overflow(id)
            }
            None => Lookup::Refused,
        }
    }

    fn find_or_add<T: AsRef<str>>(
        &mut self,
        name: &str,
        kind: Kind,
        host: Option<&str>,
        tags: &[T],
        resolved: &Resolved,
        suffix_mask: u32,
        room: Room,
    ) -> Option<ContextId> {
        let name = self.strings.acquire(name, &self.secret);
        let host = host.map(|host| self.strings.acquire(host, &self.secret));
        let tag_list = self
            .tag_lists
            .acquire(tags, &mut self.strings, &self.secret, &mut self.scratch.ids);
        let hash = self.secret.four([
            kind as u64,
            self.strings.hash(name),
            host.map_or(1, |id| self.strings.hash(id)),
            self.tag_lists.hash(tag_list),
        ]);
        let contexts = &self.contexts;
        let found = self.index.shard(hash).find(hash, |live| {
            let other = &contexts[live.kind() as usize][live.id().0 as usize];
            (live.kind(), other.name, other.host, other.tags) == (kind, name, host, tag_list)
        });
        if let Some(live) = found {
            let id = live.id();
            self.release_context_parts(name, host, None, tag_list);
            return Some(id);
        }
        let name_hash = self.strings.hash(name);
        let refused_by = match room {
            Room::Always => None,
            Room::No(reason) => Some(reason),
            Room::Fair(left) => {
                let max = share(left, self.limits.contexts_per_metric_max);
                if self.names.contexts(name, name_hash) >= max {
                    Some(LimitReason::Metric)
                } else if self.strings.new_tag_values() > share(left, usize::MAX) {
                    Some(LimitReason::TagKey)
                } else {
                    None
                }
            }
        };
        if let Some(reason) = refused_by {
            self.refused_by = reason;
            self.release_context_parts(name, host, None, tag_list);
            return None;
        }
        let jmx_check = resolved
            .jmx_check
            .as_deref()
            .map(|check| self.strings.acquire(check, &self.secret));
        let context = Context {
            name,
            host,
            jmx_check,
            tags: tag_list,
            hash,
            suffix_mask,
            copy_to: None,
            is_copy: false,
            first_raw: NOBODY,
            in_use: true,
        };
        let of_kind = &mut self.contexts[kind as usize];
        let id = match self.free[kind as usize].pop() {
            Some(id) => {
                of_kind[id.0 as usize] = context;
                id
            }
            None => {
                of_kind.push(context);
                ContextId(of_kind.len() as u32 - 1)
            }
        };
        let live = LiveContext::new(kind, id);
        let contexts = &self.contexts;
        self.index.shard_mut(hash).insert_unique(hash, live, |live| {
            contexts[live.kind() as usize][live.id().0 as usize].hash
        });
        self.live[partition(hash)].push(live);
        self.names.add(name, name_hash);
        self.live_count += 1;
        self.created_since_count += 1;
        Some(id)
    }

    fn add_raw(&mut self, name: StringId, tags: TagListId, origin: OriginId, kind: Kind, hash: u64) -> u32 {
        let slot = match self.raw_free.pop() {
            Some(slot) => slot,
            None => {
                self.raw.push(RawContext::default());
                self.targets.push(Target {
                    generation: self.generation_start,
                    to: FREE,
                });
                self.raw.len() as u32 - 1
            }
        };
        self.raw[slot as usize] = RawContext {
            name,
            tags,
            origin,
            hash,
            kind: kind as u8,
            next: NOBODY,
            previous: NOBODY,
            last_seen: 0,
        };
        self.origins.add_context(origin);
        self.targets[slot as usize].to = STALE;
        let raw = &self.raw;
        self.raw_index
            .shard_mut(hash)
            .insert_unique(hash, slot, |&slot| raw[slot as usize].hash);
        self.raw_created = true;
        slot
    }

    pub(super) fn remove_raw(&mut self, slot: u32) {
        if !self.trials.is_empty() {
            self.trials.forget(slot);
        }
        let RawContext {
            name,
            tags,
            origin,
            hash,
            ..
        } = std::mem::take(&mut self.raw[slot as usize]);
        let target = &mut self.targets[slot as usize];
        *target = Target {
            generation: target.generation.wrapping_add(1),
            to: FREE,
        };
        let raw = &self.raw;
        let shard = self.raw_index.shard_mut(hash);
        if let Ok(found) = shard.find_entry(hash, |&other| other == slot) {
            found.remove();
        }
        if shard.capacity() > 64 && shard.len() < shard.capacity() / 4 {
            shard.shrink_to(shard.len() * 2, |&slot| raw[slot as usize].hash);
        }
        self.raw_free.push(slot);
        self.origins.remove_context(origin);
        self.release_raw_parts(name, tags, origin);
    }

    fn release_raw_parts(&mut self, name: StringId, tags: TagListId, origin: OriginId) {
        self.strings.release(name);
        self.tag_lists.release(tags, &mut self.strings);
        self.origins.release(origin);
    }

    pub(super) fn release_context_parts(
        &mut self,
        name: StringId,
        host: Option<StringId>,
        jmx_check: Option<StringId>,
        tags: TagListId,
    ) {
        self.strings.release(name);
        self.tag_lists.release(tags, &mut self.strings);
        for id in [host, jmx_check].into_iter().flatten() {
            self.strings.release(id);
        }
    }

    #[inline]
    pub(super) fn hash_raw(&self, kind: Kind, name: u64, tags: u64, origin: u64) -> u64 {
        self.secret.four([kind as u64, name, tags, origin])
    }

    fn raw_hash(&self, kind: Kind, name: StringId, tags: TagListId, origin: OriginId) -> u64 {
        let origin = self.origins.hash(origin);
        self.hash_raw(kind, self.strings.hash(name), self.tag_lists.hash(tags), origin)
    }

    fn find_raw(
        &self,
        hash: u64,
        kind: Kind,
        name: StringId,
        tags: TagListId,
        origin: OriginId,
    ) -> Option<u32> {
        let raw = &self.raw;
        let found = self.raw_index.shard(hash).find(hash, |&slot| {
            let other = &raw[slot as usize];
            (other.kind, other.name, other.tags, other.origin) == (kind as u8, name, tags, origin)
        });
        found.copied()
    }
}
