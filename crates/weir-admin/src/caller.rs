//! Refuses requests by their source: a web page in the operator's browser can reach every address that the browser can, including loopback.
//!
//! * A page whose own name resolves to this machine (DNS rebinding) would have the same origin and could read every answer. The browser
//!   sends that name as `Host`.
//! * A page of another site cannot read answers, but it can send requests. Requests that change something need a header that a form cannot
//!   send, and `Origin` and `Sec-Fetch-Site` must not name another site.

use std::net::IpAddr;

use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Request, StatusCode, Version};
use weir_config::HostName;

use super::server::HttpError;
use weir_system::logging::printable;

/// Requests that change something need this header, with any value. A form cannot send it, and a script of another site only after a
/// preflight request, which is refused.
pub const REQUEST_HEADER: &str = "X-Weir-Request";

/// Allowed hosts besides addresses and `localhost`.
#[derive(Clone, Debug, Default)]
pub struct Hosts(Vec<String>);

impl Hosts {
    pub fn new(names: &[HostName]) -> Self {
        Self(names.iter().map(|name| plain(&name.0)).collect())
    }

    /// # Errors
    ///
    /// When a host that the request names is not allowed, or a request of HTTP/1.1 names none. Browsers always name one.
    pub fn check<B>(&self, request: &Request<B>) -> Result<(), HttpError> {
        let refuse = |message: String| Err(HttpError(StatusCode::BAD_REQUEST, message));
        let mut named = request.headers().get_all(header::HOST).iter();
        let host = named.next();
        if named.next().is_some() {
            return refuse("the request has several Host headers".to_owned());
        }
        if host.is_none() && request.version() == Version::HTTP_11 {
            return refuse("the request has no Host header".to_owned());
        }
        let host = host.map(HeaderValue::as_bytes);
        let target = request
            .uri()
            .authority()
            .map(|authority| authority.as_str().as_bytes());
        host.into_iter()
            .chain(target)
            .try_for_each(|host| self.allow(host))
    }

    fn allow(&self, host: &[u8]) -> Result<(), HttpError> {
        let name = std::str::from_utf8(host).ok().and_then(without_port).map(plain);
        let allowed = name.is_some_and(|name| {
            name == "localhost" || name.parse::<IpAddr>().is_ok() || self.0.contains(&name)
        });
        if allowed {
            return Ok(());
        }
        Err(HttpError(
            StatusCode::FORBIDDEN,
            format!(
                "the host {} is neither an IP address nor localhost nor in admin_hosts",
                printable(host)
            ),
        ))
    }
}

/// # Errors
///
/// When the headers say that a page of another origin sent the request.
pub fn check_site(headers: &HeaderMap) -> Result<(), HttpError> {
    for site in headers.get_all("sec-fetch-site") {
        // `none`: typed by the user.
        if site != "same-origin" && site != "none" {
            return Err(foreign("Sec-Fetch-Site", site));
        }
    }
    let own = headers.get(header::HOST).map(HeaderValue::as_bytes);
    for origin in headers.get_all(header::ORIGIN) {
        let text = origin.as_bytes();
        let authority = text
            .strip_prefix(b"http://")
            .or_else(|| text.strip_prefix(b"https://"));
        // A client without Host is not a browser, and has no reason to send an Origin.
        let same = authority.zip(own).is_some_and(|(a, b)| a.eq_ignore_ascii_case(b));
        if !same {
            return Err(foreign("Origin", origin));
        }
    }
    Ok(())
}

/// # Errors
///
/// When a page of another site may have sent a request that changes something.
pub fn check_change(headers: &HeaderMap) -> Result<(), HttpError> {
    check_site(headers)?;
    if headers.contains_key(REQUEST_HEADER) {
        return Ok(());
    }
    Err(HttpError(
        StatusCode::FORBIDDEN,
        format!(
            "the header {REQUEST_HEADER} is missing, which no web page of another site can send: \
             curl -X POST -H '{REQUEST_HEADER}: 1' ..."
        ),
    ))
}

fn foreign(name: &str, value: &HeaderValue) -> HttpError {
    HttpError(
        StatusCode::FORBIDDEN,
        format!("{name} names another site: {}", printable(value.as_bytes())),
    )
}

/// Host names ignore case and a final dot.
fn plain(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// The name or address in `name`, `name:8127`, `[::1]` or `[::1]:8127`.
fn without_port(host: &str) -> Option<&str> {
    let (name, rest) = match host.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once(']')?,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let port = rest.strip_prefix(':').unwrap_or(rest);
    let is_port = rest.is_empty() || port.parse::<u16>().is_ok() && rest.len() > port.len();
    is_port.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(host: &str) -> bool {
        let hosts = Hosts::new(&[HostName("Weir.Example.org.".to_owned())]);
        let request = Request::builder().header("host", host).body(()).unwrap();
        hosts.check(&request).is_ok()
    }

    #[test]
    fn addresses_localhost_and_configured_names_are_hosts_and_nothing_else_is() {
        for good in [
            "127.0.0.1",
            "127.0.0.1:8127",
            "10.1.2.3:80",
            "[::1]",
            "[::1]:8127",
            "[fe80::1]:1",
            "localhost",
            "LocalHost.:8127",
            "weir.example.org",
            "WEIR.example.org.:8127",
        ] {
            assert!(check(good), "{good}");
        }
        for bad in [
            "",
            "evil.example",
            "evil.example:8127",
            "localhost.evil.example",
            "weir.example.org.evil.example",
            "evil.example#127.0.0.1",
            "127.0.0.1.evil.example",
            "user@127.0.0.1",
            "127.0.0.1:x",
            "127.0.0.1:80:80",
            "127.0.0.1:99999",
            "[::1",
            "[::1]8127",
            "[evil.example]:8127",
            "::1",
            "0x7f.1",
        ] {
            assert!(!check(bad), "{bad}");
        }
    }

    #[test]
    fn a_request_to_another_host_by_its_target_or_a_second_header_is_refused() {
        let hosts = Hosts::default();
        let absolute = |target: &str| {
            let request = Request::builder().uri(target).header("host", "127.0.0.1");
            hosts.check(&request.body(()).unwrap()).is_ok()
        };
        assert!(absolute("http://127.0.0.1:8127/metrics"));
        assert!(!absolute("http://evil.example/metrics"));
        let twice = Request::builder()
            .header("host", "localhost")
            .header("host", "localhost");
        assert!(hosts.check(&twice.body(()).unwrap()).is_err());
        let none = Request::builder().body(()).unwrap();
        assert!(hosts.check(&none).is_err(), "HTTP/1.1");
        let old = Request::builder().version(Version::HTTP_10).body(()).unwrap();
        assert!(hosts.check(&old).is_ok(), "no browser speaks it");
    }

    #[test]
    fn other_sites_are_recognised_by_origin_and_fetch_metadata() {
        let site = |pairs: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, value.parse().unwrap());
            }
            check_site(&headers).is_ok()
        };
        let host = ("host", "127.0.0.1:8127");
        for good in [
            &[host][..],
            &[host, ("origin", "http://127.0.0.1:8127")],
            &[
                host,
                ("origin", "https://127.0.0.1:8127"),
                ("sec-fetch-site", "same-origin"),
            ],
            &[host, ("sec-fetch-site", "none")],
        ] {
            assert!(site(good), "{good:?}");
        }
        for bad in [
            &[host, ("origin", "null")][..],
            &[host, ("origin", "http://127.0.0.1:3000")],
            &[host, ("origin", "http://127.0.0.1:8127.evil.example")],
            &[host, ("origin", "127.0.0.1:8127")],
            &[("origin", "http://127.0.0.1:8127")],
            &[host, ("sec-fetch-site", "cross-site")],
            &[host, ("sec-fetch-site", "same-site")],
            &[host, ("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")],
        ] {
            assert!(!site(bad), "{bad:?}");
        }
    }
}
