//! Decides which tags an origin brings, for workers and for `weir explain`.

use std::sync::Arc;

use weir_context::OriginKey;

use crate::cgroup::is_container_id;
use crate::entity::{Cardinality, Entity};

/// The operator's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Use the first known origin only, instead of all.
    pub unified: bool,
    /// A message may decline origin tags.
    pub optout: bool,
    pub entity_id_precedence: bool,
    /// For messages that name no cardinality.
    pub cardinality: Cardinality,
}

/// The facts known at the moment.
pub trait Facts {
    /// The tags of an entity up to a level; `None` if they are unknown.
    fn tags(&self, entity: &Entity, level: Cardinality) -> Option<Vec<Arc<str>>>;

    /// The container whose control group has this inode.
    fn container_of_inode(&mut self, inode: u64) -> Option<Arc<str>>;

    /// The container of this name in a pod.
    fn container_in_pod(&self, pod: &str, name: &str, init: bool) -> Option<Arc<str>>;
}

/// A decision and its reasons.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Sorted, no duplicates.
    pub tags: Vec<Box<str>>,
    /// Every entity that was considered, known or not. A change of one may change the decision.
    pub entities: Vec<Entity>,
    /// The decision also depends on inodes or names.
    pub depends_on_names: bool,
    /// An entity is unknown. Asking the sources may help.
    pub missing: bool,
    /// An origin field of the message is malformed.
    pub malformed: bool,
    pub steps: Vec<DecisionStep>,
}

/// One origin that was considered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionStep {
    /// The method that found it: `socket`, `local_data`, `external_data`, `entity_id`, `cardinality`, `surroundings`.
    pub means: &'static str,
    pub what: String,
    pub added: Vec<Box<str>>,
}

struct Candidate {
    means: &'static str,
    entity: Entity,
}

/// Decides about one origin.
pub fn decide(key: &OriginKey<'_>, policy: &Policy, facts: &mut dyn Facts) -> Decision {
    let mut decision = Decision::default();
    let Some(level) = level(key, policy, &mut decision) else {
        return decision;
    };
    let candidates = candidates(key, policy, facts, &mut decision);
    let mut found = false;
    for Candidate { means, entity } in candidates {
        if policy.unified && found {
            decision.note(means, format!("{entity}: another origin came first"));
            continue;
        }
        if decision.entities.contains(&entity) {
            decision.note(means, format!("{entity}: the same again"));
            continue;
        }
        decision.entities.push(entity.clone());
        match facts.tags(&entity, level) {
            Some(tags) => {
                found = true;
                decision.add(means, format!("{entity}, level {}", level.as_str()), &tags);
            }
            None => {
                decision.missing = true;
                let mut own = Vec::new();
                if let (Entity::Container(id), "socket", Cardinality::High) = (&entity, means, level) {
                    own.push(Arc::from(format!("container_id:{id}")));
                }
                decision.add(means, format!("{entity}: no source knows it"), &own);
            }
        }
    }
    if !found {
        decision.entities.push(Entity::Local);
        if let Some(tags) = facts.tags(&Entity::Local, level) {
            let what = format!("{}, level {}", Entity::Local, level.as_str());
            decision.add("surroundings", what, &tags);
        }
    }
    decision.tags.sort_unstable();
    decision.tags.dedup();
    decision
}

/// The effective level. `None`: no tags are wanted.
fn level(key: &OriginKey<'_>, policy: &Policy, decision: &mut Decision) -> Option<Cardinality> {
    let said = key.fields.cardinality.or(key.tag_cardinality);
    let level = match said {
        None => policy.cardinality,
        Some(text) => match Cardinality::parse(text) {
            Some(Cardinality::None) if policy.optout => {
                decision.note("cardinality", "none: the message opts out of origin tags".into());
                return None;
            }
            Some(Cardinality::None) => {
                let what = "none: opting out is not allowed, the default applies";
                decision.note("cardinality", what.into());
                policy.cardinality
            }
            Some(level) => {
                decision.note("cardinality", format!("{}, from the message", level.as_str()));
                level
            }
            None => {
                decision.note(
                    "cardinality",
                    format!("{text:?} is not a cardinality, the default applies"),
                );
                policy.cardinality
            }
        },
    };
    if level == Cardinality::None {
        decision.note("cardinality", "tag_cardinality is none: no origin tags".into());
        return None;
    }
    Some(level)
}

/// The origins that count, in order.
fn candidates(
    key: &OriginKey<'_>,
    policy: &Policy,
    facts: &mut dyn Facts,
    decision: &mut Decision,
) -> Vec<Candidate> {
    let container = |means, id: Arc<str>| Candidate {
        means,
        entity: Entity::Container(id),
    };
    let pod = |means, uid: &str| Candidate {
        means,
        entity: Entity::Pod(uid.into()),
    };
    let local = local_container(key, facts, decision);
    let socket = (!key.sender.is_empty()).then(|| container("socket", key.sender.into()));
    let entity_id = match key.entity_id {
        None | Some("") => None,
        Some("none") => {
            decision.note("entity_id", "none: nothing is looked up by the entity id".into());
            None
        }
        Some(uid) if is_container_id(uid) => Some(uid),
        Some(uid) => {
            decision.malformed = true;
            decision.note("entity_id", format!("{uid:?} cannot be a pod's uid"));
            None
        }
    };
    if policy.unified {
        let external = key.fields.external_data();
        let named = external.pod_uid.zip(external.container_name);
        let by_name = named.and_then(|(uid, name)| {
            decision.depends_on_names = true;
            let init = external.init_container.unwrap_or(false);
            let found = facts.container_in_pod(uid, name, init);
            if found.is_none() {
                decision.missing = true;
                let what = format!("no container {name} is known in pod {uid}");
                decision.note("external_data", what);
            }
            found
        });
        let external_pod = external.pod_uid.filter(|uid| is_container_id(uid));
        return [
            local.map(|id| container("local_data", id)),
            socket,
            by_name.map(|id| container("external_data", id)),
            entity_id.map(|uid| pod("entity_id", uid)),
            external_pod.map(|uid| pod("external_data", uid)),
        ]
        .into_iter()
        .flatten()
        .collect();
    }
    let mut found = Vec::new();
    if let Some(socket) = socket {
        if policy.entity_id_precedence && key.entity_id.is_some_and(|id| !id.is_empty()) {
            let what = format!("{}: the entity id takes precedence", socket.entity);
            decision.note("socket", what);
        } else {
            found.push(socket);
        }
    }
    match (entity_id, local) {
        (Some(uid), local) => {
            found.push(pod("entity_id", uid));
            if let Some(id) = local {
                decision.note(
                    "local_data",
                    format!("container {id}: the entity id takes precedence"),
                );
            }
        }
        (None, Some(id)) => found.push(container("local_data", id)),
        (None, None) => {}
    }
    if key.fields.external.is_some() {
        decision.note("external_data", "only origin_unified uses it".into());
    }
    found
}

/// The container in Local Data, by id or by inode.
fn local_container(key: &OriginKey<'_>, facts: &mut dyn Facts, decision: &mut Decision) -> Option<Arc<str>> {
    let local = key.fields.local_data();
    if let Some(id) = local.container_id {
        if is_container_id(id) {
            return Some(id.into());
        }
        decision.malformed = true;
        decision.note("local_data", format!("{id:?} cannot be a container's id"));
    }
    let Some(inode) = local.inode else {
        if key.fields.local.is_some_and(|text| text.contains("in-")) {
            decision.malformed = true;
            decision.note("local_data", "the inode is not a number".into());
        }
        return None;
    };
    decision.depends_on_names = true;
    let found = facts.container_of_inode(inode);
    match &found {
        Some(id) => decision.note("local_data", format!("inode {inode} is container {id}")),
        None => {
            decision.missing = true;
            decision.note(
                "local_data",
                format!("no container's cgroup has the inode {inode}"),
            );
        }
    }
    found
}

impl Decision {
    fn note(&mut self, means: &'static str, what: String) {
        self.steps.push(DecisionStep {
            means,
            what,
            added: Vec::new(),
        });
    }

    fn add(&mut self, means: &'static str, what: String, tags: &[Arc<str>]) {
        let added: Vec<Box<str>> = tags.iter().map(|tag| Box::from(&**tag)).collect();
        self.tags.extend(added.iter().cloned());
        self.steps.push(DecisionStep { means, what, added });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_protocol::OriginFields;

    /// Containers `a`, `b`, `s` and pod `p` are known, each with a tag per level; inode 7 is `a`; `p` has `b` as `main`.
    struct World;

    impl Facts for World {
        fn tags(&self, entity: &Entity, level: Cardinality) -> Option<Vec<Arc<str>>> {
            let name = match entity {
                Entity::Container(id) if ["a", "b", "s"].contains(&&**id) => id.to_string(),
                Entity::Pod(uid) if &**uid == "p" => uid.to_string(),
                _ => return None,
            };
            let mut tags = vec![Arc::from(format!("{name}:low"))];
            if level == Cardinality::High {
                tags.push(Arc::from(format!("{name}:high")));
            }
            Some(tags)
        }

        fn container_of_inode(&mut self, inode: u64) -> Option<Arc<str>> {
            (inode == 7).then(|| "a".into())
        }

        fn container_in_pod(&self, pod: &str, name: &str, init: bool) -> Option<Arc<str>> {
            (pod == "p" && name == "main" && !init).then(|| "b".into())
        }
    }

    const POLICY: Policy = Policy {
        unified: false,
        optout: true,
        entity_id_precedence: false,
        cardinality: Cardinality::Low,
    };

    fn key<'a>(sender: &'a str, local: &'a str, external: &'a str, entity: &'a str) -> OriginKey<'a> {
        let some = |text: &'a str| (!text.is_empty()).then_some(text);
        OriginKey {
            sender,
            fields: OriginFields {
                local: some(local),
                external: some(external),
                cardinality: None,
            },
            entity_id: some(entity),
            tag_cardinality: None,
        }
    }

    fn check(policy: &Policy, key: &OriginKey<'_>, expected: &[&str]) -> Decision {
        let decision = decide(key, policy, &mut World);
        let tags: Vec<&str> = decision.tags.iter().map(AsRef::as_ref).collect();
        assert_eq!(tags, expected, "{key:?} {:?}", decision.steps);
        decision
    }

    #[test]
    fn legacy_adds_the_socket_and_one_of_the_messages_origins() {
        check(&POLICY, &key("s", "", "", ""), &["s:low"]);
        check(&POLICY, &key("s", "ci-a", "", ""), &["a:low", "s:low"]);
        check(&POLICY, &key("s", "ci-a", "", "p"), &["p:low", "s:low"]);
        check(&POLICY, &key("", "in-7", "", ""), &["a:low"]);
        check(&POLICY, &key("s", "ci-s", "", ""), &["s:low"]);
        check(&POLICY, &key("", "", "cn-main,pu-p", ""), &[]);
        check(&POLICY, &key("s", "", "", "none"), &["s:low"]);
        let precedence = Policy {
            entity_id_precedence: true,
            ..POLICY
        };
        check(&precedence, &key("s", "", "", "p"), &["p:low"]);
        check(&precedence, &key("s", "", "", "none"), &[]);
        check(&precedence, &key("s", "ci-a", "", ""), &["a:low", "s:low"]);
    }

    #[test]
    fn unified_uses_the_first_known_origin() {
        let unified = Policy {
            unified: true,
            ..POLICY
        };
        check(&unified, &key("s", "ci-a", "cn-main,pu-p", "p"), &["a:low"]);
        check(&unified, &key("s", "", "cn-main,pu-p", "p"), &["s:low"]);
        check(&unified, &key("", "", "it-false,cn-main,pu-p", "p"), &["b:low"]);
        check(&unified, &key("", "", "it-true,cn-main,pu-p", ""), &["p:low"]);
        check(&unified, &key("", "", "pu-p", ""), &["p:low"]);
        check(&unified, &key("", "", "", "p"), &["p:low"]);
        let forged = check(&unified, &key("s", "ci-forged", "", ""), &["s:low"]);
        assert!(forged.missing);
    }

    #[test]
    fn the_cardinality_of_a_message_wins() {
        let with = |card, tag| OriginKey {
            fields: OriginFields {
                cardinality: card,
                ..OriginFields::default()
            },
            tag_cardinality: tag,
            ..key("s", "", "", "")
        };
        check(&POLICY, &with(Some("HIGH"), None), &["s:high", "s:low"]);
        check(&POLICY, &with(None, Some("high")), &["s:high", "s:low"]);
        check(&POLICY, &with(Some("low"), Some("high")), &["s:low"]);
        check(&POLICY, &with(Some("BOGUS"), Some("high")), &["s:low"]);
        check(&POLICY, &with(Some("none"), None), &[]);
        check(&POLICY, &with(None, Some("none")), &[]);
        let no_optout = Policy {
            optout: false,
            ..POLICY
        };
        check(&no_optout, &with(Some("none"), None), &["s:low"]);
        let none = Policy {
            cardinality: Cardinality::None,
            ..POLICY
        };
        check(&none, &with(None, None), &[]);
        check(&none, &with(Some("orch"), None), &["s:low"]);
    }

    #[test]
    fn malformed_ids_match_no_entity() {
        for local in [
            "ci-../../etc/passwd",
            "ci-a b",
            "in-x",
            "in-99999999999999999999999",
        ] {
            let decision = check(&POLICY, &key("", local, "", ""), &[]);
            assert!(decision.malformed, "{local}");
        }
        let unknown = Policy {
            cardinality: Cardinality::High,
            ..POLICY
        };
        check(
            &unknown,
            &key("unheard-of", "", "", ""),
            &["container_id:unheard-of"],
        );
        check(&unknown, &key("", "ci-unheard-of", "", ""), &[]);
    }
}
