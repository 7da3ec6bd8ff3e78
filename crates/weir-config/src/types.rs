//! The types of settings that are more than text or a number.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use weir_rules::OriginPattern;

use crate::choices;
use crate::host::{Host, HostError};
use crate::setting::SettingType;
use crate::value::Scalar;

choices! {
    /// Framing of packets on TCP.
    pub enum Framing {
        /// Each packet follows its length in four bytes, the lowest first.
        Length: "length",
        /// Lines.
        Newline: "newline",
    }
}

choices! {
    pub enum EolTransport {
        Udp: "udp",
        Uds: "uds",
    }
}

choices! {
    pub enum Cardinality {
        None: "none",
        Low: "low",
        Orchestrator: "orchestrator" | "orch",
        High: "high",
    }
}

choices! {
    #[derive(PartialOrd, Ord, Hash)]
    pub enum HistogramAggregate {
        Max: "max",
        Min: "min",
        Median: "median",
        Avg: "avg",
        Sum: "sum",
        Count: "count",
    }
}

choices! {
    /// The requests of other machines that the admin server answers.
    #[derive(Default)]
    pub enum AdminRemote {
        /// Health, metrics and the books.
        #[default]
        Status: "status",
        /// Everything that only reads, apart from messages and profiles.
        Read: "read",
        /// Everything, with a token.
        Full: "full",
    }
}

choices! {
    pub enum Sandbox {
        /// As far as the kernel supports it.
        Auto: "auto",
        Off: "off",
    }
}

choices! {
    pub enum HistogramWeights {
        /// Weights keep their fractions.
        Exact: "exact",
        /// Weights are cut to whole numbers, as the Datadog Agent does.
        Agent: "agent",
    }
}

choices! {
    #[derive(PartialOrd, Ord)]
    pub enum LogLevel {
        Off: "off",
        Error: "error" | "critical",
        Warn: "warn" | "warning",
        Info: "info",
        Debug: "debug",
        Trace: "trace",
    }
}

impl HistogramAggregate {
    pub const ALL: [Self; 6] = [
        Self::Max,
        Self::Min,
        Self::Median,
        Self::Avg,
        Self::Sum,
        Self::Count,
    ];
}

/// A text of some form, and the type that it makes.
macro_rules! formed {
    ($name:ident, $parse:expr, $allowed:literal) => {
        impl Scalar for $name {
            const KIND: SettingType = SettingType::Checked {
                allowed: $allowed,
                check: |text| $parse(text).is_some(),
            };

            fn parse(_: &SettingType, text: &str) -> Option<Self> {
                $parse(text)
            }
        }
    };
}

/// Address to listen on: `host:port`, `[host]:port`, `*:port`, `:port` or `port`, with or without a scheme.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Empty: that of all addresses without one. `*`: every interface.
    host: String,
    port: u16,
}

formed!(
    Listen,
    Listen::parse,
    "an address such as 127.0.0.1:8125, [::1]:8125, '*:8125' for every interface, or a port alone, which `bind_host` completes"
);

impl Listen {
    fn parse(text: &str) -> Option<Self> {
        let text = text
            .strip_prefix("udp://")
            .or_else(|| text.strip_prefix("tcp://"))
            .or_else(|| text.strip_prefix("http://"))
            .unwrap_or(text);
        let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
        let host = match host.strip_prefix('[') {
            Some(inner) => inner
                .strip_suffix(']')
                .filter(|inner| inner.parse::<Ipv6Addr>().is_ok())?,
            None if host.contains(':') => return None,
            None => host,
        };
        let is_named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%');
        let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        (host == "*" || host.chars().all(is_named)).then_some(())?;
        is_port.then_some(())?;
        Some(Self {
            host: host.to_owned(),
            port: port.parse().ok()?,
        })
    }

    /// The address as it is written in `per_listener`, without the scheme.
    pub(crate) fn shown(&self) -> String {
        let (host, port) = (&self.host, self.port);
        if host.contains(':') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        }
    }

    /// The socket addresses to bind: for `localhost` one of each family, if the machine has both. None when it is off: the port 0 alone.
    pub(crate) fn addresses(
        &self,
        bind_host: &str,
        everywhere: bool,
        machine: &dyn Host,
    ) -> Result<Vec<SocketAddr>, HostError> {
        let mut found = Vec::from_iter(self.address(bind_host, everywhere, machine)?);
        let host = match self.host.as_str() {
            "" if everywhere => "*",
            "" => bind_host,
            host => host,
        };
        let is_local = weir_units::is_localhost(host);
        // The kernel would choose another port for each.
        if is_local && self.port != 0 && machine.has_ipv6_loopback() {
            found.push((Ipv6Addr::LOCALHOST, self.port).into());
        }
        Ok(found)
    }

    /// The first of them.
    fn address(
        &self,
        bind_host: &str,
        everywhere: bool,
        machine: &dyn Host,
    ) -> Result<Option<SocketAddr>, HostError> {
        let port = self.port;
        let host = match self.host.as_str() {
            "" if port == 0 => return Ok(None),
            "" if everywhere => "*",
            "" => bind_host,
            host => host,
        };
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = inner.unwrap_or(host);
        // No look-up for the names that every machine has: a start must not wait for a name server.
        let address: IpAddr = match host {
            host if host.is_empty() || weir_units::is_localhost(host) => Ipv4Addr::LOCALHOST.into(),
            // Every interface, of both families where the machine has both.
            "*" if machine.has_ipv6() => Ipv6Addr::UNSPECIFIED.into(),
            "*" => Ipv4Addr::UNSPECIFIED.into(),
            _ => match host.parse() {
                Ok(address) => address,
                Err(_) => return machine.resolve(host, port).map(Some),
            },
        };
        Ok(Some((address, port).into()))
    }
}

/// Address of the admin server. `None`: it is off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminAddress(pub(crate) Option<Listen>);

formed!(
    AdminAddress,
    AdminAddress::parse,
    "an address such as 127.0.0.1:8127, or off"
);

impl AdminAddress {
    fn parse(text: &str) -> Option<Self> {
        if text.is_empty() || text.eq_ignore_ascii_case("off") {
            return Some(Self(None));
        }
        // As the log shows it.
        let address = match text.strip_prefix("http://") {
            Some(address) => address.trim_end_matches('/'),
            None => text,
        };
        Listen::parse(address).map(|listen| Self(Some(listen)))
    }
}

/// The path of a Unix socket that the kernel can take: `sun_path` has 108 bytes, the last of them zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketPath(PathBuf);

formed!(
    SocketPath,
    SocketPath::parse,
    "an absolute path of at most 107 bytes, such as /run/weir/dsd.socket, or @name for an abstract socket"
);

impl SocketPath {
    fn parse(text: &str) -> Option<Self> {
        let path = text
            .strip_prefix("unixgram://")
            .or_else(|| text.strip_prefix("unix://"))
            .unwrap_or(text);
        let is_abstract = path.len() > 1 && path.starts_with('@');
        let fits = (path.starts_with('/') || is_abstract)
            && path.len() <= weir_units::UNIX_PATH_BYTES_MAX
            && !path.contains('\0');
        fits.then(|| Self(path.into()))
    }
}

impl std::ops::Deref for SocketPath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

/// Mode bits of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode(pub u32);

formed!(Mode, Mode::parse, "an octal file mode such as 0722");

impl Mode {
    fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("0o").unwrap_or(text);
        let mode = u32::from_str_radix(digits, 8).ok()?;
        (mode <= 0o777 && !digits.starts_with('+')).then_some(Self(mode))
    }
}

/// Whole percents, written as a number from 0 to 1, rounded as the suffix of the series says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percentile(pub u8);

formed!(Percentile, Percentile::parse, "a number from 0 to 1 such as 0.95");

impl Percentile {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let quantile: f64 = text.parse().ok()?;
        let percents = (0.0..=1.0)
            .contains(&quantile)
            .then_some(quantile * 100.0 + 0.5)?;
        Some(Self(percents as u8))
    }
}

/// A host name without a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName(pub String);

formed!(
    HostName,
    HostName::parse,
    "a host name without a port, such as weir.example.org"
);

impl HostName {
    fn parse(text: &str) -> Option<Self> {
        let is_label = |label: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
            (1..=63).contains(&label.len()) && label.chars().all(allowed)
        };
        let mut labels = text.strip_suffix('.').unwrap_or(text).split('.');
        (text.len() <= 253 && labels.all(is_label)).then(|| Self(text.to_owned()))
    }
}

formed!(
    OriginPattern,
    origin_pattern,
    "no_container, unknown, or a tag of containers such as kube_namespace:prod, image_name:shop/*, container_name:web-*, container_id:8fca07c6*"
);

fn origin_pattern(text: &str) -> Option<OriginPattern> {
    text.parse().ok()
}

/// The owner of the Unix socket files; `None`: that of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ownership {
    pub uid: Option<u32>,
    pub gid: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_modes() {
        let percentile = |text| Percentile::parse(text).map(|percentile| percentile.0);
        assert_eq!(percentile("0.299"), Some(30));
        assert_eq!(percentile("1"), Some(100));
        assert_eq!(percentile("0.05"), Some(5));
        for text in ["1.01", "-0.1", "nan", "x", "95"] {
            assert_eq!(percentile(text), None, "{text}");
        }
        assert_eq!(Mode::parse("0722"), Some(Mode(0o722)));
        assert_eq!(Mode::parse("0o600"), Some(Mode(0o600)));
        for text in ["", "9", "1000", "+7", "rw"] {
            assert_eq!(Mode::parse(text), None, "{text}");
        }
    }
}
