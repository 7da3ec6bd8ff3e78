//! A file with entities and their tags, read again when it changes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde::Deserialize;

use super::{Feed, PollInterval, PollingSource, SourceError, TagSource, Work, poll_repeatedly};
use crate::entity::{Cardinality, Entity, TagSet};
use crate::store::{ContainerPlace, Description};

const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

pub struct File {
    path: PathBuf,
    /// State at the last read.
    read: Option<(Option<SystemTime>, u64, Vec<Description>)>,
}

impl File {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        File {
            path: path.into(),
            read: None,
        }
    }
}

impl TagSource for File {
    fn name(&self) -> &'static str {
        "file"
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn tags_unknown_senders(&self) -> bool {
        true
    }

    fn run(self: Box<Self>, feed: Feed) -> Work {
        let rhythm = PollInterval {
            every: Duration::from_secs(2),
            not_before: Duration::from_millis(200),
        };
        Box::pin(poll_repeatedly(*self, rhythm, feed))
    }
}

impl PollingSource for File {
    async fn poll(&mut self) -> Result<Vec<Description>, SourceError> {
        let data = std::fs::metadata(&self.path)?;
        let stamp = (data.modified().ok(), data.len());
        if let Some((modified, length, known)) = &self.read
            && (*modified, *length) == stamp
        {
            return Ok(known.clone());
        }
        if data.len() > FILE_BYTES_MAX {
            return Err(SourceError::TooLong(FILE_BYTES_MAX));
        }
        let text = std::fs::read_to_string(&self.path)?;
        let known = parse(&text)?;
        self.read = Some((stamp.0, stamp.1, known.clone()));
        Ok(known)
    }
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
#[derive(Default)]
struct Content {
    containers: BTreeMap<String, Tags>,
    pods: BTreeMap<String, Tags>,
    /// For senders of which nothing better is known.
    unknown: Option<Tags>,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
#[derive(Default)]
struct Tags {
    low: Vec<String>,
    orchestrator: Vec<String>,
    high: Vec<String>,
    /// For a container: its pod's uid and its name in the pod.
    pod: Option<String>,
    name: Option<String>,
    init: bool,
}

/// Parses such a file. An error has line and column.
pub fn parse(text: &str) -> Result<Vec<Description>, SourceError> {
    let content: Content = serde_json::from_str(text)?;
    let containers = content
        .containers
        .into_iter()
        .map(|(id, tags)| (Entity::Container(id.into()), tags));
    let pods = content
        .pods
        .into_iter()
        .map(|(uid, tags)| (Entity::Pod(uid.into()), tags));
    let unknown = content.unknown.map(|tags| (Entity::Local, tags));
    Ok(containers.chain(pods).chain(unknown).map(describe).collect())
}

fn describe((entity, entry): (Entity, Tags)) -> Description {
    let mut tags = TagSet::default();
    for (level, list) in [
        (Cardinality::Low, &entry.low),
        (Cardinality::Orchestrator, &entry.orchestrator),
        (Cardinality::High, &entry.high),
    ] {
        for tag in list {
            tags.add_tag(level, tag);
        }
    }
    let place = entry.pod.zip(entry.name).map(|(pod, name)| ContainerPlace {
        pod: pod.into(),
        name: name.into(),
        init: entry.init,
    });
    Description { entity, tags, place }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_file_is_reported_with_its_line() {
        let known = parse(
            r#"{"containers": {"ab": {"low": ["a:1"], "high": ["b:1"], "pod": "u", "name": "n"}},
                "pods": {"u": {"orchestrator": ["pod_name:x"]}}, "unknown": {"low": ["where:here"]}}"#,
        )
        .unwrap();
        assert_eq!(known.len(), 3);
        assert_eq!(known[0].tags.up_to(Cardinality::High).count(), 2);
        assert!(known[0].place.is_some());
        let error = parse("{\n\"containers\": {\"ab\": {\"lwo\": []}}}").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("lwo") && text.contains("line 2"), "{text}");
    }
}
