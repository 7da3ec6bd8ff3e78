//! The form in which an endpoint takes series: columns or not. Payloads of columns are rewritten for an endpoint that does not take them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use weir_columns::payload;

use super::encode::{RequestKind, parse_route, route};
use super::series;
use crate::assemble::{Assembler, Frame};
use crate::compress::decompressed;
use crate::delivery::{Class, Encoded, Payload};
use crate::http;
use crate::settings::{Compression, DatadogSettings, EndpointFormat, SeriesFormat};

/// Domains of Datadog's sites.
const SITES: &[&str] = &[
    "datadoghq.com",
    "datadoghq.eu",
    "ddog-gov.com",
    "datad0g.com",
    "datad0g.eu",
];
/// Payloads that are remembered because a part of them was delivered.
const PARTLY_MAX: usize = 1000;

/// The number of an output's endpoints that take columns.
#[derive(Clone, Default)]
pub struct Forms(Arc<AtomicUsize>);

impl Forms {
    /// One does, and nothing changes that.
    pub fn of_one() -> Forms {
        Forms(Arc::new(AtomicUsize::new(1)))
    }

    /// Whether one does.
    pub fn has_columns(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }
}

/// The form of one endpoint.
pub struct Form {
    forms: Forms,
    takes_columns: AtomicBool,
    /// It may turn out not to take them.
    may_switch: bool,
    level: i32,
    /// By digest: parts of a rewritten payload that were delivered while a later one was not.
    delivered: Mutex<HashMap<u128, usize>>,
}

impl Form {
    pub fn of(settings: &DatadogSettings, base: &str, forms: &Forms) -> Form {
        let own = settings
            .form
            .series_format_of
            .iter()
            .find(|(url, _)| url.trim_end_matches('/') == base);
        let wanted = match (own, settings.form.series_format) {
            (Some((_, format)), _) => *format,
            (None, SeriesFormat::Auto) => EndpointFormat::Auto,
            (None, SeriesFormat::V3) => EndpointFormat::V3,
            (None, SeriesFormat::V2 | SeriesFormat::V2Json | SeriesFormat::V1) => EndpointFormat::V2,
        };
        let is_compressed = matches!(settings.form.compression, Compression::Zstd | Compression::Gzip);
        let takes_columns = match wanted {
            EndpointFormat::Auto => is_compressed && is_site(base),
            EndpointFormat::V3 => true,
            EndpointFormat::V2 => false,
        };
        forms.0.fetch_add(usize::from(takes_columns), Ordering::AcqRel);
        Form {
            forms: forms.clone(),
            takes_columns: AtomicBool::new(takes_columns),
            may_switch: takes_columns && wanted == EndpointFormat::Auto,
            level: settings.form.compression_level,
            delivered: Mutex::default(),
        }
    }

    pub fn takes_columns(&self) -> bool {
        self.takes_columns.load(Ordering::Acquire)
    }

    /// The endpoint has answered that it does not know columns. Returns whether it gets another form from now on, and says so the first time.
    pub fn refuse_columns(&self, endpoint: &str, status: u16) -> bool {
        if self.may_switch && self.takes_columns.swap(false, Ordering::AcqRel) {
            self.forms.0.fetch_sub(1, Ordering::AcqRel);
            tracing::warn!(
                endpoint = http::shown_url(endpoint),
                status,
                "the intake does not take series as v3; it gets v2 from now on"
            );
        }
        self.may_switch
    }

    /// For the status; `None` for an endpoint that never got columns.
    pub fn shown(&self) -> Option<&'static str> {
        match (self.takes_columns(), self.may_switch) {
            (true, _) => Some("v3"),
            (false, true) => Some("v2, as the intake does not take v3"),
            (false, false) => None,
        }
    }

    /// The payload as v2: one payload or several, as that form is longer. `None`: it is not one of columns.
    pub fn rewritten(&self, payload: &Payload) -> Option<Vec<Payload>> {
        let (_, compression) = parse_route(payload.route)?;
        let plain = decompressed(compression, &payload.body)?;
        let read = payload::Payload::read(&plain).ok()?;
        let kind = RequestKind::SeriesV2;
        let mut assembler = Assembler::new(
            route(kind, compression),
            Class::Points,
            kind.limits(payload.count.max(1) as usize),
            Frame::default(),
            (compression, self.level),
        );
        let (mut out, mut item) = (Encoded::default(), Vec::new());
        for series in read.series() {
            item.clear();
            series::protobuf_of_columns(&mut item, &series);
            assembler.add(&item, series.points().len() as u32, &mut out);
        }
        assembler.finish(&mut out);
        let payloads = out.payloads.into_iter().map(|draft| Payload {
            route: draft.route,
            count: draft.count,
            body: draft.body.into(),
            ..payload.clone()
        });
        Some(payloads.collect())
    }

    /// Parts of a rewritten payload that an earlier attempt has delivered.
    pub fn delivered(&self, digest: u128) -> usize {
        let delivered = self.delivered.lock().unwrap_or_else(PoisonError::into_inner);
        delivered.get(&digest).copied().unwrap_or(0)
    }

    /// So many parts have been delivered; zero: it is finished with.
    pub fn set_delivered(&self, digest: u128, parts: usize) {
        let mut delivered = self.delivered.lock().unwrap_or_else(PoisonError::into_inner);
        if parts == 0 {
            delivered.remove(&digest);
            return;
        }
        if delivered.len() >= PARTLY_MAX && !delivered.contains_key(&digest) {
            // Payloads that were given up since.
            delivered.clear();
        }
        delivered.insert(digest, parts);
    }
}

/// Whether a base URL is one of Datadog's sites.
fn is_site(base: &str) -> bool {
    let shown = http::shown_url(base);
    let Some((_, rest)) = shown.split_once("://") else {
        return false;
    };
    let authority = rest.split('/').next().unwrap_or_default();
    let host = authority
        .split(':')
        .next()
        .unwrap_or_default()
        .trim_end_matches('.');
    let host = host.to_ascii_lowercase();
    SITES.iter().any(|site| {
        host.strip_suffix(site)
            .is_some_and(|before| before.is_empty() || before.ends_with('.'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_of_datadog() {
        for (url, expected) in [
            ("https://app.datadoghq.com", true),
            ("https://app.us5.datadoghq.com", true),
            ("https://APP.datadoghq.eu.:443/path", true),
            ("https://7-50-0-app.agent.ddog-gov.com", true),
            ("https://user:datadoghq.com@example.com", false),
            ("https://example.com/datadoghq.com", false),
            ("https://notdatadoghq.com", false),
            ("https://datadoghq.com.example.com", false),
            ("http://127.0.0.1:8080", false),
            ("http://[::1]:8080", false),
        ] {
            assert_eq!(is_site(url), expected, "{url}");
        }
    }
}
