//! The Prometheus server's side of a scrape.

use super::{Reject, Shared, prometheus};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use std::io::Read;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// `http://host:port/path`.
#[derive(Clone, Debug)]
pub struct Target {
    authority: String,
    path: String,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        let rest = text
            .strip_prefix("http://")
            .ok_or_else(|| format!("{text:?}: http://host:port/path was expected"))?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if !authority.contains(':') {
            return Err(format!("{text:?}: no port"));
        }
        Ok(Target {
            authority: authority.to_owned(),
            path: if path.is_empty() { "/metrics" } else { path }.to_owned(),
        })
    }
}

/// Which exposition is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    Text,
    /// The delimited protobuf messages, which alone carry native histograms.
    Protobuf,
}

const PROTOBUF: &str = "application/vnd.google.protobuf";

/// Scrapes until `count` scrapes succeeded, or for ever. A scrape that fails is counted and tried again.
pub async fn run(
    shared: Arc<Shared>,
    target: Target,
    interval: Duration,
    format: Format,
    count: Option<u64>,
) {
    let mut done = 0;
    let mut ticks = tokio::time::interval(interval.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    while count.is_none_or(|count| done < count) {
        ticks.tick().await;
        match tokio::time::timeout(Duration::from_secs(10), once(&target, format)).await {
            Ok(Ok((records, bytes))) => {
                shared.note_packet("scrape", bytes);
                shared.accept("scrape", records);
                done += 1;
            }
            Ok(Err(reject)) => shared.note_bad("scrape", &reject),
            Err(_) => shared.note_bad("scrape", &Reject::new(504, "no answer within 10 s")),
        }
    }
}

async fn once(target: &Target, format: Format) -> Result<(Vec<super::Record>, usize), Reject> {
    let failed = |error: &dyn std::fmt::Display| Reject::new(502, format!("{}: {error}", target.authority));
    let stream = tokio::net::TcpStream::connect(&target.authority)
        .await
        .map_err(|error| failed(&error))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| failed(&error))?;
    let connection = tokio::spawn(connection);
    let accept = match format {
        Format::Text => "text/plain;version=0.0.4".to_owned(),
        Format::Protobuf => format!("{PROTOBUF};proto=io.prometheus.client.MetricFamily;encoding=delimited"),
    };
    let request = Request::get(&target.path)
        .header(header::HOST, &target.authority)
        .header(header::ACCEPT, accept)
        .header(header::ACCEPT_ENCODING, "gzip")
        .body(Empty::<Bytes>::new())
        .map_err(|error| failed(&error))?;
    let response = sender
        .send_request(request)
        .await
        .map_err(|error| failed(&error))?;
    let (parts, body) = response.into_parts();
    let body = body.collect().await.map_err(|error| failed(&error))?.to_bytes();
    connection.abort();
    if !parts.status.is_success() {
        return Err(Reject::new(
            parts.status.as_u16(),
            format!("the scrape was answered {}", parts.status),
        ));
    }
    let bytes = body.len();
    let text = |name| {
        parts
            .headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    };
    let body = if text(header::CONTENT_ENCODING) == "gzip" {
        let mut plain = Vec::new();
        flate2::read::MultiGzDecoder::new(&body[..])
            .read_to_end(&mut plain)
            .map_err(|error| failed(&error))?;
        plain.into()
    } else {
        body
    };
    let content_type = text(header::CONTENT_TYPE);
    let records = match (format, content_type.starts_with(PROTOBUF)) {
        (Format::Protobuf, true) => prometheus::delimited(&body)?,
        (Format::Text, false) => prometheus::text(&body)?,
        _ => return Err(Reject::new(415, format!("the scrape came as {content_type:?}"))),
    };
    Ok((records, bytes))
}
