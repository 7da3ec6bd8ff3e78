//! A real Podman: its Docker-compatible API, and a container of its own that sends.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::origin::agent::{Agent, Server, has, texts, until};

/// The name of messages that only ask for the tags of their origin, before one comes whose tags matter.
const ASKS: &str = "asks";

/// Points without those of such messages.
fn asserted(agent: Agent) -> Vec<String> {
    let mut points = agent.points();
    points.retain(|(name, ..)| name != ASKS);
    texts(&points)
}

/// Podman with a storage of its own; everything of it goes when dropped.
struct Podman {
    directory: tempfile::TempDir,
    _server: Server,
}

impl Podman {
    fn start() -> Option<Podman> {
        if !has("podman") {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("podman.sock");
        let server = Self::command(directory.path())
            .args(["system", "service", "--time=0"])
            .arg(format!("unix://{}", socket.display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut server = Server(server);
        let mut ended = None;
        until("podman listens", || {
            ended = server.0.try_wait().unwrap();
            socket.exists() || ended.is_some()
        });
        if let Some(status) = ended {
            println!("skipped: podman system service does not run here: {status}");
            return None;
        }
        Some(Podman {
            directory,
            _server: server,
        })
    }

    fn command(directory: &Path) -> Command {
        let mut command = Command::new("podman");
        command
            .args([
                "--storage-driver=vfs",
                "--cgroup-manager=cgroupfs",
                "--runtime=runc",
                "--events-backend=file",
            ])
            .arg("--root")
            .arg(directory.join("root"))
            .arg("--runroot")
            .arg(directory.join("run"))
            .arg("--tmpdir")
            .arg(directory.join("tmp"));
        command
    }

    /// Runs podman; `Err` with what it said when it failed.
    fn run(&self, arguments: &[&str]) -> Result<String, String> {
        let output = Self::command(self.directory.path())
            .args(arguments)
            .output()
            .unwrap();
        if output.status.success() {
            Ok(String::from_utf8(output.stdout).unwrap().trim().to_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("podman.sock")
    }

    /// An image of nothing but an empty directory.
    fn image(&self, name: &str) {
        let tar = self.directory.path().join("empty.tar");
        // Two blocks of zeros are an archive with nothing in it.
        std::fs::write(&tar, [0; 1024]).unwrap();
        self.run(&["import", tar.to_str().unwrap(), name]).unwrap();
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let _ = self.run(&["rm", "--all", "--force", "--time=0"]);
    }
}

#[test]
fn containers_are_known_from_the_start_and_when_they_start_later() {
    let Some(podman) = Podman::start() else {
        return;
    };
    podman.image("localhost:5000/shop/cart:1.2");
    let create = |name: &str, extra: &[&str]| {
        let mut arguments = vec!["create", "--name", name, "--ulimit=host"];
        arguments.extend(extra);
        arguments.extend(["localhost:5000/shop/cart:1.2", "/nothing"]);
        podman.run(&arguments).unwrap()
    };
    let first = create(
        "cart1",
        &[
            "--label=com.datadoghq.tags.env=prod",
            "--label=team=red",
            "--env=DD_SERVICE=cart",
        ],
    );
    let socket = podman.socket();
    let agent = Agent::start(&[
        "--origin-client",
        "--tag-cardinality=high",
        "--container-labels-as-tags={team: squad}",
        "--origin-docker",
        socket.to_str().unwrap(),
    ]);
    agent.wait_for_source("docker", "entities", 1);
    agent.send(&format!("{ASKS}:1|c|c:ci-{first}"));
    agent.wait_for_tags(1);
    agent.send(&format!("a:1|c|c:ci-{first}"));
    let second = create("cart2", &[]);
    agent.wait_for_source("docker", "entities", 2);
    agent.send(&format!("{ASKS}:1|c|c:ci-{second}|card:low"));
    agent.wait_for_tags(2);
    agent.send(&format!("b:1|c|c:ci-{second}|card:low"));
    // Removed is not forgotten at once.
    podman.run(&["rm", "cart2"]).unwrap();
    agent.wait_for_source("docker", "updates", 3);
    agent.send(&format!("c:1|c|c:ci-{second}|card:low"));
    agent.wait_for_accepted(5);
    let image = "docker_image:localhost:5000/shop/cart:1.2,env:prod,image_name:localhost:5000/shop/cart,image_tag:1.2,\
                 service:cart,short_image:cart,squad:red";
    let plain = "docker_image:localhost:5000/shop/cart:1.2,image_name:localhost:5000/shop/cart,image_tag:1.2,short_image:cart";
    assert_eq!(
        asserted(agent),
        [
            format!("a container_id:{first},container_name:cart1,{image}"),
            format!("b {plain}"),
            format!("c {plain}"),
        ]
    );
}

/// Files that a program needs to run elsewhere: itself and its libraries.
fn root_file_system(directory: &Path, program: &str) -> PathBuf {
    let root = directory.join("rootfs");
    for name in ["proc", "sys", "dev", "etc", "tmp", "run"] {
        std::fs::create_dir_all(root.join(name)).unwrap();
    }
    let copy = |from: &str| {
        let to = root.join(from.trim_start_matches('/'));
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(from, to).unwrap();
    };
    std::fs::copy(program, root.join("weir")).unwrap();
    let libraries = Command::new("ldd").arg(program).output().unwrap();
    for word in String::from_utf8(libraries.stdout).unwrap().split_whitespace() {
        if word.starts_with('/') {
            copy(word);
        }
    }
    root
}

#[test]
fn the_only_message_of_a_real_container_has_its_tags() {
    if !has("runc") || !has("ldd") {
        return;
    }
    let Some(podman) = Podman::start() else {
        return;
    };
    let socket = podman.socket();
    let agent = Agent::start(&[
        "--origin-detection",
        "--tag-cardinality=high",
        "--origin-docker",
        socket.to_str().unwrap(),
    ]);
    agent.wait_for_source("docker", "updates", 1);
    let root = root_file_system(podman.directory.path(), env!("CARGO_BIN_EXE_weir"));
    let mount = format!("{}:/socket", agent.socket().display());
    let id = podman
        .run(&[
            "create",
            "--name=shop1",
            "--network=none",
            "--ulimit=nofile=1024:1024",
            "--ulimit=nproc=1000:1000",
            "--log-driver=none",
            "--env=DD_VERSION=7",
            "--volume",
            &mount,
            "--rootfs",
            root.to_str().unwrap(),
            "/weir",
            "send",
            "--to=unixgram:///socket",
            "shop.orders:1|c|#k:v",
        ])
        .unwrap();
    // Podman describes a container only once it has started it, which may take longer than a message waits for its tags. Created
    // containers are described at once.
    agent.wait_for_source("docker", "entities", 1);
    if let Err(error) = podman.run(&["start", "shop1"]) {
        println!("skipped: containers cannot be started here: {error}");
        return;
    }
    until("the message came", || {
        let page = agent.ask(&["status", "--json"]);
        let status: serde_json::Value = serde_json::from_str(&page).unwrap();
        status["total"]["messages"]["accepted"] == 1
    });
    let origin = agent.origin();
    let points = texts(&agent.points());
    if origin["waited_in_vain"].as_u64() > Some(0) {
        println!("it was not looked up within a second, which is counted: {points:?}");
        assert_eq!(points, ["shop.orders k:v"]);
        return;
    }
    if origin["resolver"]["processes"]["process_gone"] == 1 {
        println!("the process had ended before it was looked up, which is counted: {points:?}");
        assert_eq!(points, ["shop.orders k:v"]);
        return;
    }
    assert_eq!(
        points,
        [format!(
            "shop.orders container_id:{id},container_name:shop1,k:v,version:7"
        )]
    );
}

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
    let origins = [
        "c:ci-in-pod|card:orch",
        "c:ci-plain",
        "e:it-false,cn-main,pu-uid-1|card:low",
    ];
    for origin in origins {
        agent.send(&format!("{ASKS}:1|c|{origin}"));
    }
    agent.wait_for_tags(3);
    for (name, origin) in ["a", "b", "c"].iter().zip(origins) {
        agent.send(&format!("{name}:1|c|{origin}"));
    }
    create("default", &["nerdctl/name=late"], "latecomer");
    // The look-up came before the container was reported, so weir looks again.
    agent.send(&format!("{ASKS}:1|c|c:ci-latecomer"));
    agent.wait_for_source("containerd", "entities", 3);
    agent.wait_for_tags(4);
    agent.send("d:1|c|c:ci-latecomer");
    // It does so at once: at its rhythm of 15 seconds alone, it would not get as far while the test waits.
    let updates = || {
        agent.origin()["resolver"]["sources"][0]["updates"]
            .as_u64()
            .unwrap()
    };
    let (before, mut unknown) = (updates(), 0);
    until("it looks again for unknown containers", || {
        unknown += 1;
        agent.send(&format!("{ASKS}:1|c|c:ci-nobody{unknown}"));
        updates() >= before + 10
    });
    assert_eq!(
        asserted(agent),
        [
            "a kube_container_name:main,kube_namespace:shop,pod_name:cart-0",
            "b container_id:plain,container_name:plain1",
            "c kube_container_name:main,kube_namespace:shop",
            "d container_id:latecomer,container_name:late",
        ]
    );
}
