//! The slow path: from the parts of a message to its context, which is made if missing.

use weir_protocol::{Kind, Metric};
use weir_rules::{RuleId, Subject};

use super::limits::{Quota, share};
use super::{Contexts, Lookup, OVERFLOW_TAG, RawMatch};
use crate::context_table::{Context, ContextId, ContextIdentity};
use crate::origins::{OriginId, OriginKey};
use crate::raw_table::{NO_SLOT, RawContext, RawId};
use crate::rules::{Resolved, Rules, Trial, keep_last_special, sort_and_dedup};
use crate::strings::StringId;
use crate::tag_lists::TagListId;
use crate::usage::LimitReason;

/// The identity of a raw context. Each part is held by a reference.
#[derive(Clone, Copy)]
struct RawParts {
    kind: Kind,
    name: StringId,
    tags: TagListId,
    origin: OriginId,
    hash: u64,
}

/// The result of the rules for a metric, and the context that it leads to.
struct Resolution<'a> {
    subject: &'a Subject<'a>,
    /// `None`: `rule` drops it.
    to: Option<ContextId>,
    rule: Option<RuleId>,
    trials: &'a [Trial<'a>],
}

impl Contexts {
    /// The miss path: finds or makes the context of a metric from its parsed parts. `sender` is the origin of the sending process; `now` is
    /// the second of the agent's clock. An origin whose tags are unknown counts as one without tags until they arrive.
    pub fn resolve(&mut self, metric: &Metric<'_>, sender: OriginId, now: u32) -> Lookup {
        let mut tags: Vec<&str> = metric.tags.iter().collect();
        keep_last_special(&mut tags);
        let key = OriginKey::of_message(metric.origin, tags.iter().copied());
        let origin = self.origins.acquire(&key, sender, &self.secret, now);
        sort_and_dedup(&mut tags);

        let raw = self.acquire_raw(metric, &tags, origin);
        let known = self
            .raw
            .find(raw.hash, raw.kind as u8, raw.name, raw.tags, origin);
        let Some(slot) = known else {
            return self.apply_rules(metric, tags, raw, None, now);
        };
        self.release_raw(raw);
        self.resolve_raw(self.raw.id(slot), now)
            .unwrap_or_else(|| self.apply_rules(metric, tags, raw, Some(slot), now))
    }

    fn acquire_raw(&mut self, metric: &Metric<'_>, tags: &[&str], origin: OriginId) -> RawParts {
        self.interner.strings.clear_new_tags();
        let (name, list) = self.interner.acquire(metric.name, tags, &self.secret);
        let hash = self.hash_raw(
            metric.kind,
            self.interner.strings.hash(name),
            self.interner.tag_lists.hash(list),
            self.origins.hash(origin),
        );
        RawParts {
            kind: metric.kind,
            name,
            tags: list,
            origin,
            hash,
        }
    }

    /// Releases the references of a raw context that has no slot.
    fn release_raw(&mut self, raw: RawParts) {
        self.interner.release(raw.name, raw.tags);
        self.origins.release(raw.origin);
    }

    /// Resolves a raw context. It is in `slot`, or it is new and its parts are held.
    fn apply_rules(
        &mut self,
        metric: &Metric<'_>,
        tags: Vec<&str>,
        raw: RawParts,
        slot: Option<u32>,
        now: u32,
    ) -> Lookup {
        let known = self.origins.known(raw.origin);
        let origin_tags = known.tags.iter().flat_map(|tags| tags.iter().map(AsRef::as_ref));
        let tags = tags.into_iter().chain(origin_tags);
        let mut resolved = std::mem::take(&mut self.scratch.resolved);
        let rules = self.rules.rules().clone();
        let mut subject = rules.subject(metric.kind, metric.name, tags);
        subject.tag_styles = raw.origin.tag_styles();
        let outcome = rules.apply(&mut subject, &mut resolved);
        self.rules.count_applied(&resolved.applied);
        let quota = self.quota(raw.origin);
        let target = match outcome.passes {
            true => self
                .context_for(&subject, &resolved, &rules, raw, quota)
                .map(Some),
            false => Ok(None),
        };
        let lookup = match target {
            Ok(to) => {
                let resolution = Resolution {
                    subject: &subject,
                    to,
                    rule: resolved.applied.dropped_by,
                    trials: &outcome.trials,
                };
                self.remember_raw(raw, slot, &resolution, quota, now)
            }
            Err(reason) => {
                self.count_refused(&subject, &metric.values, raw.origin, reason);
                if slot.is_none() {
                    self.release_raw(raw);
                }
                self.overflow(&subject, &resolved, &rules, reason)
            }
        };
        self.scratch.resolved = resolved;
        lookup
    }

    /// Links a raw context to its target. A new one is stored only if there is room.
    fn remember_raw(
        &mut self,
        raw: RawParts,
        slot: Option<u32>,
        resolution: &Resolution<'_>,
        quota: Quota,
        now: u32,
    ) -> Lookup {
        if let Some(slot) = slot {
            return self.set_target(slot, false, resolution, now);
        }
        if self.may_remember(quota) {
            let slot = self
                .raw
                .add(raw.hash, raw.kind as u8, raw.name, raw.tags, raw.origin);
            self.origins.add_context(raw.origin);
            let is_known = |id| self.resolved.get(raw.kind, id).first_raw != NO_SLOT;
            if resolution.to.is_none_or(is_known) {
                // A new raw context of a known context takes memory too.
                self.capacity.record_created();
            }
            return self.set_target(slot, true, resolution, now);
        }
        self.release_raw(raw);
        let nowhere = RawMatch {
            raw: RawId::NONE,
            is_new: false,
        };
        match resolution.to {
            Some(id) => Lookup::Unremembered(id),
            None => Lookup::Filtered(nowhere, resolution.rule),
        }
    }

    /// Links an unlinked raw context to a context, or marks it as filtered by a rule.
    fn set_target(&mut self, slot: u32, is_new: bool, resolution: &Resolution<'_>, now: u32) -> Lookup {
        let raw = self.raw.id(slot);
        let raw_match = RawMatch { raw, is_new };
        let Resolution {
            subject,
            to,
            rule,
            trials,
        } = *resolution;
        let Some(id) = to else {
            self.raw.filter(slot, rule, now);
            return Lookup::Filtered(raw_match, rule);
        };
        let context = self.resolved.get_mut(subject.kind, id);
        // The rules may have changed since the context was made.
        context.suffix_mask = subject.suffix_mask;
        context.delta_expiry = subject.delta_expiry;
        let head = std::mem::replace(&mut context.first_raw, slot);
        self.raw.link(slot, id, head);
        if !trials.is_empty() && self.track_dry_runs(slot, id, subject, trials) {
            return Lookup::DryRun(id, raw_match);
        }
        Lookup::Context(id, raw_match)
    }

    #[cold]
    fn track_dry_runs(
        &mut self,
        slot: u32,
        id: ContextId,
        subject: &Subject<'_>,
        trials: &[Trial<'_>],
    ) -> bool {
        let secret = self.secret;
        let digest = |subject: &Subject<'_>| secret.bytes(format!("{subject:?}").as_bytes());
        let context = (subject.kind, id);
        let is_tracked = self.rules.trials.track(slot, context, subject, trials, digest);
        if is_tracked {
            self.raw.mark_dry_run(slot);
        }
        is_tracked
    }

    /// Removes a raw context from the list of its context.
    pub(super) fn unlink(&mut self, slot: u32) {
        let kind = Kind::ALL[usize::from(self.raw.get(slot).kind)];
        if let Some(unlinked) = self.raw.unlink(slot)
            && let Some(head) = unlinked.head
        {
            self.resolved.get_mut(kind, unlinked.context).first_raw = head;
        }
        self.rules.trials.forget(slot);
    }

    pub(super) fn remove_raw(&mut self, slot: u32) {
        self.rules.trials.forget(slot);
        let RawContext {
            name, tags, origin, ..
        } = self.raw.remove(slot);
        self.origins.remove_context(origin);
        self.origins.release(origin);
        self.interner.release(name, tags);
    }

    /// Finds or makes a resolved context, and the distribution that gets a copy of its samples.
    fn context_for(
        &mut self,
        subject: &Subject<'_>,
        resolved: &Resolved,
        rules: &Rules,
        raw: RawParts,
        quota: Quota,
    ) -> Result<ContextId, LimitReason> {
        let kind = subject.kind;
        let check = resolved.jmx_check.as_deref();
        // Most rules leave most metrics as they are.
        let near = (raw.name, raw.tags);
        let parts = self
            .interner
            .acquire_near(near, &subject.name, &subject.tags, &self.secret);
        let id = self.find_or_add(parts, subject, kind, check, quota)?;
        if let Some(copied) = rules.copied_name(&subject.name, kind)
            && self.resolved.get(kind, id).copy_to().is_none()
        {
            let copy_kind = Kind::Distribution;
            let parts = self
                .interner
                .acquire_near(parts, &copied, &subject.tags, &self.secret);
            let copy = self.find_or_add(parts, subject, copy_kind, check, quota);
            self.resolved.get_mut(kind, id).set_copy_to(copy.ok());
            if let Ok(copy) = copy {
                self.resolved.get_mut(copy_kind, copy).is_copy = true;
            }
        }
        Ok(id)
    }

    /// The overflow series of a name whose contexts find no room.
    fn overflow(
        &mut self,
        subject: &Subject<'_>,
        resolved: &Resolved,
        rules: &Rules,
        refused_by: LimitReason,
    ) -> Lookup {
        if matches!(subject.kind, Kind::Gauge | Kind::Set) {
            return Lookup::Refused(refused_by);
        }
        let mut tags: Vec<&str> = rules.extra_tags().iter().map(String::as_str).collect();
        tags.push(OVERFLOW_TAG);
        sort_and_dedup(&mut tags);
        let without_host = Subject {
            host: None,
            ..subject.clone()
        };
        let before = self.resolved.len();
        let quota = self.quota_for_overflow(refused_by);
        let check = resolved.jmx_check.as_deref();
        let parts = self.interner.acquire(&subject.name, &tags, &self.secret);
        let found = self.find_or_add(parts, &without_host, subject.kind, check, quota);
        if self.resolved.len() > before {
            self.capacity.add_overflow();
        }
        found.map_or_else(Lookup::Refused, Lookup::Overflow)
    }

    /// Finds a context, or makes it if there is room. Takes over the references to name and tags.
    fn find_or_add(
        &mut self,
        (name, tags): (StringId, TagListId),
        subject: &Subject<'_>,
        kind: Kind,
        jmx_check: Option<&str>,
        quota: Quota,
    ) -> Result<ContextId, LimitReason> {
        let host = subject.host.as_deref();
        let host = host.map(|host| self.interner.strings.acquire(host, &self.secret));
        let identity = ContextIdentity { name, host, tags };
        let hash = self.hash_resolved(kind, identity);
        if let Some(id) = self.resolved.find(hash, kind, identity) {
            self.release(identity);
            return Ok(id);
        }
        if let Err(reason) = self.check_quota(name, quota) {
            self.release(identity);
            return Err(reason);
        }
        let check = jmx_check.map(|check| self.interner.strings.acquire(check, &self.secret));
        let mask = match kind == subject.kind {
            true => subject.suffix_mask,
            false => u32::MAX,
        };
        let mut context = Context::new(identity, hash, mask, check);
        context.delta_expiry = subject.delta_expiry;
        self.usage.names.add(name, self.interner.strings.hash(name));
        self.capacity.record_created();
        Ok(self.resolved.add(kind, context))
    }

    /// Whether a new context fits with this name and with the tags that were new to the interner.
    fn check_quota(&self, name: StringId, quota: Quota) -> Result<(), LimitReason> {
        let left = match quota {
            Quota::Unlimited => return Ok(()),
            Quota::Exceeded(reason) => return Err(reason),
            Quota::Fair(left) => left,
        };
        let contexts = self.usage.names.contexts(name, self.interner.strings.hash(name));
        if contexts >= share(left, self.capacity.limits.contexts_per_metric_max) {
            return Err(LimitReason::Metric);
        }
        if self.interner.strings.new_tag_values() > share(left, usize::MAX) {
            return Err(LimitReason::TagKey);
        }
        Ok(())
    }

    /// Releases the references of a context's identity.
    pub(super) fn release(&mut self, identity: ContextIdentity) {
        self.interner.release(identity.name, identity.tags);
        if let Some(host) = identity.host {
            self.interner.strings.release(host);
        }
    }

    #[inline]
    pub(super) fn hash_raw(&self, kind: Kind, name: u64, tags: u64, origin: u64) -> u64 {
        self.secret.four([kind as u64, name, tags, origin])
    }

    pub(super) fn hash_resolved(&self, kind: Kind, identity: ContextIdentity) -> u64 {
        let strings = &self.interner.strings;
        self.secret.four([
            kind as u64,
            strings.hash(identity.name),
            identity.host.map_or(1, |id| strings.hash(id)),
            self.interner.tag_lists.hash(identity.tags),
        ])
    }
}

/// A context's parts, as another process resolved them.
#[derive(Clone, Copy, Debug)]
pub struct KnownContext<'a> {
    pub kind: Kind,
    pub name: &'a str,
    /// `None`: the agent's own host. Empty: explicitly no host.
    pub host: Option<&'a str>,
    pub integration: Option<&'a str>,
    /// Sorted by bytes, without duplicates.
    pub tags: &'a [&'a str],
    pub suffixes: u32,
}

impl Contexts {
    /// Reserves room for about this many contexts.
    pub fn reserve(&mut self, contexts: usize) {
        self.interner.strings.reserve(contexts);
        self.interner.tag_lists.reserve(contexts);
        self.resolved.reserve(contexts);
    }

    /// Makes a context that no message leads to yet. `None`: there is no room, or it exists.
    pub fn restore(&mut self, known: KnownContext<'_>) -> Option<ContextId> {
        let is_overflow = known.tags.contains(&OVERFLOW_TAG);
        if !is_overflow && matches!(self.quota_for_known(), Quota::Exceeded(_)) {
            return None;
        }
        let (name, tags) = self.interner.acquire(known.name, known.tags, &self.secret);
        let host = known
            .host
            .map(|host| self.interner.strings.acquire(host, &self.secret));
        let identity = ContextIdentity { name, host, tags };
        let hash = self.hash_resolved(known.kind, identity);
        if self.resolved.find(hash, known.kind, identity).is_some() {
            self.release(identity);
            return None;
        }
        let strings = &mut self.interner.strings;
        let check = known
            .integration
            .map(|check| strings.acquire(check, &self.secret));
        let context = Context::new(identity, hash, known.suffixes, check);
        self.usage.names.add(name, self.interner.strings.hash(name));
        self.capacity.record_created();
        if is_overflow {
            self.capacity.add_overflow();
        }
        Some(self.resolved.add(known.kind, context))
    }
}
