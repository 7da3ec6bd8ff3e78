//! Tries out where an output delivers to, the way the output would reach it, without delivering anything.

use std::path::PathBuf;
use std::time::Duration;

use reqwest::Method;
use reqwest::header::{DATE, HeaderMap};
use tokio::net::{UnixDatagram, UnixStream};
use weir_log::{Brokers, Connection, LogFacts, Obstacle};
use weir_units::Address;

use crate::StartError;
use crate::delivery::http_date;
use crate::http::{self, Http2, Response};
use crate::names::{connect_tcp, connect_udp};
use crate::settings::{DeliverySettings, OutputSettings};

/// However slow the network: a person waits for the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A client of brokers is asked before that: it says more than that nothing was answered.
pub(crate) const BROKERS_PATIENCE: Duration = Duration::from_secs(4);

/// Somewhere that an output delivers to.
pub struct Destination {
    /// Text for users, without secrets.
    pub label: String,
    pub route: Route,
}

/// The way to reach it.
pub enum Route {
    Http {
        url: String,
        headers: HeaderMap,
        delivery: Box<DeliverySettings>,
        is_http2: bool,
    },
    Tcp {
        host: String,
        port: u16,
    },
    Udp {
        host: String,
        port: u16,
    },
    UnixDatagram(PathBuf),
    UnixStream(PathBuf),
    Brokers(Box<Brokers>),
}

impl Destination {
    pub fn at(address: Address) -> Self {
        Destination {
            label: address.to_string(),
            route: match address {
                Address::Tcp { host, port } => Route::Tcp { host, port },
                Address::Udp { host, port } => Route::Udp { host, port },
                Address::UnixDatagram(path) => Route::UnixDatagram(path),
                Address::UnixStream(path) => Route::UnixStream(path),
            },
        }
    }

    /// The host whose name has to be known, with its port. Each broker is a destination of its own as well.
    pub fn host(&self) -> Option<(String, u16)> {
        match &self.route {
            Route::Http { url, .. } => host_of(url),
            Route::Tcp { host, port } | Route::Udp { host, port } => Some((host.clone(), *port)),
            Route::UnixDatagram(_) | Route::UnixStream(_) | Route::Brokers(_) => None,
        }
    }
}

/// Host and port of a URL.
pub fn host_of(url: &str) -> Option<(String, u16)> {
    let url = reqwest::Url::parse(url).ok()?;
    let host = url.host_str()?.trim_matches(['[', ']']).to_owned();
    Some((host, url.port_or_known_default()?))
}

/// Destination of an output. The error names the setting.
pub fn destinations(settings: &OutputSettings) -> Result<Vec<Destination>, StartError> {
    match settings {
        OutputSettings::Prometheus(_) => Ok(Vec::new()),
        OutputSettings::Delivered(delivered) => delivered.destinations(),
        OutputSettings::Relay(relay) => {
            let targets = relay.targets.iter();
            targets
                .map(|target| Ok(Destination::at(target.parse()?)))
                .collect()
        }
    }
}

/// Facts about a reachable destination.
#[derive(Debug, PartialEq, Eq)]
pub struct ProbeResult {
    pub found: String,
    /// Further facts from an answer.
    pub error: Option<ResponseError>,
    /// The clock of the other side, in Unix seconds.
    pub date: Option<i64>,
}

/// The error in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseError {
    KeyRefused,
    ProxyRefused,
    PathNotFound,
    ServerError,
    /// Brokers answer, but the TLS handshake fails.
    TlsFailed,
    NotAllowed,
    /// The topic does not exist, and it is unknown whether it can be created.
    NoTopic,
    /// Messages of the topic have their senders' timestamps.
    SenderTimestamps,
}

impl ProbeResult {
    fn found(found: impl Into<String>) -> Self {
        ProbeResult {
            found: found.into(),
            error: None,
            date: None,
        }
    }
}

/// Why it is not reached, in one line for users.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("nothing answered within {} s", PATIENCE.as_secs())]
    Late,
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Client(#[from] http::ClientError),
    #[error(transparent)]
    Request(#[from] http::RequestError),
    #[error("{0}")]
    Brokers(String),
}

/// Reaches it once.
pub async fn probe(destination: &Destination) -> Result<ProbeResult, ProbeError> {
    match tokio::time::timeout(PATIENCE, reach(&destination.route)).await {
        Ok(reached) => reached,
        Err(_) => Err(ProbeError::Late),
    }
}

async fn reach(route: &Route) -> Result<ProbeResult, ProbeError> {
    match route {
        Route::Http {
            url,
            headers,
            delivery,
            is_http2,
        } => request(url, headers.clone(), delivery, *is_http2).await,
        Route::Tcp { host, port } => {
            let stream = connect_tcp(host, *port).await?;
            let peer = stream.peer_addr()?;
            Ok(ProbeResult::found(format!("{peer} accepts connections")))
        }
        Route::Udp { host, port } => {
            connect_udp(host, *port).await?;
            Ok(ProbeResult::found(
                "there is a route; UDP does not confirm delivery",
            ))
        }
        Route::UnixDatagram(path) => {
            let socket = UnixDatagram::unbound()?;
            socket.connect(path)?;
            Ok(ProbeResult::found("a process receives there"))
        }
        Route::UnixStream(path) => {
            UnixStream::connect(path).await?;
            Ok(ProbeResult::found("a process accepts connections there"))
        }
        Route::Brokers(brokers) => probe_brokers((**brokers).clone()).await,
    }
}

/// Asks brokers for themselves and the topic. Their client waits on a thread of its own.
async fn probe_brokers(brokers: Brokers) -> Result<ProbeResult, ProbeError> {
    let topic = brokers.topic.clone();
    let look = tokio::task::spawn_blocking(move || weir_log::examine(&Connection::Kafka(brokers)));
    let looked = look.await.map_err(std::io::Error::from)?;
    let error = match looked {
        Ok(seen) => return Ok(topic_result(&topic, &seen)),
        Err(error) => (Obstacle::of(&error), error.to_string()),
    };
    let error_of = |error, found| {
        Ok(ProbeResult {
            found,
            error: Some(error),
            date: None,
        })
    };
    match error {
        (Obstacle::Address, error) => Err(ProbeError::Brokers(error)),
        (Obstacle::Tls, error) => error_of(ResponseError::TlsFailed, error),
        (Obstacle::Login, error) => error_of(ResponseError::KeyRefused, error),
        (Obstacle::Rights, error) => error_of(ResponseError::NotAllowed, error),
    }
}

fn topic_result(topic: &str, seen: &LogFacts) -> ProbeResult {
    let (topic_is, error) = match (seen.partitions, seen.is_stamped) {
        (None, _) => ("there is no topic".to_owned(), Some(ResponseError::NoTopic)),
        (Some(_), Some(false)) => (
            "without message.timestamp.type=LogAppendTime: the topic".to_owned(),
            Some(ResponseError::SenderTimestamps),
        ),
        (Some(partitions), _) => (
            format!(
                "{} in topic",
                weir_units::counted(partitions.into(), "partitions")
            ),
            None,
        ),
    };
    let brokers = match seen.brokers {
        1 => "1 broker".to_owned(),
        brokers => format!("{brokers} brokers"),
    };
    ProbeResult {
        found: format!("{brokers}; {topic_is} {topic}"),
        error,
        date: None,
    }
}

/// A request that delivers nothing. That its method is not allowed is an answer too.
async fn request(
    url: &str,
    headers: HeaderMap,
    delivery: &DeliverySettings,
    is_http2: bool,
) -> Result<ProbeResult, ProbeError> {
    let agent = concat!("weir/", env!("CARGO_PKG_VERSION"));
    let body = bytes::Bytes::new();
    let answer = if is_http2 {
        let http2 = Http2::new(delivery, agent)?;
        let call = http2.call()?;
        http::send(&call.client, Method::GET, url, headers, body, 0).await
    } else {
        let client = http::client(delivery, agent)?;
        http::send(&client, Method::GET, url, headers, body, 0).await
    };
    Ok(response_result(&answer?))
}

fn response_result(answer: &Response) -> ProbeResult {
    let error = match answer.status {
        401 | 403 => Some(ResponseError::KeyRefused),
        407 => Some(ResponseError::ProxyRefused),
        404 => Some(ResponseError::PathNotFound),
        500.. => Some(ResponseError::ServerError),
        _ => None,
    };
    let date = answer.headers.get(DATE).and_then(|date| date.to_str().ok());
    let message = match answer.message.as_str() {
        "" => String::new(),
        message => format!(": {message}"),
    };
    ProbeResult {
        found: format!("it answers with {}{message}", answer.status),
        error,
        date: date.and_then(http_date),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_urls() {
        for (url, host) in [
            (
                "https://app.datadoghq.com/api/v1/validate",
                Some(("app.datadoghq.com", 443)),
            ),
            ("http://user:pass@[::1]:9090/x", Some(("::1", 9090))),
            ("no url", None),
        ] {
            assert_eq!(host_of(url), host.map(|(host, port)| (host.to_owned(), port)));
        }
    }
}
