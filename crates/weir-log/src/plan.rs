//! The announced numbers of partitions, in a readable text file: the plan of a log in a directory, or an agent's copy of a plan at brokers.

use std::path::Path;

use weir_merge::Plan;

use crate::{Error, checked};

/// The plan that [`save`] wrote to this file.
pub fn load(path: &Path) -> Result<Option<Plan>, Error> {
    let Some(text) = checked::read(path)? else {
        return Ok(None);
    };
    let plan = parse(&text, &path.display().to_string())?;
    Ok(plan.map(|(plan, _)| plan))
}

/// Replaces the file atomically.
pub fn save(path: &Path, plan: &Plan) -> Result<(), Error> {
    let mut text = first(plan.at(i64::MIN));
    for (from, partitions) in plan.steps() {
        text = announced(&text, from, partitions);
    }
    checked::write(path, &text)
}

pub(crate) const FILE: &str = "plan";

/// The plan, and its largest number of partitions.
pub(crate) fn read(directory: &Path) -> Result<Option<(Plan, u32)>, Error> {
    let path = directory.join(FILE);
    let Some(text) = checked::read(&path)? else {
        return Ok(None);
    };
    let plan = parse(&text, &path.display().to_string())?;
    plan.map(Some)
        .ok_or_else(|| checked::damaged(&path, "it is empty"))
}

/// Parses a plan. `place`: its origin, for errors.
pub(crate) fn parse(text: &str, place: &str) -> Result<Option<(Plan, u32)>, Error> {
    let mut plan: Option<(Plan, u32)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let wrong = |what| Error::Plan {
            place: place.to_owned(),
            line: number,
            what,
        };
        let words: Vec<&str> = line.split_whitespace().collect();
        plan = match (&words[..], plan) {
            (["partitions", count], None) => {
                let count = count_of(count).ok_or(wrong("no number of partitions"))?;
                Some((Plan::new(count), count))
            }
            (["from", from, "partitions", count], Some((mut plan, most))) => {
                let count = count_of(count).ok_or(wrong("no number of partitions"))?;
                let from = from.parse().map_err(|_| wrong("no Unix seconds"))?;
                plan.announce(from, count);
                Some((plan, most.max(count)))
            }
            _ => return Err(wrong("not understood")),
        };
    }
    Ok(plan)
}

fn count_of(text: &str) -> Option<u32> {
    text.parse().ok().filter(|count| *count > 0)
}

/// The text of a plan without changes.
pub(crate) fn first(partitions: u32) -> String {
    format!("partitions {}\n", partitions.max(1))
}

/// The text of a plan with one more change.
pub(crate) fn announced(text: &str, from: i64, partitions: u32) -> String {
    format!("{text}from {from} partitions {partitions}\n")
}

pub(crate) fn create(directory: &Path, partitions: u32) -> Result<(), Error> {
    checked::write(&directory.join(FILE), first(partitions))
}

pub(crate) fn announce(directory: &Path, from: i64, partitions: u32) -> Result<(), Error> {
    let path = directory.join(FILE);
    let text = checked::read(&path)?.ok_or_else(|| checked::damaged(&path, "it is missing"))?;
    // A newer program's plan is not continued.
    parse(&text, &path.display().to_string())?;
    checked::write(&path, announced(&text, from, partitions))
}
