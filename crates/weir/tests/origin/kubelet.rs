//! A server that speaks as a kubelet does: TLS of a private authority, a token that changes, a list of pods.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustls::pki_types::CertificateDer;
use rustls::server::WebPkiClientVerifier;

use crate::origin::agent::{Agent, texts, until};

struct Kubelet {
    port: u16,
    /// Status, body, and the authorisation of the last request.
    state: Arc<Mutex<(u16, String, String)>>,
}

impl Kubelet {
    /// Serves until the test ends, with a certificate for 127.0.0.1 whose authority goes into `ca`.
    fn start(ca: &Path, body: &str) -> Kubelet {
        Kubelet::start_for(ca, body, None)
    }

    /// With `clients`, for those alone that show this certificate.
    fn start_for(ca: &Path, body: &str, clients: Option<CertificateDer<'static>>) -> Kubelet {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        std::fs::write(ca, made.cert.pem()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(clients) => {
                let mut roots = rustls::RootCertStore::empty();
                roots.add(clients).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let config = builder
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(Mutex::new((200, body.to_owned(), String::new())));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let connection = rustls::ServerConnection::new(config.clone()).unwrap();
                let mut stream = rustls::StreamOwned::new(connection, stream);
                let mut request = Vec::new();
                let mut buffer = [0; 4096];
                while !request.windows(4).any(|window| window == b"\r\n\r\n") {
                    match stream.read(&mut buffer) {
                        Ok(0) | Err(_) => break,
                        Ok(read) => request.extend_from_slice(&buffer[..read]),
                    }
                }
                let request = String::from_utf8_lossy(&request).into_owned();
                let (status, body) = {
                    let mut state = shared.lock().unwrap();
                    let authorisation = request.lines().find_map(|line| {
                        let (name, value) = line.split_once(':')?;
                        name.eq_ignore_ascii_case("authorization")
                            .then(|| value.trim().to_owned())
                    });
                    state.2 = authorisation.unwrap_or_default();
                    (state.0, state.1.clone())
                };
                let is_pods = request.starts_with("GET /pods ");
                let status = if is_pods { status } else { 404 };
                let _ = write!(
                    stream,
                    "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                );
                let _ = stream.flush();
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        });
        Kubelet { port, state }
    }

    fn set(&self, status: u16, body: &str) {
        let mut state = self.state.lock().unwrap();
        (state.0, state.1) = (status, body.to_owned());
    }
}

const PODS: &str = r#"{"kind": "PodList", "items": [{
    "metadata": {
        "name": "cart-6d5f7c9f8b-abcde", "namespace": "shop", "uid": "uid-1",
        "labels": {"tags.datadoghq.com/env": "prod", "app.kubernetes.io/name": "cart", "team": "red"},
        "annotations": {"ad.datadoghq.com/tags": "{\"tier\": [\"front\", \"paid\"]}"},
        "ownerReferences": [{"kind": "ReplicaSet", "name": "cart-6d5f7c9f8b", "apiVersion": "apps/v1"}]
    },
    "spec": {
        "containers": [{"name": "main", "image": "shop/cart:1.2", "env": [{"name": "DD_SERVICE", "value": "cart"}]}],
        "initContainers": [{"name": "main", "image": "shop/init:3"}]
    },
    "status": {
        "phase": "Running", "qosClass": "Burstable",
        "containerStatuses": [{"name": "main", "containerID": "containerd://c-main", "image": "sha256:ab"}],
        "initContainerStatuses": [{"name": "main", "containerID": "containerd://c-init"}]
    }
}]}"#;

fn start(kubelet: &Kubelet, directory: &Path, extra: &[&str]) -> Agent {
    let url = format!("https://127.0.0.1:{}", kubelet.port);
    let path = |name: &str| directory.join(name).to_str().unwrap().to_owned();
    let (token, ca) = (path("token"), path("ca.pem"));
    let mut arguments = vec![
        "--origin-client",
        "--origin-unified",
        "--origin-kubelet",
        &url,
        "--origin-kubelet-token",
        &token,
        "--origin-kubelet-ca",
        &ca,
    ];
    arguments.extend(extra);
    Agent::start(&arguments)
}

#[test]
fn pods_have_the_usual_tags_and_keep_them_when_the_kubelet_refuses_or_cannot_be_trusted() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, "secret-1\n").unwrap();
    let kubelet = Kubelet::start(&directory.path().join("ca.pem"), PODS);
    let agent = start(
        &kubelet,
        directory.path(),
        &["--pod-labels-as-tags={team: squad}"],
    );
    agent.wait_for_source("kubelet", "entities", 3);
    assert_eq!(kubelet.state.lock().unwrap().2, "Bearer secret-1");
    agent.send_tagged(&[
        "a:1|c|#dd.internal.entity_id:uid-1",
        "b:1|c|e:it-false,cn-main,pu-uid-1",
        "c:1|c|e:it-true,cn-main,pu-uid-1|card:high",
    ]);
    kubelet.set(403, "no");
    std::fs::write(&token, "secret-2").unwrap();
    // Something unknown makes it look again.
    agent.send_tagged(&["x:1|c|c:ci-unknown"]);
    agent.wait_for_source("kubelet", "failures", 1);
    assert_eq!(kubelet.state.lock().unwrap().2, "Bearer secret-2", "read again");
    let page = agent.ask(&["status"]);
    assert!(page.contains("403"), "{page}");
    assert!(!page.contains("secret"), "{page}");
    agent.send_tagged(&["d:1|c|#dd.internal.entity_id:uid-1|card:orch"]);
    let points = agent.points();
    let pod = "env:prod,kube_app_name:cart,kube_deployment:cart,kube_namespace:shop,kube_ownerref_kind:replicaset,\
               kube_qos:Burstable,kube_replica_set:cart-6d5f7c9f8b,pod_phase:running,squad:red,tier:front,tier:paid";
    let expected: Vec<Vec<String>> = [
        pod.to_owned(),
        format!("{pod},image_name:shop/cart,image_tag:1.2,kube_container_name:main,service:cart,short_image:cart"),
        format!(
            "{pod},container_id:c-init,display_container_name:main_cart-6d5f7c9f8b-abcde,image_name:shop/init,image_tag:3,\
             kube_container_name:main,kube_ownerref_name:cart-6d5f7c9f8b,pod_name:cart-6d5f7c9f8b-abcde,short_image:init"
        ),
    ]
    .iter()
    .map(|tags| {
        let mut tags: Vec<String> = tags.split(',').map(str::to_owned).collect();
        tags.sort();
        tags
    })
    .collect();
    let tags = |(_, tags, _): &(String, Vec<String>, f64)| tags.clone();
    let found: Vec<Vec<String>> = points.iter().map(tags).collect();
    assert_eq!(found[..3], expected);
    assert!(
        texts(&points)[3].contains("pod_name:cart-6d5f7c9f8b-abcde"),
        "{points:?}"
    );

    // The authority of another kubelet.
    Kubelet::start(&directory.path().join("other.pem"), PODS);
    std::fs::copy(
        directory.path().join("other.pem"),
        directory.path().join("ca.pem"),
    )
    .unwrap();
    kubelet.set(200, PODS);
    let agent = start(&kubelet, directory.path(), &[]);
    agent.wait_for_source("kubelet", "failures", 1);
    until("the certificate is named", || {
        agent.ask(&["status"]).to_lowercase().contains("certificate")
    });
    drop(agent);
    let agent = start(&kubelet, directory.path(), &["--origin-kubelet-tls-verify=false"]);
    agent.wait_for_source("kubelet", "entities", 3);
}

#[test]
fn a_kubelet_that_knows_its_clients_by_certificates_is_shown_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let made = rcgen::generate_simple_self_signed(vec!["weir".to_owned()]).unwrap();
    let clients = Some(made.cert.der().clone());
    std::fs::write(path("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let kubelet = Kubelet::start_for(&path("ca.pem"), PODS, clients);
    let (certificate, key) = (path("client.pem"), path("key.pem"));
    let arguments = [
        "--origin-kubelet-certificate",
        certificate.to_str().unwrap(),
        "--origin-kubelet-key",
        key.to_str().unwrap(),
    ];
    // It comes later than the agent, which names the file until then.
    let agent = start(&kubelet, directory.path(), &arguments);
    agent.wait_for_source("kubelet", "failures", 1);
    let page = agent.ask(&["status"]);
    assert!(page.contains("client.pem"), "{page}");
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    agent.wait_for_source("kubelet", "entities", 3);
    agent.send_tagged(&["a:1|c|#dd.internal.entity_id:uid-1|card:orch"]);
    assert!(texts(&agent.points())[0].contains("pod_name:cart-6d5f7c9f8b-abcde"));

    // Without one it is not answered.
    let agent = start(&kubelet, directory.path(), &[]);
    agent.wait_for_source("kubelet", "failures", 1);
    agent.points();
}
