//! The kubelet's list of the pods on its node.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Client;
use serde::Deserialize;

use super::http::{self, Identity, PATIENCE, Roots};
use super::{
    Feed, FileError, LabelTags, PollInterval, PollingSource, SourceError, TagSource, Work, add_image,
    add_labels, poll_repeatedly, split_image,
};
use crate::entity::{Cardinality, Entity, TagSet};
use crate::store::{ContainerPlace, Description};

const BODY_MAX: usize = 128 * 1024 * 1024;

/// No token is longer.
const TOKEN_BYTES_MAX: usize = 64 * 1024;

#[derive(Clone, Debug)]
pub struct KubeletSettings {
    /// For example `https://10.0.0.1:10250`.
    pub url: String,
    pub token_file: PathBuf,
    pub ca_file: PathBuf,
    /// Client certificate and key.
    pub identity: Option<(PathBuf, PathBuf)>,
    pub verify: bool,
    pub pod_labels: LabelTags,
}

/// Reads the pods of one node.
pub struct Kubelet {
    settings: KubeletSettings,
    client: Option<Client>,
}

impl Kubelet {
    pub fn new(settings: KubeletSettings) -> Self {
        Kubelet {
            settings,
            client: None,
        }
    }
}

impl TagSource for Kubelet {
    fn name(&self) -> &'static str {
        "kubelet"
    }

    fn place(&self) -> String {
        self.settings.url.clone()
    }

    fn run(self: Box<Self>, feed: Feed) -> Work {
        let rhythm = PollInterval {
            every: Duration::from_secs(15),
            not_before: Duration::from_secs(2),
        };
        Box::pin(poll_repeatedly(*self, rhythm, feed))
    }
}

impl PollingSource for Kubelet {
    async fn poll(&mut self) -> Result<Vec<Description>, SourceError> {
        let settings = &self.settings;
        let client = match &self.client {
            Some(client) => client,
            None => {
                let roots = if !settings.url.starts_with("https:") {
                    Roots::None
                } else if settings.verify {
                    Roots::File(&settings.ca_file)
                } else {
                    Roots::Anybody
                };
                let identity = settings.identity.as_ref();
                let identity = identity.map(|(certificate, key)| Identity { certificate, key });
                self.client.insert(http::over_network(roots, identity)?)
            }
        };
        let mut request = client.get(format!("{}/pods", settings.url.trim_end_matches('/')));
        // Read each time, because the token is rotated.
        match std::fs::read_to_string(&settings.token_file) {
            Ok(token) if token.len() <= TOKEN_BYTES_MAX => request = request.bearer_auth(token.trim()),
            Ok(_) => return Err(FileError::LongToken.of(&settings.token_file)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(FileError::Read(error).of(&settings.token_file)),
        }
        let answer = match tokio::time::timeout(PATIENCE, request.send()).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                // Certificates are rotated; the next attempt reads them again.
                self.client = None;
                return Err(error.into());
            }
            Err(_) => return Err(SourceError::NoAnswer),
        };
        let body = http::body(answer, BODY_MAX).await?;
        described(&body, &settings.pod_labels)
    }
}

#[derive(Deserialize)]
struct PodList {
    items: Option<Vec<Pod>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Pod {
    metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: String,
    namespace: String,
    uid: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    owner_references: Vec<Owner>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Owner {
    kind: String,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    containers: Vec<Container>,
    init_containers: Vec<Container>,
    priority_class_name: String,
    runtime_class_name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Container {
    name: String,
    image: String,
    env: Vec<Variable>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Variable {
    name: String,
    value: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    phase: String,
    qos_class: String,
    container_statuses: Vec<ContainerStatus>,
    init_container_statuses: Vec<ContainerStatus>,
    ephemeral_container_statuses: Vec<ContainerStatus>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ContainerStatus {
    name: String,
    #[serde(rename = "containerID")]
    container_id: String,
    image: String,
}

/// The descriptions in a list of pods.
pub fn described(list: &[u8], pod_labels: &LabelTags) -> Result<Vec<Description>, SourceError> {
    let list: PodList =
        serde_json::from_slice(list).map_err(|error| SourceError::json("its list of pods", error))?;
    let mut known = Vec::new();
    for pod in list.items.unwrap_or_default() {
        describe(pod, pod_labels, &mut known);
    }
    Ok(known)
}

fn describe(pod: Pod, pod_labels: &LabelTags, known: &mut Vec<Description>) {
    let Pod {
        metadata,
        spec,
        status,
    } = pod;
    if metadata.uid.is_empty() {
        return;
    }
    let uid: Arc<str> = metadata.uid.as_str().into();
    let mut pod_tags = TagSet::default();
    add_pod(&mut pod_tags, &metadata, &spec, &status);
    add_labels(&mut pod_tags, pod_labels, |name| {
        metadata.labels.get(name).map(String::as_str)
    });
    for (statuses, containers, init) in [
        (&status.container_statuses, &spec.containers, false),
        (&status.ephemeral_container_statuses, &spec.containers, false),
        (&status.init_container_statuses, &spec.init_containers, true),
    ] {
        for container in statuses {
            // For example `containerd://<id>`. Empty until the container has one.
            let Some((_, id)) = container.container_id.split_once("://") else {
                continue;
            };
            let spec = containers.iter().find(|spec| spec.name == container.name);
            let mut tags = pod_tags.clone();
            tags.add(Cardinality::Low, "kube_container_name", &container.name);
            let image_name = spec.map_or("", |spec| spec.image.as_str());
            let image_name = if split_image(image_name).is_some() {
                image_name
            } else {
                container.image.as_str()
            };
            add_image(&mut tags, image_name);
            if let Some(spec) = spec {
                for (tag, variable) in [
                    ("env", "DD_ENV"),
                    ("service", "DD_SERVICE"),
                    ("version", "DD_VERSION"),
                ] {
                    let found = spec.env.iter().find(|entry| entry.name == variable);
                    let has_label = metadata.labels.contains_key(&format!("tags.datadoghq.com/{tag}"));
                    if let (Some(entry), false) = (found, has_label) {
                        tags.add(Cardinality::Low, tag, &entry.value);
                    }
                }
            }
            for tag in ["env", "service", "version"] {
                let label = format!("tags.datadoghq.com/{}.{tag}", container.name);
                let value = metadata.labels.get(&label).map_or("", String::as_str);
                tags.add(Cardinality::Low, tag, value);
            }
            tags.add(Cardinality::High, "container_id", id);
            let display = format!("{}_{}", container.name, metadata.name);
            tags.add(Cardinality::High, "display_container_name", &display);
            known.push(Description {
                entity: Entity::Container(id.into()),
                tags,
                place: Some(ContainerPlace {
                    pod: uid.clone(),
                    name: container.name.as_str().into(),
                    init,
                }),
            });
        }
    }
    known.push(Description {
        entity: Entity::Pod(uid),
        tags: pod_tags,
        place: None,
    });
}

fn add_pod(tags: &mut TagSet, metadata: &Metadata, spec: &Spec, status: &Status) {
    use Cardinality::{Low, Orchestrator};
    tags.add(Orchestrator, "pod_name", &metadata.name);
    tags.add(Low, "kube_namespace", &metadata.namespace);
    tags.add(Low, "pod_phase", &status.phase.to_ascii_lowercase());
    tags.add(Low, "kube_qos", &status.qos_class);
    tags.add(Low, "kube_priority_class", &spec.priority_class_name);
    tags.add(Low, "kube_runtime_class", &spec.runtime_class_name);
    let label = |name: &str| metadata.labels.get(name).map_or("", String::as_str);
    for (tag, name) in [
        ("env", "tags.datadoghq.com/env"),
        ("service", "tags.datadoghq.com/service"),
        ("version", "tags.datadoghq.com/version"),
        ("kube_app_name", "app.kubernetes.io/name"),
        ("kube_app_instance", "app.kubernetes.io/instance"),
        ("kube_app_version", "app.kubernetes.io/version"),
        ("kube_app_component", "app.kubernetes.io/component"),
        ("kube_app_part_of", "app.kubernetes.io/part-of"),
        ("kube_app_managed_by", "app.kubernetes.io/managed-by"),
    ] {
        tags.add(Low, tag, label(name));
    }
    for owner in &metadata.owner_references {
        tags.add(Low, "kube_ownerref_kind", &owner.kind.to_ascii_lowercase());
        tags.add(Orchestrator, "kube_ownerref_name", &owner.name);
        match owner.kind.as_str() {
            "ReplicaSet" => {
                tags.add(Low, "kube_replica_set", &owner.name);
                tags.add(
                    Low,
                    "kube_deployment",
                    deployment_of(&owner.name).unwrap_or_default(),
                );
            }
            "DaemonSet" => tags.add(Low, "kube_daemon_set", &owner.name),
            "StatefulSet" => tags.add(Low, "kube_stateful_set", &owner.name),
            "ReplicationController" => tags.add(Low, "kube_replication_controller", &owner.name),
            "Job" => {
                tags.add(Orchestrator, "kube_job", &owner.name);
                tags.add(Low, "kube_cronjob", cron_job_of(&owner.name).unwrap_or_default());
            }
            _ => {}
        }
    }
    // JSON with a text or a list of texts for each key.
    if let Some(json) = metadata.annotations.get("ad.datadoghq.com/tags")
        && let Ok(serde_json::Value::Object(wanted)) = serde_json::from_str(json)
    {
        for (key, value) in &wanted {
            let values = match value {
                serde_json::Value::Array(values) => values.as_slice(),
                value => std::slice::from_ref(value),
            };
            for value in values.iter().filter_map(serde_json::Value::as_str) {
                tags.add(Low, key, value);
            }
        }
    }
}

/// The name of a replica set is the deployment's plus a hash without vowels.
fn deployment_of(replica_set: &str) -> Option<&str> {
    let (name, hash) = replica_set.rsplit_once('-')?;
    let is_hash = (5..=10).contains(&hash.len())
        && hash
            .bytes()
            .all(|byte| b"bcdfghjklmnpqrstvwxz2456789".contains(&byte));
    is_hash.then_some(name)
}

/// The name of a job is the cron job's plus a time.
fn cron_job_of(job: &str) -> Option<&str> {
    let (name, time) = job.rsplit_once('-')?;
    (time.len() >= 8 && time.bytes().all(|byte| byte.is_ascii_digit())).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_owners_are_parsed_as_controllers_write_them() {
        assert_eq!(deployment_of("cart-6d5f7c9f8b"), Some("cart"));
        assert_eq!(deployment_of("cart-api-6d5f7"), Some("cart-api"));
        assert_eq!(deployment_of("cart-blue"), None);
        assert_eq!(deployment_of("cart"), None);
        assert_eq!(cron_job_of("report-28912345"), Some("report"));
        assert_eq!(cron_job_of("report-1"), None);
    }
}
