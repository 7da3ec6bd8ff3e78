//! A real containerd.

use std::process::{Command, Stdio};

use crate::origin::agent::{Agent, Server, has, texts, until};

#[test]
fn containers_of_every_namespace_are_known() {
    if !has("containerd") || !has("ctr") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let socket = path("c.sock");
    // Without the plugins that want what a test has no business with.
    let config = "version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\", \"io.containerd.internal.v1.opt\"]\n";
    std::fs::write(path("config.toml"), config).unwrap();
    let server = Command::new("containerd")
        .args(["--config", &path("config.toml"), "--root", &path("root")])
        .args(["--state", &path("state"), "--address", &socket])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut server = Server(server.unwrap());
    let ctr = |arguments: &[&str]| {
        Command::new("ctr")
            .args(["--address", &socket])
            .args(arguments)
            .output()
            .unwrap()
    };
    let mut ended = None;
    until("containerd answers", || {
        ended = server.0.try_wait().unwrap();
        ended.is_some() || ctr(&["version"]).status.success()
    });
    if let Some(status) = ended {
        println!("skipped: containerd does not run here: {status}");
        return;
    }
    let create = |namespace: &str, labels: &[&str], id: &str| {
        let root = directory.path().join("empty");
        std::fs::create_dir_all(&root).unwrap();
        let mut arguments = vec!["--namespace", namespace, "containers", "create", "--rootfs"];
        for label in labels {
            arguments.extend(["--label", label]);
        }
        arguments.extend([root.to_str().unwrap(), id, "/nothing"]);
        let output = ctr(&arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{error}");
    };
    let labels = [
        "io.kubernetes.pod.name=cart-0",
        "io.kubernetes.pod.namespace=shop",
        "io.kubernetes.pod.uid=uid-1",
        "io.kubernetes.container.name=main",
    ];
    create("k8s.io", &labels, "in-pod");
    create("default", &["nerdctl/name=plain1"], "plain");
    let agent = Agent::start(&[
        "--origin-client",
        "--origin-unified",
        "--tag-cardinality=high",
        "--origin-containerd",
        &socket,
    ]);
    agent.wait_for_source("containerd", "entities", 2);
    agent.send("a:1|c|c:ci-in-pod|card:orch");
    agent.send("b:1|c|c:ci-plain");
    agent.send("c:1|c|e:it-false,cn-main,pu-uid-1|card:low");
    create("default", &["nerdctl/name=late"], "latecomer");
    // The look-up came before the container was reported, so weir looks again.
    agent.send("d:1|c|c:ci-latecomer");
    agent.wait_for_source("containerd", "entities", 3);
    assert_eq!(
        texts(&agent.points()),
        [
            "a kube_container_name:main,kube_namespace:shop,pod_name:cart-0",
            "b container_id:plain,container_name:plain1",
            "c kube_container_name:main,kube_namespace:shop",
            "d container_id:latecomer,container_name:late",
        ]
    );
}
