//! Requests of the OTLP output over HTTP and gRPC, read with OpenTelemetry's published definitions.

use crate::support;

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming};
use serde_json::{Value as Json, json};
use support::*;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use weir_aggregate::Expansion;
use weir_output::delivery::{Clock, Delivery, OutputStatus, Reason};
use weir_output::otlp::{OtlpCompression, OtlpSettings, Protocol, Temporality};
use weir_output::settings::Start;

fn start(settings: &OtlpSettings, clock: Clock) -> Delivery {
    settings
        .start("otlp", &Arc::new(Expansion::default()), &environment(clock))
        .unwrap()
}

/// One data point with everything around it that is not the point itself.
#[derive(Clone, Debug)]
struct Point {
    resource: BTreeMap<String, Json>,
    scope: String,
    name: String,
    unit: String,
    /// `sum`, `gauge`, ...
    shape: String,
    of_metric: Json,
    attributes: BTreeMap<String, Json>,
    point: Json,
}

fn attributes(found: &Json) -> BTreeMap<String, Json> {
    let pairs = found.as_array().into_iter().flatten();
    let all: Vec<(String, Json)> = pairs
        .map(|pair| (pair["key"].as_str().unwrap().to_owned(), pair["value"].clone()))
        .collect();
    let map: BTreeMap<String, Json> = all.iter().cloned().collect();
    assert_eq!(map.len(), all.len(), "a name twice: {found}");
    map
}

fn points(requests: &[Json]) -> Vec<Point> {
    let each = |value: &Json| value.as_array().cloned().unwrap_or_default();
    let mut points = Vec::new();
    for request in requests {
        for resource in each(&request["resource_metrics"]) {
            for scope in each(&resource["scope_metrics"]) {
                assert_eq!(scope["scope"]["name"], "weir");
                for metric in each(&scope["metrics"]) {
                    let shapes = ["gauge", "sum", "exponential_histogram", "summary"];
                    let shape = shapes
                        .into_iter()
                        .find(|shape| metric.get(shape).is_some())
                        .unwrap();
                    for point in each(&metric[shape]["data_points"]) {
                        points.push(Point {
                            resource: attributes(&resource["resource"]["attributes"]),
                            scope: scope["scope"]["attributes"][0]["value"]["string_value"].to_string(),
                            name: metric["name"].as_str().unwrap().into(),
                            unit: metric["unit"].as_str().unwrap_or_default().into(),
                            shape: shape.into(),
                            of_metric: metric[shape].clone(),
                            attributes: attributes(&point["attributes"]),
                            point,
                        });
                    }
                }
            }
        }
    }
    points
}

fn nanos(seconds: i64) -> Json {
    json!((seconds * 1_000_000_000).to_string())
}

fn find<'p>(points: &'p [Point], name: &str) -> &'p Point {
    let found: Vec<&Point> = points.iter().filter(|point| point.name == name).collect();
    assert_eq!(found.len(), 1, "{name}: {found:?}");
    found[0]
}

const MESSAGES: &str = "views:3|c|#k:v,bare,k2:a,k2:b,:odd,e:\nviews.down:-2|c\nheat:21.5|g|#host:web1\nusers:a|s\nusers:b|s\ntime:1:2:3|ms\nsize:10:20:-5:0|d\nplain:4|h\nstamped:4|c|T1699999000\nx:1|g\nx:2|s\nnothing:1|g|#host:\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_kind_as_delta() {
    let intake = Intake::start(|_| Reply::Status(200)).await;
    let output = start(&otlp(&intake.url()), Clock::system());
    batches(MESSAGES).iter().for_each(|batch| output.submit(batch));
    wait(&output, "delivered", |status| {
        status.endpoints[0].delivered.points == 10
    })
    .await;
    output.shutdown(DEADLINE).await;
    let status = output.status();
    assert!(status.balances(), "{status:#?}");
    // A counter that goes down would be another metric to Prometheus.
    let refused = &status.endpoints[0].dropped[&Reason::NegativeCounter];
    assert_eq!(refused.points, 1, "{status:#?}");
    let requests = intake.requests();
    for request in &requests {
        assert_eq!(
            (request.method.as_str(), request.path.as_str()),
            ("POST", "/v1/metrics")
        );
        assert_eq!(request.header("content-type"), "application/x-protobuf");
        assert_eq!(request.header("content-encoding"), "gzip");
    }
    let points = points(&decode_otlp(requests.iter().map(Request::plain)));
    assert_eq!(points.len(), 10);

    let views = find(&points, "views");
    assert_eq!(
        (views.shape.as_str(), views.scope.as_str()),
        ("sum", "\"counter\"")
    );
    assert_eq!(views.of_metric["aggregation_temporality"], 1);
    assert_eq!(views.of_metric["is_monotonic"], true);
    assert_eq!(views.point["as_double"], 3.0);
    assert_eq!(views.point["start_time_unix_nano"], nanos(BUCKET));
    assert_eq!(views.point["time_unix_nano"], nanos(BUCKET + 10));
    let text = |text: &str| json!({"string_value": text});
    let expected = BTreeMap::from([
        ("k".to_owned(), text("v")),
        ("bare".to_owned(), json!({"bool_value": true})),
        (
            "k2".to_owned(),
            json!({"array_value": {"values": [text("a"), text("b")]}}),
        ),
        ("_".to_owned(), text("odd")),
        ("e".to_owned(), text("")),
    ]);
    assert_eq!(views.attributes, expected);
    let resource = |host: &str| {
        BTreeMap::from([
            ("service.name".to_owned(), text("shop")),
            ("host.name".to_owned(), text(host)),
        ])
    };
    assert_eq!(views.resource, resource("agent-host"));
    assert!(points.iter().all(|point| point.name != "views.down"));
    let heat = find(&points, "heat");
    assert_eq!(
        (heat.shape.as_str(), &heat.resource),
        ("gauge", &resource("web1"))
    );
    assert_eq!(heat.point["as_double"], 21.5);
    assert_eq!(heat.point["start_time_unix_nano"], Json::Null);
    assert_eq!(find(&points, "users").point["as_double"], 2.0);
    let nothing = &find(&points, "nothing").resource;
    assert_eq!(nothing.keys().collect::<Vec<_>>(), ["service.name"]);

    let time = find(&points, "time");
    assert_eq!(
        (time.shape.as_str(), time.unit.as_str()),
        ("exponential_histogram", "ms")
    );
    assert_eq!(time.of_metric["aggregation_temporality"], 1);
    assert_eq!(
        (&time.point["count"], &time.point["sum"]),
        (&json!("3"), &json!(6.0))
    );
    assert_eq!(
        (&time.point["min"], &time.point["max"]),
        (&json!(1.0), &json!(3.0))
    );
    let size = find(&points, "size");
    assert_eq!(
        (&size.point["count"], &size.point["sum"]),
        (&json!("4"), &json!(25.0))
    );
    assert_eq!(
        (&size.point["min"], &size.point["max"]),
        (&json!(-5.0), &json!(20.0))
    );
    assert_eq!(
        (&size.point["zero_count"], &size.point["scale"]),
        (&json!("1"), &json!(5))
    );
    let counts = |side: &str| -> u64 {
        let all = size.point[side]["bucket_counts"].as_array().unwrap();
        all.iter()
            .map(|count| count.as_str().unwrap().parse::<u64>().unwrap())
            .sum()
    };
    assert_eq!((counts("positive"), counts("negative")), (2, 1));
    let stamped = find(&points, "stamped");
    assert_eq!(stamped.point["time_unix_nano"], nanos(1_699_999_000));
    assert_eq!(stamped.point["start_time_unix_nano"], nanos(1_699_998_990));
    // A gauge and a set of one name differ in their scope.
    let mut of_x: Vec<&str> = points
        .iter()
        .filter(|p| p.name == "x")
        .map(|p| p.scope.as_str())
        .collect();
    of_x.sort();
    assert_eq!(of_x, ["\"gauge\"", "\"set\""]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cumulative_points_begin_grow_and_end() {
    let intake = Intake::start(|_| Reply::Status(200)).await;
    let (clock, driver) = Clock::driven(BUCKET);
    let mut settings = otlp(&intake.url());
    settings.temporality = Temporality::Cumulative;
    settings.expiry = Duration::from_secs(25);
    settings.compression = OtlpCompression::None;
    let output = start(&settings, clock);
    let mut expected = 0;
    for (i, messages) in [
        "views:3|c|#a:b,c\nsize:1:2|d\ntime:5|ms\nonce:1|g\n",
        "views:4|c|#a:b,c\nsize:4|d\n",
        "views:-1|c|#a:b,c\n",
        "views:5|c|#a:b,c\n",
        "views:5|c|#a:b,c\n",
    ]
    .into_iter()
    .enumerate()
    {
        driver.advance(Duration::from_secs(10));
        let batches = batches_at(BUCKET + i as i64 * 10, messages);
        expected += batches
            .iter()
            .map(|batch| batch.series().filter(|s| !s.is_idle()).count())
            .sum::<usize>();
        batches.iter().for_each(|batch| output.submit(batch));
        let requests = intake.wait(i + 1).await;
        assert_eq!(requests.last().unwrap().header("content-encoding"), "");
    }
    output.shutdown(DEADLINE).await;
    let status = output.status();
    assert!(
        status.balances() && status.received.points > expected as u64,
        "{status:#?}"
    );
    let points = points(&decode_otlp(intake.requests().iter().map(Request::plain)));
    let of = |name: &str| -> Vec<&Point> { points.iter().filter(|point| point.name == name).collect() };
    let values: Vec<f64> = of("views")
        .iter()
        .map(|p| p.point["as_double"].as_f64().unwrap_or(f64::NAN))
        .collect();
    // The bucket that would have made it fall is refused, and the series stays what it was.
    assert_eq!(values[..5], [3.0, 7.0, 7.0, 12.0, 17.0]);
    let refused = &status.endpoints[0].dropped[&Reason::NegativeCounter];
    assert_eq!(refused.points, 1, "{status:#?}");
    let ended = |point: &Point| point.point["flags"] == 1;
    assert!(values.len() == 6 && ended(of("views")[5]), "{:?}", of("views"));
    for (at, point) in of("views").iter().enumerate() {
        assert_eq!(point.of_metric["aggregation_temporality"], 2);
        assert_eq!(point.of_metric["is_monotonic"], true);
        assert_eq!(point.point["start_time_unix_nano"], nanos(BUCKET));
        assert_eq!(point.attributes.len(), 2);
        if at < 5 {
            assert_eq!(
                point.point["time_unix_nano"],
                nanos(BUCKET + 10 * (at as i64 + 1))
            );
        }
    }
    let counts: Vec<&Json> = of("size").iter().map(|point| &point.point["count"]).collect();
    assert_eq!(counts[..4], [&json!("2"), &json!("3"), &json!("3"), &json!("3")]);
    assert_eq!(of("size")[1].point["sum"], 7.0);
    // A series without samples for 25 seconds ended right after its last point.
    for name in ["once", "time"] {
        let found = of(name);
        let (last, before) = found.split_last().unwrap();
        assert!(
            ended(last) && before.iter().all(|point| !ended(point)),
            "{found:?}"
        );
        assert_eq!(before.len(), 4, "{found:?}");
    }
    // Every series ascends in time.
    let mut newest: BTreeMap<String, u64> = BTreeMap::new();
    for point in &points {
        let at: u64 = point.point["time_unix_nano"].as_str().unwrap().parse().unwrap();
        let key = format!("{} {} {:?}", point.name, point.scope, point.attributes);
        assert!(
            newest.insert(key, at).is_none_or(|before| before < at),
            "{point:?}"
        );
    }
}

/// The first negative bucket moved a counter from `x_total` to `x` in Prometheus: it was monotonic until then. Whether counters are
/// is now said once for all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_are_monotonic_for_life_or_never() {
    for temporality in [Temporality::Delta, Temporality::Cumulative] {
        for monotonic in [true, false] {
            let intake = Intake::start(|_| Reply::Status(200)).await;
            let (clock, driver) = Clock::driven(BUCKET);
            let mut settings = otlp(&intake.url());
            settings.temporality = temporality;
            settings.monotonic_counters = monotonic;
            let output = start(&settings, clock);
            for (i, value) in ["5", "-3", "-1e308", "1e308", "1e308", "2"].iter().enumerate() {
                driver.advance(Duration::from_secs(10));
                let batches = batches_at(BUCKET + i as i64 * 10, &format!("x:{value}|c\n"));
                batches.iter().for_each(|batch| output.submit(batch));
                // A request that is still under way when the clock moves would time out and be sent again.
                wait(&output, "settled", |status| {
                    idle(status) && status.received.points > i as u64
                })
                .await;
            }
            output.shutdown(DEADLINE).await;
            let status = output.status();
            assert!(status.balances(), "{status:#?}");
            let points = points(&decode_otlp(intake.requests().iter().map(Request::plain)));
            let values: Vec<f64> = points
                .iter()
                .filter_map(|p| p.point["as_double"].as_f64())
                .collect();
            for point in &points {
                assert_eq!(point.of_metric["is_monotonic"] == true, monotonic, "{point:?}");
            }
            let dropped = |reason| {
                status.endpoints[0]
                    .dropped
                    .get(&reason)
                    .map_or(0, |items| items.points)
            };
            let refused = (dropped(Reason::NegativeCounter), dropped(Reason::NotFinite));
            let (expected, refusals): (&[f64], _) = match (temporality, monotonic) {
                (Temporality::Delta, true) => (&[5.0, 1e308, 1e308, 2.0], (2, 0)),
                (Temporality::Delta, false) => (&[5.0, -3.0, -1e308, 1e308, 1e308, 2.0], (0, 0)),
                (Temporality::Cumulative, true) => (&[5.0, 5.0, 5.0, 1e308, 1e308, 1e308], (2, 1)),
                (Temporality::Cumulative, false) => (&[5.0, 2.0, -1e308, 0.0, 1e308, 1e308], (0, 0)),
            };
            assert_eq!(values, expected, "{temporality:?}, monotonic: {monotonic}");
            assert_eq!(refused, refusals, "{temporality:?}, monotonic: {monotonic}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_stay_within_their_limits() {
    let intake = Intake::start(|_| Reply::Status(200)).await;
    let n = 25_000;
    let long = "x".repeat(180);
    let messages: String = (0..n)
        .map(|i| format!("m{}:{i}|g|#i:{i},a:{long},b:{long}\n", i % 97))
        .collect();
    let mut settings = otlp(&intake.url());
    settings.points_per_payload_max = 9000;
    let output = start(&settings, Clock::system());
    for batch in batches(&messages) {
        output.submit(&batch);
    }
    wait(&output, "delivered", |status| {
        status.endpoints[0].delivered.points == n
    })
    .await;
    output.shutdown(DEADLINE).await;
    let bodies: Vec<Vec<u8>> = intake.requests().iter().map(Request::plain).collect();
    assert!(
        bodies.iter().all(|body| body.len() <= 3_600_000),
        "{:?}",
        bodies.iter().map(Vec::len).collect::<Vec<_>>()
    );
    let points = points(&decode_otlp(bodies));
    let seen: BTreeMap<String, u64> = points
        .iter()
        .map(|point| {
            let i = point.attributes["i"]["string_value"].as_str().unwrap();
            assert_eq!(point.name, format!("m{}", i.parse::<u64>().unwrap() % 97));
            (
                i.to_owned(),
                point.point["as_double"].as_f64().unwrap_or_default() as u64,
            )
        })
        .collect();
    assert!(seen.len() as u64 == n && seen.iter().all(|(i, value)| i.parse::<u64>().unwrap() == *value));
}

/// `rejected_data_points` and `error_message` of an answer.
fn partial(rejected: u8, message: &str) -> Vec<u8> {
    let mut inner = vec![0x08, rejected, 0x12, message.len() as u8];
    inner.extend_from_slice(message.as_bytes());
    let mut body = vec![0x0a, inner.len() as u8];
    body.extend(inner);
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_over_http() {
    let body: &'static str = String::from_utf8(partial(2, "too old")).unwrap().leak();
    let mut replies = VecDeque::from([
        Reply::Full(429, vec![("retry-after", "0".into())], ""),
        Reply::Status(503),
        Reply::Status(502),
        Reply::Status(504),
        Reply::Full(200, vec![], body),
        // Anything else is for good: of what may be about one series each is tried, once.
        Reply::Status(400),
        Reply::Status(400),
        Reply::Status(400),
        Reply::Status(400),
        Reply::Status(400),
        Reply::Status(500),
        Reply::Status(404),
        Reply::Status(200),
    ]);
    let intake = Intake::start(move |_| replies.pop_front().unwrap()).await;
    let output = start(&otlp(&intake.url()), Clock::system());
    for i in 0..5 {
        batches_at(BUCKET + i * 10, "a:1|c\nb:1|c\nc:1|c\n")
            .iter()
            .for_each(|batch| output.submit(batch));
        let sent = (i as u64 + 1) * 3;
        let settled = |status: &OutputStatus| {
            status.received.points == sent && status.endpoints[0].pending.total().is_zero()
        };
        let status = wait(&output, "settled", settled).await;
        if i == 0 {
            let error = &status.endpoints[0].last_error.as_ref().unwrap().message;
            assert!(error.contains("refused 2 points: too old"), "{error}");
            assert!(status.healthy);
        }
    }
    let status = output.status();
    let endpoint = &status.endpoints[0];
    assert_eq!(
        (
            endpoint.delivered.points,
            endpoint.dropped[&Reason::Rejected].points
        ),
        (1 + 3, 2 + 9)
    );
    assert!(status.balances());
    output.shutdown(DEADLINE).await;
}

/// Answer of a gRPC server: HTTP status, whether the status comes with the headers, the trailers, the message.
#[derive(Clone, Debug)]
struct Call {
    http_status: u16,
    at_once: bool,
    trailers: Vec<(&'static str, String)>,
    message: Vec<u8>,
}

fn status(code: u16, message: &str) -> Call {
    Call {
        http_status: 200,
        at_once: false,
        trailers: vec![
            ("grpc-status", code.to_string()),
            ("grpc-message", message.into()),
        ],
        message: Vec::new(),
    }
}

#[derive(Clone, Default)]
struct GrpcServer {
    messages: Arc<Mutex<Vec<Vec<u8>>>>,
    replies: Arc<Mutex<VecDeque<Call>>>,
}

impl GrpcServer {
    async fn start(replies: Vec<Call>) -> (GrpcServer, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = GrpcServer {
            replies: Arc::new(Mutex::new(replies.into())),
            ..Default::default()
        };
        let running = server.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(running.clone().serve(socket));
            }
        });
        (server, url)
    }

    /// One that takes every call, over TLS, as `localhost`.
    async fn start_tls(acceptor: tokio_rustls::TlsAcceptor) -> (GrpcServer, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = GrpcServer::default();
        let running = server.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (acceptor, server) = (acceptor.clone(), running.clone());
                tokio::spawn(async move { server.serve(acceptor.accept(socket).await.unwrap()).await });
            }
        });
        (server, port)
    }

    async fn serve(self, socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let service = hyper::service::service_fn(move |request| self.clone().answer(request));
        let executor = hyper_util::rt::TokioExecutor::new();
        let socket = hyper_util::rt::TokioIo::new(socket);
        drop(
            hyper::server::conn::http2::Builder::new(executor)
                .serve_connection(socket, service)
                .await,
        );
    }

    async fn answer(self, request: hyper::Request<Incoming>) -> Result<hyper::Response<Frames>, Infallible> {
        assert_eq!(
            request.uri().path(),
            "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
        );
        let header = |name: &str| {
            request
                .headers()
                .get(name)
                .map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(header("content-type").as_deref(), Some("application/grpc"));
        assert_eq!(header("te").as_deref(), Some("trailers"));
        assert_eq!(header("x-key").as_deref(), Some("secret"));
        let is_gzip = header("grpc-encoding").as_deref() == Some("gzip");
        let frame = request.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(frame[0], u8::from(is_gzip));
        assert_eq!(
            u32::from_be_bytes(frame[1..5].try_into().unwrap()) as usize,
            frame.len() - 5
        );
        let mut message = frame[5..].to_vec();
        if is_gzip {
            message.clear();
            std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&frame[5..]), &mut message).unwrap();
        }
        self.messages.lock().unwrap().push(message);
        let call = self
            .replies
            .lock()
            .unwrap()
            .pop_front()
            .unwrap_or_else(|| status(0, ""));
        let mut response = hyper::Response::builder()
            .status(call.http_status)
            .header("content-type", "application/grpc");
        let mut frames: Vec<Result<Frame<Bytes>, Infallible>> = Vec::new();
        if call.at_once {
            for (name, value) in &call.trailers {
                response = response.header(*name, value);
            }
        } else {
            let mut framed = vec![0];
            framed.extend((call.message.len() as u32).to_be_bytes());
            framed.extend(&call.message);
            frames.push(Ok(Frame::data(framed.into())));
            let mut trailers = hyper::HeaderMap::new();
            for (name, value) in &call.trailers {
                trailers.insert(*name, value.parse().unwrap());
            }
            if !trailers.is_empty() {
                frames.push(Ok(Frame::trailers(trailers)));
            }
        }
        Ok(response.body(Frames(frames.into())).unwrap())
    }
}

/// A body of these frames.
struct Frames(VecDeque<Result<Frame<Bytes>, Infallible>>);

impl hyper::body::Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        std::task::Poll::Ready(self.0.pop_front())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_grpc() {
    let mut settings = otlp("");
    settings.protocol = Protocol::Grpc;
    settings.authorization = authorization(&[("x-key", "secret")]);
    for compression in [OtlpCompression::Gzip, OtlpCompression::None] {
        settings.compression = compression;
        let (server, url) = GrpcServer::start(vec![]).await;
        settings.url = url;
        let output = start(&settings, Clock::system());
        batches(MESSAGES).iter().for_each(|batch| output.submit(batch));
        wait(&output, "delivered", |status| {
            status.endpoints[0].delivered.points == 10
        })
        .await;
        output.shutdown(DEADLINE).await;
        let messages = server.messages.lock().unwrap().clone();
        let points = points(&decode_otlp(messages));
        assert_eq!(points.len(), 10);
        assert_eq!(find(&points, "views").point["as_double"], 3.0);
    }
}

/// Calls over TLS go through a proxy end to end, and are HTTP/2 there, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_through_a_tunnel() {
    let (acceptor, certificate) = tls_speaking(&[b"h2"]);
    let (server, port) = GrpcServer::start_tls(acceptor).await;
    let (proxy, asked) = tunnelling_proxy().await;
    let directory = tempfile::tempdir().unwrap();
    let authority = directory.path().join("ca.pem");
    std::fs::write(&authority, certificate).unwrap();
    let mut settings = otlp(&format!("https://localhost:{port}"));
    settings.protocol = Protocol::Grpc;
    settings.authorization = authorization(&[("x-key", "secret")]);
    settings.delivery.ca_file = authority.display().to_string();
    settings.delivery.proxy = proxy;
    let output = start(&settings, Clock::system());
    batches(MESSAGES).iter().for_each(|batch| output.submit(batch));
    wait(&output, "delivered", |status| {
        status.endpoints[0].delivered.points == 10
    })
    .await;
    assert!(output.status().balances());
    output.shutdown(DEADLINE).await;
    let messages = server.messages.lock().unwrap().clone();
    assert_eq!(points(&decode_otlp(messages)).len(), 10);
    let asked = asked.lock().unwrap().clone();
    assert!(!asked.is_empty());
    for head in asked {
        assert!(
            head.starts_with(&format!("CONNECT localhost:{port} HTTP/1.1\r\n")),
            "{head}"
        );
        assert!(!head.contains("secret"), "{head}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_over_grpc() {
    // A RetryInfo without a delay, in a status of code 8.
    let retry_info = "CAgaKgoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbw==";
    let exhausted = Call {
        trailers: vec![
            ("grpc-status", "8".into()),
            ("grpc-status-details-bin", retry_info.into()),
        ],
        ..status(8, "")
    };
    let refused_in_part = Call {
        message: partial(2, "too old"),
        ..status(0, "")
    };
    let at_once = Call {
        at_once: true,
        ..status(14, "not yet")
    };
    let cut_off = Call {
        trailers: Vec::new(),
        ..status(0, "")
    };
    let gateway = Call {
        http_status: 503,
        ..cut_off.clone()
    };
    let retried = [1, 4, 10, 11, 14, 15].map(|code| status(code, "again"));
    let first = [exhausted, at_once, cut_off, gateway].into_iter().chain(retried);
    // Each of three series is tried, once: alone, or as one of two. What another token can cure is not refused for good.
    let refused = [2, 2, 2, 2, 2, 3, 7, 8, 12, 13, 16].map(|code| status(code, "never%21"));
    let replies: Vec<Call> = first.chain([refused_in_part]).chain(refused).collect();
    let (attempts_retried, parts_refused, tokens_refused, attempts_refused) = (10, 4, 2, 5);
    let (server, url) = GrpcServer::start(replies).await;
    let mut settings = otlp(&url);
    settings.protocol = Protocol::Grpc;
    settings.authorization = authorization(&[("x-key", "secret")]);
    let output = start(&settings, Clock::system());
    for i in 0..7 {
        batches_at(BUCKET + i * 10, "a:1|c\nb:1|c\nc:1|c\n")
            .iter()
            .for_each(|batch| output.submit(batch));
        let sent = (i as u64 + 1) * 3;
        let settled = |status: &OutputStatus| {
            status.received.points == sent && status.endpoints[0].pending.total().is_zero()
        };
        let status = wait(&output, "settled", settled).await;
        if i == 1 {
            let error = &status.endpoints[0].last_error.as_ref().unwrap().message;
            assert!(error.ends_with(": UNKNOWN: never!"), "{error}");
        }
    }
    let status = output.status();
    let endpoint = &status.endpoints[0];
    assert_eq!(
        server.messages.lock().unwrap().len(),
        attempts_retried + 1 + parts_refused + tokens_refused + attempts_refused + 1
    );
    assert_eq!(
        (
            endpoint.delivered.points,
            endpoint.dropped[&Reason::Rejected].points
        ),
        (1 + 3, 2 + attempts_refused as u64 * 3)
    );
    assert!(status.balances());
    output.shutdown(DEADLINE).await;
}
