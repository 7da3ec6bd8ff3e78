//! Origin detection put together from the configuration.

use std::sync::Arc;

use weir_ingest::{Command, WorkerHandle};
use weir_origin::sources::{
    Containerd, Docker, Environment, File, Kubelet, KubeletSettings, LabelTags, PodInfo, TagSource,
};
use weir_origin::{AnswerTo, Cardinality, Origins, Policy, Resolver, Settings};

use crate::config::{self, Config};
use crate::failure::Failure;

/// The resolver that the configuration asks for; `None` when senders are not told apart.
pub fn resolver(config: &Config) -> Option<Resolver> {
    let origin = &config.origin;
    if !origin.is_on() {
        return None;
    }
    let cardinality = match origin.cardinality {
        config::Cardinality::None => Cardinality::None,
        config::Cardinality::Low => Cardinality::Low,
        config::Cardinality::Orchestrator => Cardinality::Orchestrator,
        config::Cardinality::High => Cardinality::High,
    };
    let settings = Settings {
        policy: Policy {
            unified: origin.unified,
            optout: origin.optout,
            entity_id_precedence: origin.entity_id_precedence,
            cardinality,
        },
        proc_root: origin.proc_root.clone(),
        cgroup_root: origin.cgroup_root.clone(),
        allowed: config.listeners.allowed_origins.clone(),
    };
    Some(Resolver::new(settings, sources(&origin.sources)))
}

fn sources(settings: &config::OriginSources) -> Vec<Box<dyn TagSource>> {
    let container_labels: LabelTags = settings.container_labels.clone().into();
    let pod_labels: LabelTags = settings.pod_labels.clone().into();
    let mut sources: Vec<Box<dyn TagSource>> = Vec::new();
    for socket in &settings.docker {
        sources.push(Box::new(Docker::new(socket, container_labels.clone())));
    }
    for socket in &settings.containerd {
        sources.push(Box::new(Containerd::new(socket, container_labels.clone())));
    }
    if let Some(kubelet) = &settings.kubelet {
        sources.push(Box::new(Kubelet::new(KubeletSettings {
            url: kubelet.url.clone(),
            token_file: kubelet.token_file.clone(),
            ca_file: kubelet.ca_file.clone(),
            identity: kubelet.identity.clone(),
            verify: kubelet.verify,
            pod_labels: pod_labels.clone(),
        })));
    }
    if let Some(directory) = &settings.podinfo {
        sources.push(Box::new(PodInfo::new(directory, pod_labels)));
    }
    if let Some(path) = &settings.file {
        sources.push(Box::new(File::new(path)));
    }
    if !settings.environment.is_empty() {
        sources.push(Box::new(Environment::new(Arc::from(
            settings.environment.clone(),
        ))));
    }
    sources
}

/// Starts it, with its sources on `runtime`, once the workers that it answers are there.
pub fn start(
    resolver: Resolver,
    workers: &[WorkerHandle],
    runtime: &tokio::runtime::Handle,
) -> Result<Origins, Failure> {
    let answers: Vec<AnswerTo> = workers
        .iter()
        .map(|worker| {
            let commands = worker.commands();
            let answer: AnswerTo = Box::new(move |answers| commands.send(Command::Origins(answers)));
            answer
        })
        .collect();
    resolver
        .start(answers, runtime)
        .map_err(|error| Failure::runtime(format!("origin detection cannot be started: {error}")))
}
