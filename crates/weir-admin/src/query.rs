//! The query string of a URL.

use std::borrow::Cow;
use std::time::Duration;

use hyper::StatusCode;

use super::server::HttpError;

/// Names and values, decoded on access.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a>(pub &'a str);

impl<'a> Query<'a> {
    fn pairs(self) -> impl Iterator<Item = (Cow<'a, str>, Cow<'a, str>)> {
        form_urlencoded::parse(self.0.as_bytes())
    }

    /// The last value of that name.
    pub fn text(self, name: &str) -> Result<Option<String>, HttpError> {
        let Some((_, text)) = self.pairs().filter(|(key, _)| key == name).last() else {
            return Ok(None);
        };
        // Decoding replaces invalid UTF-8 with this character.
        if text.contains('\u{fffd}') {
            return Err(bad(format!("{name} is not percent-encoded UTF-8")));
        }
        Ok(Some(text.into_owned()))
    }

    /// Every value of that name.
    pub fn all(self, name: &str) -> Vec<String> {
        let values = self.pairs().filter(|(key, _)| key == name);
        values.map(|(_, value)| value.into_owned()).collect()
    }

    /// Every value of that name, split at commas.
    pub fn list(self, name: &str) -> Vec<String> {
        let values = self.all(name);
        let parts = values.iter().flat_map(|value| value.split(','));
        parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }

    pub fn number(self, name: &str, default: u64, min: u64, max: u64) -> Result<u64, HttpError> {
        let Some(text) = self.text(name)? else {
            return Ok(default);
        };
        let number = text.parse().ok().filter(|value| (min..=max).contains(value));
        number.ok_or_else(|| bad(format!("{name} must be a whole number from {min} to {max}")))
    }

    /// Unix seconds, or `-15m`: this long before `now`.
    pub fn time(self, name: &str, now: i64) -> Result<Option<i64>, HttpError> {
        let Some(text) = self.text(name)? else {
            return Ok(None);
        };
        let before = |ago: Duration| now - ago.as_secs() as i64;
        let time = match text.strip_prefix('-') {
            Some(ago) => weir_units::parse_duration_or_seconds(ago).ok().map(before),
            None => text.parse().ok().filter(|time| *time >= 0),
        };
        let wrong = || {
            bad(format!(
                "{name} must be Unix seconds, or a time before now such as -15m"
            ))
        };
        time.map(Some).ok_or_else(wrong)
    }
}

pub fn bad(message: impl Into<String>) -> HttpError {
    HttpError(StatusCode::BAD_REQUEST, message.into())
}
