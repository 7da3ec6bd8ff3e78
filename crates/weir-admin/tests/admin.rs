//! The admin server on a real socket, with a source that is a double, and its profiles read by the real
//! `go tool pprof`.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use weir_admin::caller::Hosts;
use weir_admin::streams;
use weir_admin::{
    AdminServer, AdminSource, Callers, ConnectionLimits, Exposition, NotReady, ResponseFuture, ScrapeRequest,
};
use weir_status::contexts::{ContextReport, MetricRow};
use weir_status::explain::{ExplainError, ExplainRequest, Explanation};
use weir_status::status::Reloaded;
use weir_status::status::{ListenerStatus, ProcessStatus, Status};

struct Double {
    ready: Result<(), NotReady>,
    scrape: bool,
    /// Pieces of an exposition.
    pieces: usize,
    /// The task that produces them panics after the last.
    dies: bool,
}

impl AdminSource for Double {
    fn readiness(&self) -> Result<(), NotReady> {
        self.ready.clone()
    }

    fn status(&self) -> ResponseFuture<'_, Status> {
        let listener = ListenerStatus {
            address: "udp://127.0.0.1:8125".to_owned(),
            ..ListenerStatus::default()
        };
        let status = Status {
            process: ProcessStatus {
                version: "1.2.3".to_owned(),
                ..ProcessStatus::default()
            },
            listeners: vec![listener],
            ..Status::default()
        };
        Box::pin(async move { status })
    }

    fn reload(&self) -> ResponseFuture<'_, Option<Reloaded>> {
        Box::pin(async {
            Some(Reloaded {
                errors: vec!["weir.yaml:1: udp: is wrong".to_owned()],
                ..Reloaded::default()
            })
        })
    }

    fn contexts(&self, top: usize) -> ResponseFuture<'_, Option<ContextReport>> {
        let row = MetricRow {
            metric: "a".to_owned(),
            samples_per_second: 3.0,
            ..MetricRow::default()
        };
        // Before the first flush there is none.
        let is_ready = self.ready.is_ok();
        Box::pin(async move {
            is_ready.then(|| ContextReport {
                metrics_by_samples: vec![row; top.min(100)],
                ..ContextReport::default()
            })
        })
    }

    fn explain(&self, request: ExplainRequest) -> ResponseFuture<'_, Result<Explanation, ExplainError>> {
        Box::pin(async move {
            Ok(Explanation {
                line: format!("{} of {:?}", request.line, request.pid),
                ..Explanation::default()
            })
        })
    }

    fn scrape(&self, request: ScrapeRequest) -> ResponseFuture<'_, Option<Exposition>> {
        let (on, pieces_max, dies) = (self.scrape, self.pieces, self.dies);
        Box::pin(async move {
            let (sender, pieces) = streams::pieces(1);
            tokio::spawn(async move {
                for number in 0..pieces_max {
                    let piece = match pieces_max {
                        usize::MAX => Bytes::from_static(&[b'#'; 65536]),
                        _ => Bytes::from(format!("piece {number} for {}\n", request.accept)),
                    };
                    let sent = sender.send(piece).await;
                    if sent.is_err() {
                        return;
                    }
                }
                assert!(!dies, "as intended");
                sender.finish();
            });
            on.then(|| Exposition {
                content_type: "text/plain; version=0.0.4".to_owned(),
                content_encoding: None,
                body: pieces,
            })
        })
    }
}

fn callers() -> Callers {
    Callers {
        hosts: Hosts::new(&[weir_config::HostName("weir.example.org".to_owned())]),
        ..Callers::default()
    }
}

/// Serves until dropped.
struct Server {
    address: SocketAddr,
    _stop: tokio::sync::oneshot::Sender<()>,
}

impl Server {
    fn start(source: Double) -> Self {
        Self::with(source, ConnectionLimits::default())
    }

    fn with(source: Double, limits: ConnectionLimits) -> Self {
        Self::after(source, limits, |_| ()).0
    }

    /// Serves once `first` is done: the server finds what that sends as soon as it accepts its connections.
    fn after<T>(source: Double, limits: ConnectionLimits, first: impl FnOnce(SocketAddr) -> T) -> (Self, T) {
        let (bound, address) = std::sync::mpsc::channel();
        let (begin, begins) = std::sync::mpsc::channel();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        std::thread::Builder::new()
            .name("admin-test".to_owned())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                runtime.block_on(async {
                    let server = AdminServer::bind(&["127.0.0.1:0".parse().unwrap()], |_| None)
                        .await
                        .unwrap()
                        .unwrap();
                    bound.send(server.sockets().first()).unwrap();
                    begins.recv().unwrap();
                    tokio::select! {
                        () = server.serve(Arc::new(source), callers(), limits) => {}
                        _ = stopped => {}
                    }
                });
            })
            .unwrap();
        let address = address.recv().unwrap();
        let done = first(address);
        begin.send(()).unwrap();
        let server = Self { address, _stop: stop };
        (server, done)
    }

    fn request(&self, head: &str) -> (u16, String, Vec<u8>) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
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
        pieces: 3,
        dies: false,
    }
}

#[test]
fn every_path_answers() {
    let server = Server::start(ready());
    assert_eq!(server.get("/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(server.get("/ready"), (200, "ready\n".to_owned()));
    assert!(server.get("/").1.contains("/debug/pprof/heap"));
    let (_, head, page) = server.request("GET / HTTP/1.0\r\nAccept: text/html,*/*\r\n\r\n");
    assert!(String::from_utf8_lossy(&page).contains("<!doctype html>"));
    assert!(
        head.contains("content-security-policy: default-src 'none'"),
        "{head}"
    );
    let expected: String = (0..3)
        .map(|number| format!("piece {number} for all/this\n"))
        .collect();
    assert_eq!(server.get("/metrics"), (200, expected));

    let (status, body) = server.get("/api/v1/status");
    assert_eq!(status, 200);
    let parsed: Status = serde_json::from_str(&body).unwrap();
    assert_eq!(parsed.process.version, "1.2.3");

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
    // The keys that a reader of Go's expvar expects.
    for key in [
        "Alloc",
        "HeapAlloc",
        "HeapInuse",
        "HeapSys",
        "HeapObjects",
        "Mallocs",
        "Frees",
        "Sys",
    ] {
        assert!(vars["memstats"][key].as_u64().unwrap() > 0, "{key}: {body}");
    }
    for key in ["HeapIdle", "HeapReleased", "NumGC", "PauseTotalNs"] {
        assert!(vars["memstats"][key].is_u64(), "{key}: {body}");
    }
    assert_eq!(vars["weir"]["version"], "1.2.3");
    assert_eq!(vars["cmdline"].as_array().unwrap().len(), 1);
}

#[test]
fn wrong_requests_are_refused_with_a_reason() {
    let server = Server::start(ready());
    for (path, status, part) in [
        ("/nothing", 404, "not found; / lists"),
        ("/api/v1/nothing", 404, "not found"),
        ("/debug/pprof/trace?seconds=1", 404, "/debug/pprof/profile"),
        ("/debug/pprof/block", 404, "weir_hand_over_waits_total"),
        ("/debug/pprof/mutex", 404, "weir_receive_gap_seconds"),
        ("/debug/pprof/goroutine", 404, "/debug/vars"),
        ("/debug/pprof/nothing", 404, "not found; / lists"),
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
fn disabled_or_unready_endpoints_report_it() {
    let server = Server::start(Double {
        ready: Err(NotReady::Failed("worker 0 has not started".to_owned())),
        scrape: false,
        ..ready()
    });
    assert_eq!(
        server.get("/ready"),
        (503, "not ready: worker 0 has not started\n".to_owned())
    );
    assert_eq!(server.get("/healthz").0, 200);
    let (status, body) = server.get("/metrics");
    assert_eq!(status, 404);
    assert!(body.contains("outputs.prometheus.enabled"), "{body}");
    let (status, body) = server.get("/api/v1/metrics");
    assert!(status == 404 && body.contains("set `history`"), "{body}");
    let (status, body) = server.get("/api/v1/contexts");
    assert!(status == 503 && body.contains("no flush yet"), "{body}");
}

/// Before HTTP/1.1 an answer ends where its connection does, so the end of a part must not look like one.
#[test]
fn an_answer_is_cut_if_the_task_that_produces_it_dies() {
    for (version, pieces, dies) in [
        ("1.0", 3, false),
        ("1.1", 3, false),
        ("1.0", 0, true),
        ("1.1", 0, true),
        ("1.1", 3, true),
    ] {
        let server = Server::start(Double {
            pieces,
            dies,
            ..ready()
        });
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        write!(
            stream,
            "GET /metrics HTTP/{version}\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        if dies {
            let error = read.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{version}: {answer}");
        } else {
            read.unwrap();
            assert!(answer.contains("\npiece 2 for"), "{version}: {answer}");
        }
    }
}

/// Peers have an hour for everything: answers must not depend on closing slow peers.
fn patient() -> ConnectionLimits {
    let hour = Duration::from_secs(3600);
    ConnectionLimits {
        head: hour,
        write: hour,
        ..ConnectionLimits::default()
    }
}

/// The steps of a probe: a connection of its own, and an answer within its patience.
fn assert_healthy(server: &Server) {
    let start = Instant::now();
    assert_eq!(server.get("/healthz").0, 200);
    assert_eq!(server.get("/ready").0, 200);
    println!("/healthz and /ready took {:?}", start.elapsed());
}

#[test]
fn silent_connections_do_not_block_health() {
    let server = Server::with(ready(), patient());
    for number in [32, 300] {
        let silent: Vec<TcpStream> = (0..number)
            .map(|_| TcpStream::connect(server.address).unwrap())
            .collect();
        assert_healthy(&server);
        assert_eq!(server.get("/api/v1/status").0, 200);
        drop(silent);
    }
    // Idle after an answer is the same as silent.
    let idle: Vec<TcpStream> = (0..100).map(|_| answered(&server, "/healthz")).collect();
    assert_healthy(&server);
    drop(idle);
}

/// A connection that is kept after its answer.
fn answered(server: &Server, path: &str) -> TcpStream {
    let mut stream = asked(server.address, path);
    read_success(&mut stream);
    stream
}

/// A connection that has sent a request, and waits for its answer.
fn asked(address: SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    stream
}

fn read_success(stream: &mut TcpStream) {
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
}

/// Scrapes, and reads nothing beyond the first bytes.
fn scrape_without_reading(server: &Server, scrapers: usize) -> Vec<TcpStream> {
    (0..scrapers).map(|_| answered(server, "/metrics")).collect()
}

fn endless() -> Double {
    Double {
        pieces: usize::MAX,
        ..ready()
    }
}

#[test]
fn scrapers_that_do_not_read_block_neither_health_nor_other_peers() {
    let server = Server::with(endless(), patient());
    let slots = ConnectionLimits::default().requests_per_peer;
    let held = scrape_without_reading(&server, slots);
    assert_healthy(&server);
    // One peer has its part of the slots and no more, whatever it asks for.
    for _ in slots..32 {
        let (status, head, body) = server.request("GET /metrics HTTP/1.0\r\n\r\n");
        let body = String::from_utf8(body).unwrap();
        assert_eq!(status, 503, "{body}");
        assert!(body.contains("16 requests of 127.0.0.1 are under way"), "{body}");
        assert!(head.contains("retry-after: 1"), "{head}");
    }
    assert_healthy(&server);
    let mut from_elsewhere = socket_from("127.0.0.2", server.address);
    from_elsewhere
        .write_all(b"GET /api/v1/status HTTP/1.0\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    from_elsewhere.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    drop(held);
    // Their slots come back.
    until("a slot comes back", || server.get("/api/v1/status").0 == 200);
}

/// Polls, for events without a notification.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
    }
}

/// A connection from another address of this machine.
fn socket_from(address: &str, to: SocketAddr) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(format!("{address}:0").parse().unwrap()).unwrap();
        socket.connect(to).await.unwrap().into_std().unwrap()
    });
    stream.set_nonblocking(false).unwrap();
    stream
}

#[test]
fn a_scraper_that_reads_nothing_is_disconnected() {
    let limits = ConnectionLimits {
        write: Duration::from_millis(300),
        requests_per_peer: 1,
        ..patient()
    };
    let server = Server::with(endless(), limits);
    let mut held = scrape_without_reading(&server, 1);
    // The slot of this peer comes back although nobody lets go.
    until("the slot comes back", || server.get("/api/v1/status").0 == 200);
    // Data that the kernel had accepted, and then the end of the stream.
    let ended = std::io::copy(&mut held[0], &mut std::io::sink());
    println!("{ended:?}");
}

#[test]
fn slow_heads_and_idle_connections_are_closed() {
    let limits = ConnectionLimits {
        head: Duration::from_millis(300),
        ..patient()
    };
    // All is sent before the time of a connection begins.
    let (_server, (mut slow, mut idle)) = Server::after(ready(), limits, |address| {
        let mut slow = TcpStream::connect(address).unwrap();
        slow.write_all(b"GET /healthz HT").unwrap();
        (slow, asked(address, "/healthz"))
    });
    read_success(&mut idle);
    for stream in [&mut slow, &mut idle] {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
    }
}

/// They send a byte every now and then, and come again when they are closed.
#[test]
fn slow_connections_do_not_block_health() {
    const DRIBBLERS: usize = 200;
    let server = Server::with(ready(), patient());
    let mut streams: Vec<TcpStream> = Vec::new();
    let mut connected = 0;
    for _ in 0..20 {
        // The first byte to a connection that was closed is not refused yet.
        for _ in 0..2 {
            streams.retain_mut(|stream| stream.write_all(b"G").is_ok());
            while streams.len() < DRIBBLERS {
                streams.push(TcpStream::connect(server.address).unwrap());
                connected += 1;
            }
        }
        assert_healthy(&server);
    }
    assert!(connected > DRIBBLERS, "none was closed");
}

#[test]
fn requests_for_other_hosts_and_of_other_sites_are_refused() {
    let server = Server::start(ready());
    let ask = |head: String| {
        let (status, _, body) = server.request(&format!("{head}Connection: close\r\n\r\n"));
        (status, String::from_utf8(body).unwrap())
    };
    let hosts = ["127.0.0.1:8127", "[::1]", "localhost:1", "weir.example.org"];
    for host in hosts {
        let (status, body) = ask(format!("GET /api/v1/status HTTP/1.1\r\nHost: {host}\r\n"));
        assert_eq!(status, 200, "{host}: {body}");
    }
    for path in [
        "/",
        "/metrics",
        "/healthz",
        "/api/v1/status",
        "/api/v1/query?metric=a",
        "/api/v1/live",
        "/api/v1/tail",
        "/debug/pprof/heap",
        "/debug/vars",
    ] {
        let (status, body) = ask(format!("GET {path} HTTP/1.1\r\nHost: evil.example:8127\r\n"));
        assert_eq!(status, 403, "{path}: {body}");
        assert!(
            body.contains("evil.example") && body.contains("admin_hosts"),
            "{body}"
        );
    }
    assert_eq!(ask("GET /healthz HTTP/1.1\r\n".to_owned()).0, 400, "no host");

    let reload = |headers: &str| {
        ask(format!(
            "POST /api/v1/reload HTTP/1.1\r\nHost: 127.0.0.1:8127\r\nContent-Length: 0\r\n{headers}"
        ))
    };
    // The double answers that the file is invalid, so 422 is a reload.
    let ours = "X-Weir-Request: 1\r\n";
    assert_eq!(reload(ours).0, 422);
    assert_eq!(
        reload(&format!(
            "{ours}Origin: http://127.0.0.1:8127\r\nSec-Fetch-Site: same-origin\r\n"
        ))
        .0,
        422
    );
    for (headers, part) in [
        ("", "curl -X POST -H 'X-Weir-Request: 1'"),
        ("Content-Type: text/plain\r\n", "X-Weir-Request"),
        (
            "X-Weir-Request: 1\r\nOrigin: https://evil.example\r\n",
            "https://evil.example",
        ),
        ("X-Weir-Request: 1\r\nOrigin: null\r\n", "null"),
        (
            "X-Weir-Request: 1\r\nSec-Fetch-Site: cross-site\r\n",
            "cross-site",
        ),
        ("X-Weir-Request: 1\r\nSec-Fetch-Site: same-site\r\n", "same-site"),
    ] {
        let (status, body) = reload(headers);
        assert_eq!(status, 403, "{headers}: {body}");
        assert!(body.contains(part), "{body}");
    }
    let head = "POST /api/v1/reload HTTP/1.1\r\nHost: evil.example\r\nX-Weir-Request: 1\r\n";
    assert_eq!(ask(head.to_owned()).0, 403);
    // The preflight that a browser sends before a header of ours gets no permission.
    let head = "OPTIONS /api/v1/reload HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: https://evil.example\r\n\
                Access-Control-Request-Headers: x-weir-request\r\n";
    let (status, head, _) = server.request(&format!("{head}Connection: close\r\n\r\n"));
    assert!(status == 405 && !head.contains("access-control"), "{head}");
    // Profiles cost something even if nobody can read them.
    let cross = "Host: localhost\r\nSec-Fetch-Site: cross-site\r\n";
    for path in [
        "/debug/pprof/profile?seconds=1",
        "/api/v1/status",
        "/api/v1/live",
        "/api/v1/tail",
        "/api/v1/capture",
        "/api/v1/try?rules=a",
    ] {
        let (status, body) = ask(format!("GET {path} HTTP/1.1\r\n{cross}"));
        assert_eq!(status, 403, "{path}: {body}");
        let own = "Host: localhost\r\nSec-Fetch-Site: same-origin\r\nOrigin: http://localhost\r\n";
        if !path.contains("profile") {
            assert_ne!(ask(format!("HEAD {path} HTTP/1.1\r\n{own}")).0, 403, "{path}");
        }
    }
    assert_eq!(
        ask(format!("GET / HTTP/1.1\r\n{cross}")).0,
        200,
        "a link to the page"
    );
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

#[inline(never)]
fn allocate_a_lot() -> usize {
    (0..64)
        .map(|_| std::hint::black_box(vec![1u8; 1 << 20]).len())
        .sum()
}

/// Freed memory is not in the profile of live memory.
#[test]
fn a_heap_profile_names_the_function_that_allocated() {
    let server = Server::start(ready());
    assert_eq!(allocate_a_lot(), 64 << 20);
    for (path, arguments) in [
        ("/debug/pprof/allocs", vec!["-top", "-cum", "-unit=MB"]),
        (
            "/debug/pprof/heap",
            vec!["-top", "-cum", "-unit=MB", "-sample_index=alloc_space"],
        ),
    ] {
        let top = pprof(&server, &arguments, path);
        let line = top
            .lines()
            .find(|line| line.contains("allocate_a_lot"))
            .unwrap_or_else(|| panic!("the function is in the profile: {top}"));
        let cumulative = line.split_whitespace().nth(3).unwrap();
        let mebibytes: f64 = cumulative.strip_suffix("MB").unwrap().parse().unwrap();
        assert!((50.0..80.0).contains(&mebibytes), "{line}");
        assert!(top.contains("Type: alloc_space"), "{top}");
    }
    let held = pprof(&server, &["-top", "-cum"], "/debug/pprof/heap");
    assert!(!held.contains("allocate_a_lot"), "{held}");
}

#[test]
fn one_cpu_profile_at_a_time() {
    let _profiler = PROFILER.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let server = Server::start(ready());
    let mut first = TcpStream::connect(server.address).unwrap();
    first
        .write_all(b"GET /debug/pprof/profile?seconds=600 HTTP/1.0\r\n\r\n")
        .unwrap();
    // The first request may still be on its way.
    until("a profile is refused", || {
        server.get("/debug/pprof/profile?seconds=1").0 == 409
    });
    drop(first);
    until("the profile ends with its connection", || {
        server.get("/debug/pprof/profile?seconds=1").0 == 200
    });
}
