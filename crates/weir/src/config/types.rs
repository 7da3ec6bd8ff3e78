//! The types of resolved settings, and the checks that the table applies to texts.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use serde::Deserialize;

/// How TCP carries packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Framing {
    /// Each packet follows its length in four bytes, the lowest first.
    Length,
    /// Lines.
    Newline,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EolTransport {
    Udp,
    Uds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cardinality {
    None,
    Low,
    #[serde(alias = "orch")]
    Orchestrator,
    High,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HistogramAggregate {
    Max,
    Min,
    Median,
    Avg,
    Sum,
    Count,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sandbox {
    /// As far as the kernel offers it.
    Auto,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HistogramWeights {
    /// Weights keep their fractions.
    Exact,
    /// Weights are cut to whole numbers, as the Datadog Agent does.
    Agent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    Off,
    #[serde(alias = "critical")]
    Error,
    #[serde(alias = "warning")]
    Warn,
    Info,
    Debug,
    Trace,
}

/// Who owns the Unix socket files; `None` leaves it to the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ownership {
    pub uid: Option<u32>,
    pub gid: Option<u32>,
}

impl HistogramAggregate {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Max => "max",
            Self::Min => "min",
            Self::Median => "median",
            Self::Avg => "avg",
            Self::Sum => "sum",
            Self::Count => "count",
        }
    }
}

/// `host:port`, `[host]:port`, `:port` or `port`, without scheme.
fn split_host(text: &str) -> Option<(&str, u16)> {
    let (host, port) = match text.rsplit_once(':') {
        None => ("", text),
        Some((host, port)) => (host, port),
    };
    let host = match host.strip_prefix('[') {
        Some(inner) => inner
            .strip_suffix(']')
            .filter(|inner| inner.parse::<Ipv6Addr>().is_ok())?,
        None if host.contains(':') => return None,
        None => host,
    };
    let named = host
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%'));
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    (named && digits).then(|| port.parse().ok().map(|port| (host, port)))?
}

fn without_scheme(text: &str) -> &str {
    text.strip_prefix("udp://")
        .or_else(|| text.strip_prefix("tcp://"))
        .unwrap_or(text)
}

pub(super) fn is_address(text: &str) -> bool {
    split_host(without_scheme(text)).is_some()
}

pub(super) fn is_off(text: &str) -> bool {
    text.is_empty() || text.eq_ignore_ascii_case("off")
}

pub(super) fn is_admin_address_or_off(text: &str) -> bool {
    is_off(text) || is_address(admin_address(text))
}

/// An address of the admin server without what the log shows before it.
pub(super) fn admin_address(text: &str) -> &str {
    match text.strip_prefix("http://") {
        Some(address) => address.trim_end_matches('/'),
        None => text,
    }
}

pub(super) fn is_network(text: &str) -> bool {
    text.parse::<weir_listener::Network>().is_ok()
}

pub(super) fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        (1..=63).contains(&label.len()) && label.chars().all(allowed)
    };
    text.len() <= 253 && text.strip_suffix('.').unwrap_or(text).split('.').all(is_label)
}

pub(super) fn is_origin_pattern(text: &str) -> bool {
    text.parse::<weir_origin::OriginPattern>().is_ok()
}

/// A socket path that the kernel can take: `sun_path` has 108 bytes, the last of them zero.
pub(super) fn is_socket_path(text: &str) -> bool {
    let path = socket_path(text);
    path.starts_with('/') && path.len() <= 107 && !path.contains('\0')
}

pub(super) fn socket_path(text: &str) -> &str {
    text.strip_prefix("unixgram://")
        .or_else(|| text.strip_prefix("unix://"))
        .unwrap_or(text)
}

pub(super) fn is_mode(text: &str) -> bool {
    mode(text).is_some()
}

pub(super) fn mode(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("0o").unwrap_or(text);
    let mode = u32::from_str_radix(digits, 8).ok()?;
    (mode <= 0o777 && !digits.starts_with('+')).then_some(mode)
}

pub(super) fn is_percentile(text: &str) -> bool {
    percentile(text).is_some()
}

/// Whole percents, rounded as the suffix of the series says it.
pub(super) fn percentile(text: &str) -> Option<u8> {
    let quantile: f64 = text.parse().ok()?;
    (0.0..=1.0)
        .contains(&quantile)
        .then_some((quantile * 100.0 + 0.5) as u8)
}

/// The socket address to bind for a text that [`is_address`] accepted. `None` when it is off: the port 0 alone.
pub(super) fn listen_address(
    text: &str,
    default_host: &str,
    everywhere: bool,
    resolve_names: bool,
) -> Result<Option<SocketAddr>, String> {
    let Some((host, port)) = split_host(without_scheme(text)) else {
        return Err(format!("{text:?} is not an address"));
    };
    if host.is_empty() {
        if port == 0 {
            return Ok(None);
        }
        if everywhere {
            return Ok(Some(wildcard(port)));
        }
    }
    let host = if host.is_empty() { default_host } else { host };
    let host = host
        .strip_prefix('[')
        .and_then(|inner| inner.strip_suffix(']'))
        .unwrap_or(host);
    // No look-up for the names that every machine has: a start must not wait for a name server.
    match host {
        "" | "localhost" => return Ok(Some((Ipv4Addr::LOCALHOST, port).into())),
        "*" => return Ok(Some(wildcard(port))),
        _ => {}
    }
    if let Ok(address) = host.parse::<std::net::IpAddr>() {
        return Ok(Some((address, port).into()));
    }
    if !resolve_names {
        return Err(format!(
            "host {host:?} is not a number, and names are not resolved here"
        ));
    }
    let found = (host, port)
        .to_socket_addrs()
        .map_err(|error| format!("host {host:?} cannot be resolved: {error}"))?;
    let found: Vec<SocketAddr> = found.collect();
    let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
    first
        .copied()
        .map(Some)
        .ok_or_else(|| format!("host {host:?} has no address"))
}

/// Every interface, of both families where the machine has both.
fn wildcard(port: u16) -> SocketAddr {
    if std::path::Path::new("/proc/net/if_inet6").exists() {
        (Ipv6Addr::UNSPECIFIED, port).into()
    } else {
        (Ipv4Addr::UNSPECIFIED, port).into()
    }
}

/// A user or group id, by number or by the name that `file` (`/etc/passwd` or `/etc/group`) lists.
pub(super) fn account(text: &str, file: &str) -> Result<Option<u32>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    if let Ok(id) = text.parse() {
        return Ok(Some(id));
    }
    let listed = std::fs::read_to_string(file).map_err(|error| format!("{file} cannot be read: {error}"))?;
    let id = listed.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(text))
            .then(|| fields.nth(1))
            .flatten()?
            .parse()
            .ok()
    });
    id.map(Some)
        .ok_or_else(|| format!("{text:?} is not in {file}; write a name from there, or a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let listen = |text: &str| {
            listen_address(text, "127.0.0.1", false, false)
                .unwrap()
                .map(|a| a.to_string())
        };
        for (text, expect) in [
            ("8125", Some("127.0.0.1:8125")),
            (":8125", Some("127.0.0.1:8125")),
            ("0", None),
            ("127.0.0.1:0", Some("127.0.0.1:0")),
            ("udp://[::1]:1", Some("[::1]:1")),
            ("localhost:5", Some("127.0.0.1:5")),
        ] {
            assert!(is_address(text), "{text}");
            assert_eq!(listen(text).as_deref(), expect, "{text}");
        }
        for text in [
            "",
            "x",
            "1:2:3",
            "[::1",
            "[x]:1",
            "host:70000",
            "host:-1",
            "a b:1",
            "host:",
            "udp://",
        ] {
            assert!(!is_address(text), "{text}");
        }
        let everywhere = listen_address("8125", "127.0.0.1", true, false).unwrap().unwrap();
        assert!(everywhere.ip().is_unspecified());
        assert_eq!(
            listen_address("10.0.0.1:1", "127.0.0.1", true, false)
                .unwrap()
                .unwrap()
                .to_string(),
            "10.0.0.1:1"
        );
    }

    #[test]
    fn percentiles_and_modes() {
        assert_eq!(percentile("0.299"), Some(30));
        assert_eq!(percentile("1"), Some(100));
        assert_eq!(percentile("0.05"), Some(5));
        for text in ["1.01", "-0.1", "nan", "x", "95"] {
            assert_eq!(percentile(text), None, "{text}");
        }
        assert_eq!(mode("0722"), Some(0o722));
        assert_eq!(mode("0o600"), Some(0o600));
        for text in ["", "9", "1000", "+7", "rw"] {
            assert_eq!(mode(text), None, "{text}");
        }
    }
}
