//! Sets up origin detection from the configuration.

use std::collections::BTreeMap;

use weir_ingest::{Command, WorkerHandle};
use weir_origin::sources::{
    Containerd, Docker, Environment, File, Kubelet, KubeletSettings, LabelTags, PodInfo, TagSource,
};
use weir_origin::{AnswerTo, Cardinality, Origins, Policy, Resolver, Settings};

use weir_system::config::Config;
use weir_system::failure::Failure;

/// The configured resolver; `None` if senders are not distinguished.
pub fn resolver(config: &Config) -> Option<Resolver> {
    let origin = &config.origin;
    if !origin.is_on() {
        return None;
    }
    let cardinality = match origin.tag_cardinality {
        weir_config::Cardinality::None => Cardinality::None,
        weir_config::Cardinality::Low => Cardinality::Low,
        weir_config::Cardinality::Orchestrator => Cardinality::Orchestrator,
        weir_config::Cardinality::High => Cardinality::High,
    };
    let settings = Settings {
        policy: Policy {
            unified: origin.origin_unified,
            optout: origin.origin_optout,
            entity_id_precedence: origin.entity_id_precedence,
            cardinality,
        },
        proc_root: origin.proc_root.clone(),
        cgroup_root: origin.cgroup_root.clone(),
        allowed: config.listeners.allowed_origins(),
    };
    Some(Resolver::new(settings, sources(origin)))
}

fn sources(origin: &weir_config::Origin) -> Vec<Box<dyn TagSource>> {
    let container_labels = pairs(&origin.container_labels_as_tags);
    let mut sources: Vec<Box<dyn TagSource>> = Vec::new();
    for socket in &origin.sources.origin_docker {
        sources.push(Box::new(Docker::new(&**socket, container_labels.clone())));
    }
    for socket in &origin.sources.origin_containerd {
        sources.push(Box::new(Containerd::new(&**socket, container_labels.clone())));
    }
    if !origin.sources.origin_kubelet.is_empty() {
        sources.push(Box::new(Kubelet::new(kubelet(origin))));
    }
    if let Some(directory) = &origin.sources.origin_podinfo {
        sources.push(Box::new(PodInfo::new(
            directory,
            pairs(&origin.pod_labels_as_tags),
        )));
    }
    if let Some(path) = &origin.sources.origin_file {
        sources.push(Box::new(File::new(path)));
    }
    if !origin.sources.origin_environment.is_empty() {
        sources.push(Box::new(Environment::new(pairs(
            &origin.sources.origin_environment,
        ))));
    }
    sources
}

fn kubelet(origin: &weir_config::Origin) -> KubeletSettings {
    let identity = origin.kubelet_identity();
    KubeletSettings {
        url: origin.sources.origin_kubelet.clone(),
        token_file: origin.sources.origin_kubelet_token.clone(),
        ca_file: origin.sources.origin_kubelet_ca.clone(),
        identity: identity.map(|(certificate, key)| (certificate.to_owned(), key.to_owned())),
        verify: origin.sources.origin_kubelet_tls_verify,
        pod_labels: pairs(&origin.pod_labels_as_tags),
    }
}

fn pairs(map: &BTreeMap<String, String>) -> LabelTags {
    map.clone().into_iter().collect()
}

/// Starts it, with its sources on `runtime`, after its workers exist.
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
