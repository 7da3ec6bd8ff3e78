//! The parameters of `/api/v1/tail` and `/api/v1/capture`.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;

use super::query::{Query, bad};
use super::server::HttpError;
use crate::streams::{Permit, Pieces, TooManyStreams};
use crate::tap::Taps;
use crate::tap::capture::{self, BYTES_DEFAULT, CaptureRequest};
use crate::tap::message::MessageFilter;
use crate::tap::tail::{self, RATE_MAX, TailRequest};

pub const TAIL: &str = "/api/v1/tail";
pub const CAPTURE: &str = "/api/v1/capture";

/// Maximum length of a pattern, and maximum number of tags.
const PATTERN_BYTES_MAX: usize = 1024;
const TAGS_MAX: usize = 32;

pub fn tail(taps: Option<Arc<Taps>>, query: Query<'_>) -> Result<Pieces, HttpError> {
    let taps = allowed(taps)?;
    let mut wanted = wanted(query)?;
    wanted.rejected_only = match query.text("verdict")?.as_deref() {
        None | Some("") => false,
        Some("rejected") => true,
        Some(other) => {
            return Err(bad(format!(
                "verdict: {other:?} is not allowed; the only value is rejected"
            )));
        }
    };
    let rate = query.number("rate", RATE_MAX, 1, RATE_MAX)?;
    tail::start(&taps, TailRequest { wanted, rate }, permit(&taps)?).map_err(no_thread)
}

pub fn capture(taps: Option<Arc<Taps>>, query: Query<'_>) -> Result<Pieces, HttpError> {
    let taps = allowed(taps)?;
    let request = CaptureRequest {
        wanted: wanted(query)?,
        duration: duration(query)?,
        bytes_max: query.number("bytes", BYTES_DEFAULT, 1, u64::MAX)?,
    };
    let pieces = capture::start(&taps, request, permit(&taps)?).map_err(no_thread)?;
    pieces.ok_or_else(|| {
        HttpError(
            StatusCode::CONFLICT,
            "another capture is running; one runs at a time".to_owned(),
        )
    })
}

fn allowed(taps: Option<Arc<Taps>>) -> Result<Arc<Taps>, HttpError> {
    let reason = "the agent does not show messages: admin_payloads is false";
    taps.ok_or_else(|| HttpError(StatusCode::FORBIDDEN, reason.to_owned()))
}

fn permit(taps: &Taps) -> Result<Permit, HttpError> {
    let refused = |reason: TooManyStreams| HttpError(StatusCode::SERVICE_UNAVAILABLE, reason.to_string());
    taps.streams.open().map_err(refused)
}

fn no_thread(error: std::io::Error) -> HttpError {
    HttpError(
        StatusCode::SERVICE_UNAVAILABLE,
        format!("a thread cannot be started: {error}"),
    )
}

fn wanted(query: Query<'_>) -> Result<MessageFilter, HttpError> {
    let pattern = query.text("match")?.unwrap_or_default();
    if pattern.len() > PATTERN_BYTES_MAX {
        return Err(bad(format!("match is longer than {PATTERN_BYTES_MAX} bytes")));
    }
    let tags = query.all("where");
    if tags.len() > TAGS_MAX {
        return Err(bad(format!("where is given more than {TAGS_MAX} times")));
    }
    let tag = |text: String| match text.split_once(':') {
        Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
        None => (text, None),
    };
    Ok(MessageFilter {
        pattern,
        tags: tags.into_iter().filter(|tag| !tag.is_empty()).map(tag).collect(),
        rejected_only: false,
    })
}

fn duration(query: Query<'_>) -> Result<Duration, HttpError> {
    let text = query.text("for")?.unwrap_or_else(|| "30s".to_owned());
    let most = Duration::from_secs(capture::SECONDS_MAX);
    let duration = weir_units::parse_duration_or_seconds(&text).ok();
    let fits = |duration: &Duration| !duration.is_zero() && *duration <= most;
    duration
        .filter(fits)
        .ok_or_else(|| bad("for must be a duration up to 10m, such as 30s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_parameters_are_refused_and_so_is_everything_where_payloads_are_hidden() {
        let taps = Taps::double();
        for (query, part) in [
            ("rate=101", "from 1 to 100"),
            ("rate=0", "from 1 to 100"),
            ("verdict=dropped", "the only value is rejected"),
            ("match=%ff", "not percent-encoded UTF-8"),
        ] {
            let HttpError(status, said) = tail(Some(taps.clone()), Query(query)).unwrap_err();
            assert!(
                status == StatusCode::BAD_REQUEST && said.contains(part),
                "{query}: {said}"
            );
        }
        for open in [tail, capture] {
            let HttpError(status, said) = open(None, Query("")).unwrap_err();
            assert!(status == StatusCode::FORBIDDEN && said.contains("admin_payloads is false"));
        }
    }
}
