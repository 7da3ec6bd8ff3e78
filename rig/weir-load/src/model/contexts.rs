//! Combines names, tag lists and types into contexts, and chooses the origin in each message.

use super::builder::{Builder, random_text};
use super::{Context, Model};
use crate::profile::{Extension, Popularity, ProfileError};
use crate::rng::{self, Rng};
use crate::words;
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

pub(super) fn popularity(popularity: &Popularity, contexts: usize) -> Vec<f64> {
    match popularity {
        Popularity::Uniform | Popularity::Cyclic => vec![1.0; contexts],
        Popularity::Zipf(s) => (1..=contexts)
            .map(|rank| 1.0 / rng::pow(rank as f64, *s))
            .collect(),
        Popularity::Weights(weights) => (0..contexts)
            .map(|index| weights[index % weights.len()])
            .collect(),
        // The weights were read with the profile. A profile made in memory has no directory for the file.
        Popularity::WeightsFile(_) => vec![1.0; contexts],
    }
}

pub(super) fn build_contexts(
    b: &mut Builder<'_>,
    weights: &[f64],
    seed: u64,
) -> Result<Vec<Context>, ProfileError> {
    let mut places = Places::new(b, weights.len(), seed)?;
    let mut kinds = KindShares::new(b.profile.types.weights());
    let mut contexts: Vec<Context> = Vec::with_capacity(weights.len());
    for weight in weights {
        b.check_size(weights.len())?;
        let kind = kinds.next(*weight);
        let (name_id, list) = match places.conflicting(b, &contexts, kind) {
            Some(place) => place,
            None => places.next(b, contexts.len(), kind)?,
        };
        contexts.push(Context {
            name: b.names[name_id as usize],
            tail: b.list_tails[list as usize],
            list,
            name_id,
            suffix: 0,
            kind,
        });
    }
    Ok(contexts)
}

/// Gives each context the type furthest behind its share of all messages, so that shares hold for any popularity.
struct KindShares {
    shares: [f64; 6],
    sum: f64,
    given: [f64; 6],
    total: f64,
}

impl KindShares {
    fn new(shares: [f64; 6]) -> KindShares {
        KindShares {
            shares,
            sum: shares.iter().sum(),
            given: [0.0; 6],
            total: 0.0,
        }
    }

    fn next(&mut self, weight: f64) -> u8 {
        self.total += weight;
        let behind = |kind: usize| self.shares[kind] / self.sum * self.total - self.given[kind];
        let kind = (0..6)
            .filter(|&kind| self.shares[kind] > 0.0)
            .max_by(|&x, &y| behind(x).total_cmp(&behind(y)))
            .expect("validated: one type has weight");
        self.given[kind] += weight;
        kind as u8
    }
}

/// Pairs of name and tag list; each type of a pair is one context.
struct Places {
    wanted: usize,
    names: Vec<u32>,
    lists: Vec<u32>,
    /// If both counts are given, every pair of name and list is a candidate once.
    pairs: Vec<(u32, u32)>,
    seen: HashSet<(u32, u32, u8)>,
    share_rng: Rng,
    conflict_rng: Rng,
}

impl Places {
    fn new(b: &mut Builder<'_>, wanted: usize, seed: u64) -> Result<Places, ProfileError> {
        let mut share_rng = Rng::new(seed, "sharing", 0);
        let names = match b.profile.distinct_names {
            Some(count) => b.distinct_names(count)?,
            None => Vec::new(),
        };
        let lists = match b.profile.distinct_tag_lists {
            Some(count) => distinct_lists(b, count)?,
            None => Vec::new(),
        };
        let mut pairs = pairs(&names, &lists, wanted)?;
        share_rng.shuffle(&mut pairs);
        Ok(Places {
            wanted,
            names,
            lists,
            pairs,
            seen: HashSet::with_capacity(wanted),
            share_rng,
            conflict_rng: Rng::new(seed, "conflicts", 0),
        })
    }

    /// Sometimes returns the name and tags of another context.
    fn conflicting(&mut self, b: &Builder<'_>, contexts: &[Context], kind: u8) -> Option<(u32, u32)> {
        if contexts.is_empty() || !self.conflict_rng.chance(b.profile.type_conflict) {
            return None;
        }
        let other = &contexts[self.conflict_rng.below(contexts.len() as u64) as usize];
        self.seen
            .insert((other.name_id, other.list, kind))
            .then_some((other.name_id, other.list))
    }

    fn next(&mut self, b: &mut Builder<'_>, made: usize, kind: u8) -> Result<(u32, u32), ProfileError> {
        for attempt in 0..1000 {
            let (name, list) = self.candidate(b, attempt)?;
            if self.seen.insert((name, list, kind)) {
                return Ok((name, list));
            }
        }
        let wanted = self.wanted;
        Err(ProfileError(format!(
            "contexts: {wanted} asked for, but the names and tags given allow only about {made} different ones"
        )))
    }

    fn candidate(&mut self, b: &mut Builder<'_>, attempt: u64) -> Result<(u32, u32), ProfileError> {
        if let Some(pair) = self.pairs.pop() {
            return Ok(pair);
        }
        let rng = &mut self.share_rng;
        let list = if !self.lists.is_empty() {
            self.lists[rng.below(self.lists.len() as u64) as usize]
        } else if !b.lists.is_empty() && rng.chance(b.profile.shared_tagsets) {
            rng.below(b.lists.len() as u64) as u32
        } else {
            b.new_list()?
        };
        let name = if self.names.is_empty() {
            let text = b.name_text(attempt);
            b.name_id(&text).0
        } else {
            self.names[rng.below(self.names.len() as u64) as usize]
        };
        Ok((name, list))
    }
}

fn distinct_lists(b: &mut Builder<'_>, count: u64) -> Result<Vec<u32>, ProfileError> {
    let mut lists: Vec<u32> = Vec::new();
    for _ in 0..count {
        let list = b.new_list()?;
        if list as usize != lists.len() {
            return Err(ProfileError(format!(
                "distinct_tag_lists: {count} asked for, but tags_per_msg and the tags given allow about {}",
                lists.len()
            )));
        }
        lists.push(list);
    }
    Ok(lists)
}

fn pairs(names: &[u32], lists: &[u32], wanted: usize) -> Result<Vec<(u32, u32)>, ProfileError> {
    let (n, l) = (names.len(), lists.len());
    if n * l > 0 && n * l < wanted {
        return Err(ProfileError(format!(
            "contexts: {wanted} asked for, but {n} names times {l} tag lists are {}",
            n * l
        )));
    }
    let with_name = |name: &u32| lists.iter().map(|list| (*name, *list)).collect::<Vec<_>>();
    Ok(names.iter().flat_map(with_name).collect())
}

pub(super) fn build_suffixes(b: &mut Builder<'_>, model: &mut Model, seed: u64) {
    let p = b.profile;
    if p.container_id.is_none() && p.external_data.is_none() && p.cardinality_p == 0.0 {
        return;
    }
    let mut rng = Rng::new(seed, "origins", 0);
    let mut known: HashMap<(u64, u64, u64), u32> = HashMap::new();
    let container = |index: u64| {
        let mut rng = Rng::new(seed, "container", index);
        random_text(&mut rng, b"0123456789abcdef", 64)
    };
    let pick = |rng: &mut Rng, extension: Option<Extension>| match extension {
        Some(e) if rng.chance(e.p) => 1 + rng.below(u64::from(e.pool)),
        _ => 0,
    };
    for index in 0..model.contexts.len() {
        let c = pick(&mut rng, p.container_id);
        let e = pick(&mut rng, p.external_data);
        let card = if rng.chance(p.cardinality_p) {
            1 + rng.below(4)
        } else {
            0
        };
        let suffix = match known.get(&(c, e, card)) {
            Some(known) => *known,
            None => {
                let mut text = String::new();
                let mut id = String::new();
                if c > 0 {
                    id = container(c);
                    let _ = write!(text, "|c:ci-{id}");
                }
                if e > 0 {
                    let mut rng = Rng::new(seed, "external", e);
                    let uid = random_text(&mut rng, b"0123456789abcdef", 32);
                    let _ = write!(
                        text,
                        "|e:it-false,cn-{}-{e},pu-{}-{}-{}-{}-{}",
                        words::SERVICES[(e as usize) % words::SERVICES.len()],
                        &uid[..8],
                        &uid[8..12],
                        &uid[12..16],
                        &uid[16..20],
                        &uid[20..]
                    );
                }
                if card > 0 {
                    let names = ["none", "low", "orchestrator", "high"];
                    let _ = write!(text, "|card:{}", names[card as usize - 1]);
                }
                let piece = b.store(&text);
                let suffix = model.suffixes.len() as u32;
                model.suffixes.push(piece);
                model.containers.push(id);
                known.insert((c, e, card), suffix);
                suffix
            }
        };
        model.contexts[index].suffix = suffix;
    }
}
