//! The API of Docker, which Podman also implements: a list, an inspection of each container, and a stream of events.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::Duration;

use reqwest::{Client, Response};
use serde::Deserialize;

use super::http::{self, PATIENCE};
use super::{
    Feed, LabelTags, SourceError, SourceEvent, TagSource, Work, add_image, add_labels, backoff, split_image,
};
use crate::entity::{Cardinality, Entity, TagSet};
use crate::store::Description;

/// No list of the containers of one machine is longer.
const BODY_MAX: usize = 64 * 1024 * 1024;

/// No event is longer.
const EVENT_BYTES_MAX: usize = 1024 * 1024;

/// Interval of listing, in case an event was missed.
const RELIST: Duration = Duration::from_secs(60);

/// Minimum interval of lists that are caused by unknown containers.
const RELIST_MIN: Duration = Duration::from_secs(1);

/// Reads the containers of one runtime.
pub struct Docker {
    socket: PathBuf,
    labels: LabelTags,
}

impl Docker {
    pub fn new(socket: impl Into<PathBuf>, labels: LabelTags) -> Self {
        Docker {
            socket: socket.into(),
            labels,
        }
    }
}

impl TagSource for Docker {
    fn name(&self) -> &'static str {
        "docker"
    }

    fn place(&self) -> String {
        self.socket.display().to_string()
    }

    fn run(self: Box<Self>, feed: Feed) -> Work {
        Box::pin(async move {
            let mut failures = 0;
            let mut known = HashMap::new();
            loop {
                let mut reported = false;
                let Err(end) = self.session(&feed, &mut known, &mut reported).await;
                let End::Failed(error) = end else {
                    return;
                };
                failures = if reported { 0 } else { failures + 1 };
                if !feed.report(SourceEvent::Failed(error)).await {
                    return;
                }
                tokio::time::sleep(backoff(failures)).await;
            }
        })
    }
}

enum End {
    Failed(SourceError),
    /// The agent no longer listens.
    Agent,
}

impl<E: Into<SourceError>> From<E> for End {
    fn from(error: E) -> Self {
        End::Failed(error.into())
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    id: String,
    name: String,
    #[serde(default)]
    image: String,
    config: Option<Config>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Config {
    image: Option<String>,
    env: Option<Vec<String>>,
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "Action", default)]
    action: String,
    #[serde(rename = "Actor")]
    actor: Option<Actor>,
    /// The field of older versions.
    #[serde(default)]
    id: String,
}

#[derive(Deserialize)]
struct Actor {
    #[serde(rename = "ID", default)]
    id: String,
}

impl Docker {
    /// From connecting to the first error.
    async fn session(
        &self,
        feed: &Feed,
        known: &mut HashMap<String, Description>,
        reported: &mut bool,
    ) -> Result<std::convert::Infallible, End> {
        let client = http::over_socket(&self.socket)?.build()?;
        // Before the list, so that no change in between is missed.
        let filters = "%7B%22type%22%3A%5B%22container%22%5D%7D";
        let mut events = get(&client, &format!("events?filters={filters}")).await?;
        if !events.status().is_success() {
            return Err(SourceError::EventStatus(events.status()).into());
        }
        self.list(&client, known).await?;
        report(feed, known, reported).await?;
        let mut line = Vec::new();
        let mut listed = tokio::time::Instant::now();
        loop {
            let wanted = async {
                tokio::time::sleep_until(listed + RELIST_MIN).await;
                feed.wanted().await;
            };
            tokio::select! {
                chunk = events.chunk() => {
                    let Some(chunk) = chunk? else {
                        return Err(SourceError::EventsEnded.into());
                    };
                    line.extend_from_slice(&chunk);
                    if self.events(&client, known, &mut line).await? {
                        report(feed, known, reported).await?;
                    }
                }
                () = wanted => {
                    self.list(&client, known).await?;
                    listed = tokio::time::Instant::now();
                    report(feed, known, reported).await?;
                }
                () = tokio::time::sleep_until(listed + RELIST) => {
                    self.list(&client, known).await?;
                    listed = tokio::time::Instant::now();
                    report(feed, known, reported).await?;
                }
            }
        }
    }

    /// Lists the containers and inspects the new ones.
    async fn list(
        &self,
        client: &Client,
        known: &mut HashMap<String, Description>,
    ) -> Result<(), SourceError> {
        let body = http::body(get(client, "containers/json?all=true").await?, BODY_MAX).await?;
        let listed: Vec<Listed> =
            serde_json::from_slice(&body).map_err(|error| SourceError::json("its list", error))?;
        known.retain(|id, _| listed.iter().any(|listed| listed.id == *id));
        for Listed { id } in listed {
            if !known.contains_key(&id)
                && let Some(description) = self.inspect(client, &id).await?
            {
                known.insert(id, description);
            }
        }
        Ok(())
    }

    /// Inspects one container; `None` if it was removed meanwhile.
    async fn inspect(&self, client: &Client, id: &str) -> Result<Option<Description>, SourceError> {
        if !crate::cgroup::is_container_id(id) {
            return Ok(None);
        }
        let response = get(client, &format!("containers/{id}/json")).await?;
        if response.status() == reqwest::StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let body = http::body(response, BODY_MAX).await?;
        let what = || format!("its description of container {id}");
        self.described(&body)
            .map(Some)
            .map_err(|error| SourceError::json(what(), error))
    }

    /// Removes complete lines from `buffer`. Returns true if one of them changed something.
    async fn events(
        &self,
        client: &Client,
        known: &mut HashMap<String, Description>,
        buffer: &mut Vec<u8>,
    ) -> Result<bool, SourceError> {
        let mut changed = false;
        // Podman ends an event with a newline, Docker does not. The parser finds the ends.
        let mut stream = serde_json::Deserializer::from_slice(buffer).into_iter::<Event>();
        let mut events = Vec::new();
        loop {
            match stream.next() {
                Some(Ok(event)) => events.push(event),
                Some(Err(error)) if error.is_eof() => break,
                Some(Err(error)) => return Err(SourceError::json("an event", error)),
                None => break,
            }
        }
        let taken = stream.byte_offset();
        buffer.drain(..taken);
        if buffer.len() > EVENT_BYTES_MAX {
            return Err(SourceError::EventTooLong);
        }
        for event in events {
            let id = event.actor.map_or(event.id, |actor| actor.id);
            match event.action.as_str() {
                "create" | "start" | "restart" | "rename" | "update" | "init" => {
                    if let Some(description) = self.inspect(client, &id).await? {
                        known.insert(id, description);
                        changed = true;
                    }
                }
                "destroy" | "remove" => changed |= known.remove(&id).is_some(),
                _ => {}
            }
        }
        Ok(changed)
    }

    /// The description of one container.
    pub(crate) fn described(&self, inspected: &[u8]) -> serde_json::Result<Description> {
        serde_json::from_slice(inspected).map(|inspected| self.describe(inspected))
    }

    fn describe(&self, inspected: Inspected) -> Description {
        let config = inspected.config.unwrap_or_default();
        let (labels, env) = (config.labels.unwrap_or_default(), config.env.unwrap_or_default());
        let label = |name: &str| labels.get(name).map(String::as_str);
        let variable = |name: &str| {
            env.iter()
                .filter_map(|pair| pair.split_once('='))
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value)
        };
        let mut tags = TagSet::default();
        let name = config.image.as_deref().unwrap_or(&inspected.image);
        add_image(&mut tags, name);
        if split_image(name).is_some() {
            tags.add(Cardinality::Low, "docker_image", name);
        }
        for (tag, label_name, variable_name) in [
            ("env", "com.datadoghq.tags.env", "DD_ENV"),
            ("service", "com.datadoghq.tags.service", "DD_SERVICE"),
            ("version", "com.datadoghq.tags.version", "DD_VERSION"),
        ] {
            let value = label(label_name).or_else(|| variable(variable_name));
            tags.add(Cardinality::Low, tag, value.unwrap_or_default());
        }
        for (tag, label_name) in [
            ("swarm_service", "com.docker.swarm.service.name"),
            ("swarm_namespace", "com.docker.stack.namespace"),
            ("git.commit.sha", "org.opencontainers.image.revision"),
            ("git.repository_url", "org.opencontainers.image.source"),
        ] {
            tags.add(Cardinality::Low, tag, label(label_name).unwrap_or_default());
        }
        add_labels(&mut tags, &self.labels, label);
        let container_name = inspected.name.trim_start_matches('/');
        tags.add(Cardinality::High, "container_name", container_name);
        tags.add(Cardinality::High, "container_id", &inspected.id);
        Description {
            entity: Entity::Container(inspected.id.into()),
            tags,
            place: None,
        }
    }
}

async fn report(feed: &Feed, known: &HashMap<String, Description>, reported: &mut bool) -> Result<(), End> {
    *reported = true;
    let event = SourceEvent::Report(known.values().cloned().collect());
    if feed.report(event).await {
        Ok(())
    } else {
        Err(End::Agent)
    }
}

async fn get(client: &Client, path: &str) -> Result<Response, SourceError> {
    let answer = client.get(format!("http://docker/{path}")).send();
    match tokio::time::timeout(PATIENCE, answer).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(SourceError::NoAnswer),
    }
}
