//! containerd's API: gRPC over its socket, with one call per namespace. The messages are encoded here by field number.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use prost::Message;
use reqwest::Client;

use super::http::{self, PATIENCE};
use super::{
    CallError, Feed, LabelTags, PollInterval, PollingSource, SourceError, TagSource, Work, add_image,
    add_labels, poll_repeatedly,
};
use crate::entity::{Cardinality, Entity, TagSet};
use crate::store::{ContainerPlace, Description};

const BODY_MAX: usize = 64 * 1024 * 1024;

/// Further namespaces are ignored.
const NAMESPACES_MAX: usize = 32;

#[derive(Clone, PartialEq, Message)]
struct NamespaceList {
    #[prost(message, repeated, tag = "1")]
    namespaces: Vec<Namespace>,
}

#[derive(Clone, PartialEq, Message)]
struct Namespace {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerList {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<Container>,
}

#[derive(Clone, PartialEq, Message)]
struct Container {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(map = "string, string", tag = "2")]
    labels: HashMap<String, String>,
    #[prost(string, tag = "3")]
    image: String,
}

/// Reads the containers of one containerd.
pub struct Containerd {
    socket: PathBuf,
    labels: LabelTags,
    client: Option<Client>,
}

impl Containerd {
    pub fn new(socket: impl Into<PathBuf>, labels: LabelTags) -> Self {
        Containerd {
            socket: socket.into(),
            labels,
            client: None,
        }
    }

    async fn call<R: Message + Default>(
        &self,
        client: &Client,
        method: &str,
        namespace: Option<&str>,
    ) -> Result<R, SourceError> {
        let mut request = client
            .post(format!("http://containerd/{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            // An empty message: uncompressed, length zero.
            .body(vec![0u8; 5]);
        if let Some(namespace) = namespace {
            request = request.header("containerd-namespace", namespace);
        }
        let answer = tokio::time::timeout(PATIENCE, request.send())
            .await
            .map_err(|_| SourceError::NoAnswer)??;
        let failed = |error| SourceError::Call {
            method: method.to_owned(),
            error,
        };
        // An error has no body; its status is in the headers.
        if let Some(status) = answer.headers().get("grpc-status")
            && status != "0"
        {
            let message = answer.headers().get("grpc-message");
            let message = message.and_then(|text| text.to_str().ok()).unwrap_or_default();
            return Err(failed(CallError::Status {
                status: status.clone(),
                message: message.to_owned(),
            }));
        }
        let body = http::body(answer, BODY_MAX).await?;
        let Some((head, message)) = body.split_at_checked(5) else {
            return Err(failed(CallError::Empty));
        };
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if head[0] != 0 || message.len() < length {
            return Err(failed(CallError::Cut));
        }
        R::decode(&message[..length]).map_err(|error| failed(error.into()))
    }

    fn describe(&self, container: Container) -> Description {
        let Container { id, labels, image } = container;
        let label = |name: &str| labels.get(name).map_or("", String::as_str);
        let mut tags = TagSet::default();
        add_image(&mut tags, &image);
        for (tag, level, name) in [
            ("kube_namespace", Cardinality::Low, "io.kubernetes.pod.namespace"),
            (
                "kube_container_name",
                Cardinality::Low,
                "io.kubernetes.container.name",
            ),
            ("pod_name", Cardinality::Orchestrator, "io.kubernetes.pod.name"),
            ("container_name", Cardinality::High, "nerdctl/name"),
            ("env", Cardinality::Low, "com.datadoghq.tags.env"),
            ("service", Cardinality::Low, "com.datadoghq.tags.service"),
            ("version", Cardinality::Low, "com.datadoghq.tags.version"),
        ] {
            tags.add(level, tag, label(name));
        }
        add_labels(&mut tags, &self.labels, |name| {
            labels.get(name).map(String::as_str)
        });
        tags.add(Cardinality::High, "container_id", &id);
        let (pod, name) = (
            label("io.kubernetes.pod.uid"),
            label("io.kubernetes.container.name"),
        );
        let place = (!pod.is_empty() && !name.is_empty()).then(|| ContainerPlace {
            pod: pod.into(),
            name: name.into(),
            init: false,
        });
        Description {
            entity: Entity::Container(id.into()),
            tags,
            place,
        }
    }
}

impl TagSource for Containerd {
    fn name(&self) -> &'static str {
        "containerd"
    }

    fn place(&self) -> String {
        self.socket.display().to_string()
    }

    fn run(self: Box<Self>, feed: Feed) -> Work {
        let rhythm = PollInterval {
            every: Duration::from_secs(15),
            not_before: Duration::from_millis(500),
        };
        Box::pin(poll_repeatedly(*self, rhythm, feed))
    }
}

impl PollingSource for Containerd {
    async fn poll(&mut self) -> Result<Vec<Description>, SourceError> {
        let client = match &self.client {
            Some(client) => client.clone(),
            None => {
                let client = http::over_socket(&self.socket)?.http2_prior_knowledge().build()?;
                self.client.insert(client).clone()
            }
        };
        let list: NamespaceList = self
            .call(&client, "containerd.services.namespaces.v1.Namespaces/List", None)
            .await?;
        let mut known = Vec::new();
        for namespace in list.namespaces.iter().take(NAMESPACES_MAX) {
            let method = "containerd.services.containers.v1.Containers/List";
            let list: ContainerList = self.call(&client, method, Some(&namespace.name)).await?;
            known.extend(
                list.containers
                    .into_iter()
                    .map(|container| self.describe(container)),
            );
        }
        Ok(known)
    }
}
