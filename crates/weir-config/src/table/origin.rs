//! The sender of a message, and the sender's tags.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::setting::PathUse;
use crate::settings;
use crate::types::{Cardinality, SocketPath};

settings! {
    /// The sender of a message, and the sender's tags.
    pub struct Origin {
        origin_detection: bool = "false"
            .effect("Learn from the kernel which process sent a packet on a Unix socket.")
            .change("to know which container sent a metric.")
            .also(&["DD_DOGSTATSD_ORIGIN_DETECTION"]);
        origin_client: bool = "false"
            .effect("Read the origin fields of messages (`c:`, `e:`, `card:`); off, they are ignored.")
            .change("to know which container sent a metric.")
            .also(&["DD_DOGSTATSD_ORIGIN_DETECTION_CLIENT"]);
        origin_unified: bool = "false"
            .effect("Use the first known origin, the message's before the socket's, instead of combining them.")
            .change("if your cluster already uses this mode.")
            .also(&["DD_ORIGIN_DETECTION_UNIFIED"]);
        origin_optout: bool = "true"
            .effect("A message with cardinality `none` gets no origin tags.")
            .change("if you want origin tags even if clients decline them.")
            .also(&["DD_DOGSTATSD_ORIGIN_OPTOUT_ENABLED", "DD_DOGSTATSD_ORIGIN_OPT_OUT_ENABLED"]);
        entity_id_precedence: bool = "false"
            .effect("An entity id in the message replaces the sender's origin instead of adding to it.")
            .change("if your messages are relayed by another container.")
            .also(&["DD_DOGSTATSD_ENTITY_ID_PRECEDENCE"]);
        tag_cardinality: Cardinality = "low"
            .effect("The cardinality of origin tags for messages that do not name one.")
            .change("if you want pod or container names on every metric.")
            .also(&["DD_DOGSTATSD_TAG_CARDINALITY"]);
        sources: OriginSources = "{}".flat();
        container_labels_as_tags: BTreeMap<String, String> = "{}"
            .effect("Labels of containers, each with the tag it becomes; a `+` before the tag: only at cardinality `high`.")
            .zero("Empty: none but the usual ones.")
            .change("to set labels of your own.")
            .also(&["DD_CONTAINER_LABELS_AS_TAGS", "DD_DOCKER_LABELS_AS_TAGS"]);
        pod_labels_as_tags: BTreeMap<String, String> = "{}"
            .effect("Labels of pods, each with the tag it becomes; a `+` before the tag: only at cardinality `high`.")
            .zero("Empty: none but the usual ones.")
            .change("to set labels of your own.")
            .also(&["DD_KUBERNETES_POD_LABELS_AS_TAGS"]);
        proc_root: PathBuf = "/proc"
            .path(PathUse::ReadBeneath)
            .effect("The mount point of the host's `/proc`.")
            .change("if you run weir in a container and mount the host's elsewhere.")
            .also(&["DD_CONTAINER_PROC_ROOT"]);
        cgroup_root: PathBuf = "/sys/fs/cgroup"
            .path(PathUse::ReadBeneath)
            .effect("The mount point of the host's cgroups.")
            .change("if you run weir in a container and mount the host's elsewhere.")
            .also(&["DD_CONTAINER_CGROUP_ROOT"]);
    }
}

settings! {
    /// Where the tags of senders come from.
    pub struct OriginSources {
        origin_docker: Vec<SocketPath> = "[/var/run/docker.sock, /run/podman/podman.sock]"
            .path(PathUse::Connect)
            .effect("Sockets of Docker or Podman to ask for containers and their tags, if origin detection is on. Sockets of the default that do not exist at the start are ignored.")
            .zero("An empty list: none.")
            .change("if your runtime listens elsewhere.");
        origin_containerd: Vec<SocketPath> = "[/run/containerd/containerd.sock]"
            .path(PathUse::Connect)
            .effect("Sockets of containerd to ask for containers and their tags, like `origin_docker`.")
            .zero("An empty list: none.")
            .change("if your runtime listens elsewhere.")
            .also(&["DD_CRI_SOCKET_PATH"]);
        origin_kubelet: String = "''"
            .effect("Kubelet to ask for pods and their tags: a host, for https and port 10250, or a URL.")
            .zero("Empty: none.")
            .change("on Kubernetes; `status.hostIP` of the downward API is the host.")
            .also(&["DD_KUBERNETES_KUBELET_HOST"]);
        origin_kubelet_token: PathBuf = "/var/run/secrets/kubernetes.io/serviceaccount/token"
            .path(PathUse::Read)
            .effect("File with the token for the kubelet, read before each request.")
            .zero("Empty, or no such file: no token.")
            .change("if you mount it elsewhere.")
            .also(&["DD_KUBELET_AUTH_TOKEN_PATH"]);
        origin_kubelet_ca: PathBuf = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
            .path(PathUse::Read)
            .effect("PEM file with the certificates of the authority that signed the kubelet's.")
            .zero("Empty or a missing file: the authorities of the system.")
            .change("if you mount it elsewhere.")
            .also(&["DD_KUBELET_CLIENT_CA"]);
        origin_kubelet_certificate: Option<PathBuf> = "''"
            .path(PathUse::Read)
            .effect("PEM file with a client certificate for the kubelet, if it authenticates clients by certificates. Read again when a connection fails.")
            .zero("Empty: none.")
            .change("if your kubelets accept no tokens.")
            .also(&["DD_KUBELET_CLIENT_CRT"]);
        origin_kubelet_key: Option<PathBuf> = "''"
            .path(PathUse::Read)
            .effect("PEM file with the private key of `origin_kubelet_certificate`.")
            .zero("Empty: none, and no certificate either.")
            .change("if your kubelets accept no tokens.")
            .also(&["DD_KUBELET_CLIENT_KEY"]);
        origin_kubelet_tls_verify: bool = "true"
            .effect("Verify that the kubelet's authority signed its certificate for its address.")
            .change("if your kubelets sign their own certificates.")
            .also(&["DD_KUBELET_TLS_VERIFY"]);
        origin_podinfo: Option<PathBuf> = "''"
            .path(PathUse::ReadBeneath)
            .effect("Directory of a downward API volume with any of the files `labels`, `name`, `namespace`, `uid`. Its tags go to every sender without a known origin.")
            .zero("Empty: none.")
            .change("if weir runs inside the pod whose metrics it receives.");
        origin_file: Option<PathBuf> = "''"
            .path(PathUse::Read)
            .effect("JSON file with the tags of containers and pods (docs/origin.md), read again when it changes.")
            .zero("Empty: none.")
            .change("if your containers are in no other source.");
        origin_environment: BTreeMap<String, String> = "{}"
            .effect("Variables of weir's environment, each with the tag it becomes, as in `POD_NAME: pod_name`; a `+` before the tag: only at cardinality `high`. The tags go to every sender without a known origin.")
            .zero("Empty: none.")
            .change("if weir runs inside the pod or task whose metrics it receives.");
    }
}
