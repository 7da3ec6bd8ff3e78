//! The Prometheus server's side of a scrape.

use super::{Record, Reject, Shared, prometheus};
use std::io::Read;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use weir_rig_base::http::{self, Url, UrlError};

/// `http://host:port/path`.
#[derive(Clone, Debug)]
pub struct Target(Url);

/// Why a text is not a [`Target`].
#[derive(Debug, thiserror::Error)]
pub enum ScrapeUrlError {
    #[error(transparent)]
    Url(#[from] UrlError),
    #[error("{0:?}: no port")]
    NoPort(String),
}

impl FromStr for Target {
    type Err = ScrapeUrlError;

    fn from_str(text: &str) -> Result<Target, ScrapeUrlError> {
        let url: Url = text.parse()?;
        if !url.authority.contains(':') {
            return Err(ScrapeUrlError::NoPort(text.to_owned()));
        }
        Ok(Target(url))
    }
}

/// The requested exposition format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    Text,
    /// Delimited protobuf messages, the only format with native histograms.
    Protobuf,
}

const PROTOBUF: &str = "application/vnd.google.protobuf";
const PATIENCE: Duration = Duration::from_secs(10);

/// Scrapes until `count` scrapes succeeded, or without limit. A scrape that fails is counted and tried again.
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
        let url = target.0.clone();
        match tokio::task::spawn_blocking(move || once(&url, format)).await {
            Ok(Ok((records, bytes))) => {
                shared.record_packet("scrape", bytes);
                shared.accept("scrape", records);
                done += 1;
            }
            Ok(Err(reject)) => shared.record_bad("scrape", &reject),
            // The runtime ends.
            Err(_) => return,
        }
    }
}

/// The records of one scrape, and how many bytes it had.
fn once(url: &Url, format: Format) -> Result<(Vec<Record>, usize), Reject> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::TimedOut => Reject::new(504, format!("no answer within {PATIENCE:?}")),
        _ => Reject::new(502, format!("{}: {error}", url.authority)),
    };
    let accept = match format {
        Format::Text => "Accept: text/plain;version=0.0.4".to_owned(),
        Format::Protobuf => {
            format!("Accept: {PROTOBUF};proto=io.prometheus.client.MetricFamily;encoding=delimited")
        }
    };
    let answer =
        http::get_with(url, "/metrics", &[&accept, "Accept-Encoding: gzip"], PATIENCE).map_err(failed)?;
    if !(200..300).contains(&answer.status) {
        let what = format!("the scrape was answered {}", answer.status);
        return Err(Reject::new(answer.status, what));
    }
    let body = match answer.header("content-encoding") {
        Some("gzip") => unzip(&answer.body).map_err(failed)?,
        _ => answer.body.clone(),
    };
    let content_type = answer.header("content-type").unwrap_or_default();
    let records = match (format, content_type.starts_with(PROTOBUF)) {
        (Format::Protobuf, true) => prometheus::delimited(&body)?,
        (Format::Text, false) => prometheus::text(&body)?,
        _ => return Err(Reject::new(415, format!("the scrape came as {content_type:?}"))),
    };
    Ok((records, answer.body.len()))
}

fn unzip(body: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut plain = Vec::new();
    flate2::read::MultiGzDecoder::new(body).read_to_end(&mut plain)?;
    Ok(plain)
}
