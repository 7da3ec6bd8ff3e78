//! The reports of sources, kept for a while after a source stops reporting an entity.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::entity::{Cardinality, Entity, TagSet};

/// Time for which an entity is kept after its source stops reporting it: messages of an ended container may still be on their way, and a
/// restarted runtime reports nothing for a moment.
const LINGER: Duration = Duration::from_secs(300);

/// Maximum entities of one source.
const ENTITIES_MAX: usize = 20_000;

/// One entity as reported by a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    pub entity: Entity,
    pub tags: TagSet,
    /// For a container in a pod: the pod, its name in the pod, and whether it is an init container.
    pub place: Option<ContainerPlace>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ContainerPlace {
    pub pod: Arc<str>,
    pub name: Arc<str>,
    pub init: bool,
}

struct StoredEntity {
    tags: TagSet,
    place: Option<ContainerPlace>,
    gone: Option<Instant>,
}

/// The reports of all sources.
#[derive(Default)]
pub struct Store {
    sources: Vec<HashMap<Entity, StoredEntity>>,
    places: HashMap<ContainerPlace, Arc<str>>,
}

impl Store {
    pub fn new(sources: usize) -> Self {
        Store {
            sources: (0..sources).map(|_| HashMap::new()).collect(),
            places: HashMap::new(),
        }
    }

    /// Replaces a source's report. Returns the entities whose tags have changed.
    pub fn replace(
        &mut self,
        source: usize,
        mut descriptions: Vec<Description>,
        now: Instant,
    ) -> HashSet<Entity> {
        descriptions.truncate(ENTITIES_MAX);
        let known = &mut self.sources[source];
        let mut changed = HashSet::new();
        let mut seen = HashSet::new();
        for description in descriptions {
            seen.insert(description.entity.clone());
            if let (Some(place), Entity::Container(id)) = (&description.place, &description.entity) {
                self.places.insert(place.clone(), id.clone());
            }
            match known.get_mut(&description.entity) {
                Some(entry) => {
                    entry.gone = None;
                    entry.place = description.place;
                    if entry.tags != description.tags {
                        entry.tags = description.tags;
                        changed.insert(description.entity);
                    }
                }
                None => {
                    let entry = StoredEntity {
                        tags: description.tags,
                        place: description.place,
                        gone: None,
                    };
                    known.insert(description.entity.clone(), entry);
                    changed.insert(description.entity);
                }
            }
        }
        for (entity, entry) in known.iter_mut() {
            if !seen.contains(entity) {
                entry.gone.get_or_insert(now);
            }
        }
        changed
    }

    /// Removes entities that were not reported for long. Returns entities with changed tags.
    pub fn expire(&mut self, now: Instant) -> HashSet<Entity> {
        let mut changed = HashSet::new();
        for known in &mut self.sources {
            known.retain(|entity, entry| {
                let stays = entry.gone.is_none_or(|since| now - since < LINGER);
                if !stays {
                    changed.insert(entity.clone());
                    if let Some(place) = &entry.place {
                        self.places.remove(place);
                    }
                }
                stays
            });
        }
        changed
    }

    /// The tags of an entity up to a level, from all sources.
    pub fn tags(&self, entity: &Entity, level: Cardinality) -> Option<Vec<Arc<str>>> {
        let mut tags: Option<BTreeSet<&str>> = None;
        for known in &self.sources {
            if let Some(entry) = known.get(entity) {
                tags.get_or_insert_default().extend(entry.tags.up_to(level));
            }
        }
        tags.map(|tags| tags.into_iter().map(Arc::from).collect())
    }

    pub fn container_in_pod(&self, pod: &str, name: &str, init: bool) -> Option<Arc<str>> {
        let place = ContainerPlace {
            pod: pod.into(),
            name: name.into(),
            init,
        };
        self.places.get(&place).cloned()
    }

    /// Entities of a source, including recently reported ones.
    pub fn len(&self, source: usize) -> usize {
        self.sources[source].len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(id: &str, tag: &str) -> Description {
        let mut tags = TagSet::default();
        tags.add_tag(Cardinality::Low, tag);
        Description {
            entity: Entity::Container(id.into()),
            tags,
            place: None,
        }
    }

    #[test]
    fn sources_are_merged_and_removed_entities_linger() {
        let mut store = Store::new(2);
        let start = Instant::now();
        let container = Entity::Container("a".into());
        let tags = |store: &Store| {
            let tags = store.tags(&container, Cardinality::Low)?;
            Some(tags.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(tags(&store), None);
        assert_eq!(store.replace(0, vec![described("a", "x:1")], start).len(), 1);
        assert_eq!(store.replace(1, vec![described("a", "y:1")], start).len(), 1);
        assert_eq!(
            store.replace(1, vec![described("a", "y:1")], start).len(),
            0,
            "nothing new"
        );
        assert_eq!(tags(&store), Some(vec!["x:1".into(), "y:1".into()]));
        assert_eq!(store.replace(0, vec![], start).len(), 0);
        assert_eq!(store.expire(start + LINGER / 2).len(), 0);
        assert_eq!(tags(&store).map(|tags| tags.len()), Some(2), "it lingers");
        assert_eq!(store.expire(start + LINGER).len(), 1);
        assert_eq!(tags(&store), Some(vec!["y:1".into()]));
    }
}
