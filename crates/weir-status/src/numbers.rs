//! Numbers of the status by field name. A counter's declaration decides its place.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use weir_counters::{Across, Counter, CounterInfo, Counts, NumberKind};

use super::counters::TABLES;

/// Counts by reason. A reason that never occurred may be absent.
pub type Reasons = BTreeMap<String, u64>;

/// Lists in the status whose entries have their own numbers.
const SECTIONS: [&str; 6] = [
    "listeners.",
    "outputs.",
    "origin.",
    "limits.",
    "clients.",
    "fleet.",
];

/// The fields of one object of the status.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Numbers(BTreeMap<String, Number>);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Number {
    Whole(u64),
    Real(f64),
    Group(Numbers),
}

impl Number {
    pub fn as_f64(&self) -> f64 {
        match self {
            Number::Whole(number) => *number as f64,
            Number::Real(number) => *number,
            Number::Group(_) => 0.0,
        }
    }

    fn combine(&mut self, other: &Number, across: Across) {
        match (self, other, across) {
            (Number::Whole(mine), Number::Whole(theirs), Across::Sum) => *mine += theirs,
            (Number::Whole(mine), Number::Whole(theirs), Across::Highest) => *mine = *theirs.max(mine),
            (Number::Real(mine), Number::Real(theirs), Across::Sum) => *mine += theirs,
            (Number::Real(mine), Number::Real(theirs), Across::Highest) => *mine = theirs.max(*mine),
            (Number::Group(mine), Number::Group(theirs), _) => mine.merge(theirs),
            (mine, theirs, _) => *mine = theirs.clone(),
        }
    }
}

impl Numbers {
    /// Adds the counts of one worker.
    pub fn add<C: Counter>(&mut self, counts: &Counts<C>) {
        counts.iter().for_each(|(info, count)| self.put(info, count));
    }

    /// Adds one number. A labelled number is absent while it is zero.
    pub fn put(&mut self, info: &CounterInfo, count: u64) {
        let series = &info.series;
        let number = match series.per_unit {
            1 => Number::Whole(count),
            per_unit => Number::Real(count as f64 / per_unit as f64),
        };
        let path = below(series.path);
        match series.label {
            Some(_) if count == 0 => self.group_at(path),
            Some((_, value)) => self.group_at(path).combine(value, &number, series.across),
            None => self.combine_at(path, &number, series.across),
        };
        if let Some(also) = series.also {
            self.combine_at(below(also), &number, series.across);
        }
    }

    /// Adds all numbers of another.
    pub fn merge(&mut self, other: &Numbers) {
        for (name, number) in &other.0 {
            self.combine(name, number, Across::Sum);
        }
    }

    /// Adds the declared counters of another; not gauges.
    pub fn add_counters(&mut self, other: &Numbers) {
        static PATHS: LazyLock<BTreeSet<&str>> = LazyLock::new(|| {
            let counters = TABLES.iter().copied().flatten().map(|info| &info.series);
            counters
                .filter(|series| series.kind == NumberKind::Counter)
                .flat_map(|series| std::iter::once(series.path).chain(series.also))
                .map(below)
                .collect()
        });
        for path in PATHS.iter().copied() {
            if let Some(number) = other.at(path) {
                self.combine_at(path, number, Across::Sum);
            }
        }
    }

    fn combine(&mut self, name: &str, number: &Number, across: Across) -> &mut Self {
        match self.0.get_mut(name) {
            Some(mine) => mine.combine(number, across),
            None => drop(self.0.insert(name.to_owned(), number.clone())),
        }
        self
    }

    fn combine_at(&mut self, path: &str, number: &Number, across: Across) -> &mut Self {
        match path.rsplit_once('.') {
            Some((group, name)) => self.group_at(group).combine(name, number, across),
            None => self.combine(path, number, across),
        }
    }

    /// Adds to the number at a path.
    pub fn add_at(&mut self, path: &str, count: u64) {
        self.combine_at(path, &Number::Whole(count), Across::Sum);
    }

    /// The group at a path, created if missing.
    pub fn group_at(&mut self, path: &str) -> &mut Numbers {
        path.split('.').fold(self, |numbers, name| {
            let entry = numbers.0.entry(name.to_owned());
            let number = entry.or_insert_with(|| Number::Group(Numbers::default()));
            if !matches!(number, Number::Group(_)) {
                *number = Number::Group(Numbers::default());
            }
            match number {
                Number::Group(group) => group,
                _ => unreachable!("it was made a group"),
            }
        })
    }

    pub fn at(&self, path: &str) -> Option<&Number> {
        match path.split_once('.') {
            Some((group, rest)) => match self.0.get(group)? {
                Number::Group(group) => group.at(rest),
                _ => None,
            },
            None => self.0.get(path),
        }
    }

    /// The value of a declaration: a number, or those of its labels.
    pub fn shown(&self, info: &CounterInfo) -> Option<&Number> {
        self.at(below(info.series.path))
    }

    /// One number for display; zero if it never moved.
    pub fn value(&self, info: &CounterInfo) -> f64 {
        match (self.shown(info), info.series.label) {
            (Some(Number::Group(group)), Some((_, value))) => group.at(value).map_or(0.0, Number::as_f64),
            (Some(number), None) => number.as_f64(),
            _ => 0.0,
        }
    }

    pub fn of(&self, counter: impl Counter) -> u64 {
        self.value(counter.info()) as u64
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Number)> {
        self.0.iter().map(|(name, number)| (name.as_str(), number))
    }

    /// The books of a unit: received, good and lost.
    pub fn account(&self, path: &str) -> Account {
        let mut account = Account::default();
        let Some(Number::Group(lines)) = self.at(path) else {
            return account;
        };
        for (name, number) in lines.iter() {
            match number {
                Number::Group(reasons) => account.lost.extend(reasons.reasons()),
                number if name == "received" => account.received = number.as_f64() as u64,
                number => account.good += number.as_f64() as u64,
            }
        }
        account
    }

    /// The numbers of a group by reason.
    pub fn reasons(&self) -> Reasons {
        let count = |(name, number): (&str, &Number)| (name.to_owned(), number.as_f64() as u64);
        self.iter().map(count).collect()
    }
}

/// One unit's line of the books: received = good + lost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Account {
    pub received: u64,
    pub good: u64,
    pub lost: Reasons,
}

impl Account {
    pub fn accounted(&self) -> u64 {
        self.good + sum_of(&self.lost)
    }
}

pub fn sum_of(reasons: &Reasons) -> u64 {
    reasons.values().sum()
}

/// The path within its section of the status.
fn below(path: &str) -> &str {
    let section = SECTIONS.iter().find_map(|section| path.strip_prefix(section));
    section.unwrap_or(path)
}
