//! The admin server on a real socket, with a source that is a double, and its profiles read by the real
//! `go tool pprof`.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use weir::admin::contexts::{ContextReport, MetricRow};
use weir::admin::explain::{ExplainRequest, Explanation};
use weir::admin::status::{Books, ListenerStatus, Status};
use weir::admin::{AdminServer, AdminSource, Answer, Exposition, ExpositionBody, ScrapeRequest};
use weir::signals::Reloaded;

struct Double {
    ready: Result<(), String>,
    scrape: bool,
}

impl AdminSource for Double {
    fn readiness(&self) -> Result<(), String> {
        self.ready.clone()
    }

    fn status(&self) -> Answer<'_, Status> {
        let listener = ListenerStatus {
            address: "udp://127.0.0.1:8125".to_owned(),
            books: Books::default(),
            ..ListenerStatus::default()
        };
        let status = Status {
            version: "1.2.3".to_owned(),
            listeners: vec![listener],
            ..Status::default()
        };
        Box::pin(async move { status })
    }

    fn reload(&self) -> Answer<'_, Option<Reloaded>> {
        Box::pin(async {
            Some(Reloaded {
                errors: vec!["weir.yaml:1: udp: is wrong".to_owned()],
                ..Reloaded::default()
            })
        })
    }

    fn contexts(&self, top: usize) -> Answer<'_, Option<ContextReport>> {
        let row = MetricRow {
            metric: "a".to_owned(),
            samples_per_second: 3.0,
            ..MetricRow::default()
        };
        Box::pin(async move {
            Some(ContextReport {
                metrics_by_samples: vec![row; top.min(100)],
                ..ContextReport::default()
            })
        })
    }

    fn explain(&self, request: ExplainRequest) -> Answer<'_, Explanation> {
        Box::pin(async move {
            Explanation {
                line: format!("{} of {:?}", request.line, request.pid),
                ..Explanation::default()
            }
        })
    }

    fn scrape(&self, request: ScrapeRequest) -> Answer<'_, Option<Exposition>> {
        let on = self.scrape;
        Box::pin(async move {
            let (sender, pieces) = tokio::sync::mpsc::channel(1);
            tokio::spawn(async move {
                for number in 0..3 {
                    let _ = sender
                        .send(Bytes::from(format!("piece {number} for {}\n", request.accept)))
                        .await;
                }
            });
            on.then(|| Exposition {
                content_type: "text/plain; version=0.0.4".to_owned(),
                content_encoding: None,
                body: ExpositionBody::Pieces(pieces),
            })
        })
    }
}

/// Serves until dropped.
struct Server {
    address: SocketAddr,
    _stop: tokio::sync::oneshot::Sender<()>,
}

impl Server {
    fn start(source: Double) -> Self {
        let (bound, address) = std::sync::mpsc::channel();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        std::thread::Builder::new()
            .name("admin-test".to_owned())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                runtime.block_on(async {
                    let server = AdminServer::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
                    bound.send(server.address()).unwrap();
                    tokio::select! {
                        () = server.serve(Arc::new(source)) => {}
                        _ = stopped => {}
                    }
                });
            })
            .unwrap();
        Self {
            address: address.recv().unwrap(),
            _stop: stop,
        }
    }

    fn request(&self, head: &str) -> (u16, String, Vec<u8>) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let split = answer
            .windows(4)
            .position(|window| window == b"\r\n\r\n")
            .unwrap();
        let head = String::from_utf8(answer[..split].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_ascii_lowercase(), answer[split + 4..].to_vec())
    }

    fn get(&self, path: &str) -> (u16, String) {
        let head = format!("GET {path} HTTP/1.0\r\nAccept: all/this\r\n\r\n");
        let (status, _, body) = self.request(&head);
        (status, String::from_utf8_lossy(&body).into_owned())
    }
}

fn ready() -> Double {
    Double {
        ready: Ok(()),
        scrape: true,
    }
}

#[test]
fn every_path_answers() {
    let server = Server::start(ready());
    assert_eq!(server.get("/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(server.get("/ready"), (200, "ready\n".to_owned()));
    assert!(server.get("/").1.contains("/debug/pprof/heap"));
    let expected: String = (0..3)
        .map(|number| format!("piece {number} for all/this\n"))
        .collect();
    assert_eq!(server.get("/metrics"), (200, expected));

    let (status, body) = server.get("/api/v1/status");
    assert_eq!(status, 200);
    let parsed: Status = serde_json::from_str(&body).unwrap();
    assert_eq!(parsed.version, "1.2.3");

    let rows = |path| {
        let (status, body) = server.get(path);
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str::<ContextReport>(&body)
            .unwrap()
            .metrics_by_samples
            .len()
    };
    assert_eq!(rows("/api/v1/contexts"), 20);
    assert_eq!(rows("/api/v1/contexts?top=3"), 3);

    let (status, body) = server.get("/debug/vars");
    assert_eq!(status, 200);
    let vars: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert!(vars["memstats"]["allocated"].as_u64().unwrap() > 0, "{body}");
    assert!(vars["memstats"]["rss"].as_u64().unwrap() > 0, "{body}");
    assert_eq!(vars["weir"]["version"], "1.2.3");
    assert_eq!(vars["cmdline"].as_array().unwrap().len(), 1);
}

#[test]
fn wrong_requests_are_refused_with_a_reason() {
    let server = Server::start(ready());
    for (path, status, part) in [
        ("/nothing", 404, "nothing here"),
        ("/api/v1/contexts?top=0", 400, "from 1 to 256"),
        ("/api/v1/contexts?top=257", 400, "from 1 to 256"),
        ("/api/v1/contexts?top=-1", 400, "from 1 to 256"),
        ("/api/v1/contexts?top=", 400, "from 1 to 256"),
        ("/api/v1/contexts?top", 400, "from 1 to 256"),
        ("/api/v1/contexts?top=x", 400, "from 1 to 256"),
        ("/debug/pprof/profile?seconds=0", 400, "from 1 to 600"),
        ("/debug/pprof/profile?seconds=601", 400, "from 1 to 600"),
    ] {
        let answer = server.get(path);
        assert_eq!(answer.0, status, "{path}");
        assert!(answer.1.contains(part), "{path}: {}", answer.1);
    }
    let (status, head, _) = server.request("POST /api/v1/status HTTP/1.0\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(status, 405);
    assert!(head.contains("allow: get, head"), "{head}");
    let (status, _, body) = server.request("HEAD /healthz HTTP/1.0\r\n\r\n");
    assert_eq!((status, body.len()), (200, 0));
    assert_eq!(server.request("\x00\x01garbage\r\n\r\n").0, 400);
    let long = format!("GET /{} HTTP/1.0\r\n\r\n", "x".repeat(100_000));
    assert!(matches!(server.request(&long).0, 414 | 431));
}

#[test]
fn what_is_off_or_not_ready_says_so() {
    let server = Server::start(Double {
        ready: Err("worker 0 has not started".to_owned()),
        scrape: false,
    });
    assert_eq!(
        server.get("/ready"),
        (503, "not ready: worker 0 has not started\n".to_owned())
    );
    assert_eq!(server.get("/healthz").0, 200);
    let (status, body) = server.get("/metrics");
    assert_eq!(status, 404);
    assert!(body.contains("outputs.prometheus.enabled"), "{body}");
}

#[test]
fn connections_that_say_nothing_do_not_shut_others_out() {
    let server = Server::start(ready());
    // More than are served at once; they are closed when their time for a request is over.
    let silent: Vec<TcpStream> = (0..40)
        .map(|_| TcpStream::connect(server.address).unwrap())
        .collect();
    let start = Instant::now();
    assert_eq!(server.get("/healthz").0, 200);
    assert!(start.elapsed() < Duration::from_secs(25));
    drop(silent);
}

/// `go tool pprof` on what a URL answers.
fn pprof(server: &Server, arguments: &[&str], path: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new("go")
        .args(["tool", "pprof"])
        .args(arguments)
        .arg(format!("http://{}{path}", server.address))
        .env("PPROF_TMPDIR", directory.path())
        .output()
        .expect("the Go toolchain is installed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    text
}

#[inline(never)]
fn burn_until(stop: &std::sync::atomic::AtomicBool) -> u64 {
    let mut value = 1u64;
    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
        for _ in 0..1000 {
            value = std::hint::black_box(value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
    }
    value
}

/// The process has one CPU profiler, and these tests are one process.
static PROFILER: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[test]
fn a_cpu_profile_names_the_function_that_burns() {
    let _profiler = PROFILER.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let server = Server::start(ready());
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let burner = std::thread::Builder::new()
        .name("burner".to_owned())
        .spawn({
            let stop = stop.clone();
            move || burn_until(&stop)
        })
        .unwrap();
    let top = pprof(&server, &["-top"], "/debug/pprof/profile?seconds=2");
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    burner.join().unwrap();
    println!("{top}");
    let line = top
        .lines()
        .find(|line| line.contains("burn_until"))
        .expect("the burner is in the profile");
    // The stack leads from the function out to the thread's start.
    assert!(top.contains("thread_start") || top.contains("clone"), "{top}");
    assert!(top.contains("Type: cpu"), "{top}");
    assert!(line.contains('%'), "{line}");
}

#[inline(never)]
fn hold_a_lot() -> Vec<Vec<u8>> {
    // Not the last thing the function does, or the compiler makes a jump of the call and no frame of the function.
    std::hint::black_box((0..64).map(|_| vec![1u8; 1 << 20]).collect())
}

#[test]
fn a_heap_profile_names_the_function_that_holds() {
    let server = Server::start(ready());
    let held = hold_a_lot();
    let top = pprof(&server, &["-top", "-cum"], "/debug/pprof/heap");
    println!("{top}");
    let line = top
        .lines()
        .find(|line| line.contains("hold_a_lot"))
        .expect("the holder is in the profile");
    let cumulative = line.split_whitespace().nth(3).unwrap();
    let mebibytes: f64 = cumulative.strip_suffix("MB").unwrap().parse().unwrap();
    // An estimate from samples, but 1 MiB pieces are sampled nearly always.
    assert!((50.0..80.0).contains(&mebibytes), "{line}");
    assert!(top.contains("Type: inuse_space"), "{top}");
    assert_eq!(held.len(), 64);
}

#[test]
fn one_cpu_profile_at_a_time() {
    let _profiler = PROFILER.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let server = Server::start(ready());
    let mut first = TcpStream::connect(server.address).unwrap();
    first
        .write_all(b"GET /debug/pprof/profile?seconds=600 HTTP/1.0\r\n\r\n")
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    // The first request may still be on its way.
    while server.get("/debug/pprof/profile?seconds=1").0 != 409 {
        assert!(Instant::now() < deadline, "no profile was refused");
    }
    drop(first);
    // Whoever hangs up ends the profile.
    while server.get("/debug/pprof/profile?seconds=1").0 != 200 {
        assert!(
            Instant::now() < deadline,
            "the profile did not end with its connection"
        );
    }
}
