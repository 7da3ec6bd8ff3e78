//! Negotiation of the exposition format.

/// An exposition format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus's text format, version 0.0.4.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Length-delimited `io.prometheus.client.MetricFamily`, the only one that has native histograms.
    Protobuf,
}

impl Format {
    /// The format that an `Accept` header wants most; text for requests without a preference or with unknown ones.
    pub fn of_accept(accept: &str) -> Format {
        let mut best = (0.0, Format::Text);
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default().to_ascii_lowercase();
            let (mut quality, mut version, mut proto, mut encoding) = (1.0, "", "", "");
            for part in parts {
                let (name, value) = part.split_once('=').unwrap_or((part, ""));
                let value = value.trim().trim_matches('"');
                match name.trim() {
                    "q" => quality = value.parse().unwrap_or(0.0),
                    "version" => version = value,
                    "proto" => proto = value,
                    "encoding" => encoding = value,
                    _ => {}
                }
            }
            let format = match media.as_str() {
                "application/vnd.google.protobuf"
                    if proto == "io.prometheus.client.MetricFamily" && encoding == "delimited" =>
                {
                    Format::Protobuf
                }
                "application/openmetrics-text" if matches!(version, "" | "1.0.0") => Format::OpenMetrics,
                "text/plain" if matches!(version, "" | "0.0.4") => Format::Text,
                "text/*" | "*/*" => Format::Text,
                _ => continue,
            };
            if quality > best.0 {
                best = (quality, format);
            }
        }
        best.1
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_headers_of_scrapers() {
        let openmetrics = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let native = format!(
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,{}",
            openmetrics.replacen("1.0.0", "1.0.0;q=0.8", 1)
        );
        for (accept, expected) in [
            ("", Format::Text),
            ("*/*", Format::Text),
            ("text/html,application/xhtml+xml;q=0.9", Format::Text),
            (
                "application/openmetrics-text; version=\"1.0.0\"; charset=utf-8",
                Format::OpenMetrics,
            ),
            (
                "application/openmetrics-text;version=2.0.0,text/plain;q=0.1",
                Format::Text,
            ),
            (
                "application/openmetrics-text;q=0.3,text/plain;q=0.5",
                Format::Text,
            ),
            (
                "application/vnd.google.protobuf;proto=other;encoding=delimited",
                Format::Text,
            ),
            ("application/openmetrics-text;q=x", Format::Text),
            (openmetrics, Format::OpenMetrics),
            (&native, Format::Protobuf),
        ] {
            assert_eq!(Format::of_accept(accept), expected, "{accept}");
        }
    }
}
