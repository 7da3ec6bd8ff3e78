//! The files of the downward API, which Kubernetes writes into a volume of weir's pod. They describe that pod, and so every sender beside
//! weir of which nothing better is known.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{
    Feed, FileError, LabelError, LabelTags, PollInterval, PollingSource, SourceError, TagSource, Work,
    add_labels, poll_repeatedly,
};
use crate::entity::{Cardinality, Entity, TagSet};
use crate::store::Description;

const FILE_BYTES_MAX: u64 = 1024 * 1024;

pub struct PodInfo {
    directory: PathBuf,
    labels: LabelTags,
}

impl PodInfo {
    pub fn new(directory: impl Into<PathBuf>, labels: LabelTags) -> Self {
        PodInfo {
            directory: directory.into(),
            labels,
        }
    }
}

impl TagSource for PodInfo {
    fn name(&self) -> &'static str {
        "podinfo"
    }

    fn place(&self) -> String {
        self.directory.display().to_string()
    }

    fn tags_unknown_senders(&self) -> bool {
        true
    }

    fn run(self: Box<Self>, feed: Feed) -> Work {
        let rhythm = PollInterval {
            every: Duration::from_secs(10),
            not_before: Duration::from_secs(1),
        };
        Box::pin(poll_repeatedly(*self, rhythm, feed))
    }
}

impl PollingSource for PodInfo {
    async fn poll(&mut self) -> Result<Vec<Description>, SourceError> {
        if !self.directory.is_dir() {
            return Err(SourceError::NoDirectory);
        }
        let file = |name: &str| read(&self.directory.join(name));
        let labels = pairs(&file("labels")?)?;
        let mut tags = TagSet::default();
        for (tag, level, name) in [
            ("pod_name", Cardinality::Orchestrator, "name"),
            ("kube_namespace", Cardinality::Low, "namespace"),
        ] {
            tags.add(level, tag, file(name)?.trim());
        }
        for tag in ["env", "service", "version"] {
            let label = format!("tags.datadoghq.com/{tag}");
            tags.add(
                Cardinality::Low,
                tag,
                labels.get(&label).map_or("", String::as_str),
            );
        }
        add_labels(&mut tags, &self.labels, |name| {
            labels.get(name).map(String::as_str)
        });
        let uid = file("uid")?.trim().to_owned();
        let entities = [
            (!uid.is_empty()).then(|| Entity::Pod(uid.into())),
            Some(Entity::Local),
        ];
        Ok(entities
            .into_iter()
            .flatten()
            .map(|entity| Description {
                entity,
                tags: tags.clone(),
                place: None,
            })
            .collect())
    }
}

/// Empty without such a file: the author of a volume chooses its files.
fn read(path: &Path) -> Result<String, SourceError> {
    match std::fs::metadata(path) {
        Ok(data) if data.len() > FILE_BYTES_MAX => return Err(FileError::TooLong.of(path)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(String::new()),
        _ => {}
    }
    std::fs::read_to_string(path).map_err(|error| FileError::Read(error).of(path))
}

/// Lines of `key="value"`. The value is quoted as a Go string, which for the characters of labels equals a JSON string.
fn pairs(text: &str) -> Result<BTreeMap<String, String>, SourceError> {
    let lines = text.lines().zip(1..);
    lines
        .filter(|(line, _)| !line.trim().is_empty())
        .map(|(text, line)| pair(text).map_err(|error| SourceError::Label { line, error }))
        .collect()
}

fn pair(line: &str) -> Result<(String, String), LabelError> {
    let (key, value) = line.split_once('=').ok_or(LabelError::NoValue)?;
    Ok((key.to_owned(), serde_json::from_str(value)?))
}
