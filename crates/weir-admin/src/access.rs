//! Decides which requests a peer may send. Peers on this machine may send all; `admin_remote` says which others may.

use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD_INDIFFERENT;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Request, Response, StatusCode};
use weir_config::{AdminRemote, Running};

use super::caller::Hosts;
use super::server::{HttpError, LIVE, RELOAD};
use super::taps;

/// A longer token is none that anyone made.
const TOKEN_BYTES_MAX: u64 = 4096;

/// The subject of a request, from what everybody may ask for to what only a trusted user may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Scope {
    /// Health, metrics and the books.
    Status,
    /// Names, tags and values of metrics, and the page that shows them.
    Read,
    /// Messages, profiles, and what changes something.
    Full,
}

impl Scope {
    fn of(path: &str) -> Self {
        match path {
            "/healthz" | "/ready" | "/metrics" => Scope::Status,
            "/api/v1/status" | "/api/v1/losses" | "/api/v1/meanings" => Scope::Status,
            RELOAD | taps::TAIL | taps::CAPTURE => Scope::Full,
            LIVE => Scope::Read,
            path if path.starts_with("/debug/") => Scope::Full,
            _ => Scope::Read,
        }
    }
}

/// Whose requests are answered.
#[derive(Clone, Debug, Default)]
pub struct Callers {
    pub hosts: Hosts,
    pub access: Access,
}

impl Callers {
    pub fn new(running: &Running) -> Self {
        Self {
            hosts: Hosts::new(&running.admin_hosts),
            access: Access::new(running),
        }
    }

    /// # Errors
    ///
    /// When a request names another host, or only this machine may send it.
    pub(super) async fn permit<B>(&self, is_local: bool, request: &Request<B>) -> Result<(), HttpError> {
        self.hosts.check(request)?;
        self.access.check(is_local, request).await
    }
}

/// The scope of peers on other machines.
#[derive(Clone, Debug, Default)]
pub struct Access {
    remote: AdminRemote,
    token_file: PathBuf,
}

impl Access {
    pub fn new(running: &Running) -> Self {
        Self {
            remote: running.admin_remote,
            token_file: running.admin_token_file.clone(),
        }
    }

    /// The warning at the start about an address that other machines reach.
    pub fn warning(&self, address: SocketAddr) -> Option<String> {
        let is_loopback = address.ip().to_canonical().is_loopback();
        (!is_loopback).then(|| format!("admin: {address} is not loopback: {}", self.of_others()))
    }

    fn of_others(&self) -> String {
        match self.remote {
            AdminRemote::Status => {
                "other machines get health, metrics and status there, and nothing else (`admin_remote`)".to_owned()
            }
            AdminRemote::Read => {
                "anyone who reaches it can read status, names, tags and values of all metrics (`admin_remote: read`)"
                    .to_owned()
            }
            AdminRemote::Full => format!(
                "other machines that send the token of {} can see messages, take profiles and trigger a reload (`admin_remote: full`); \
                 the connection is not encrypted",
                self.token_file.display()
            ),
        }
    }

    /// # Errors
    ///
    /// When a peer on another machine may not ask for this.
    pub async fn check<B>(&self, is_local: bool, request: &Request<B>) -> Result<(), HttpError> {
        let wanted = Scope::of(request.uri().path());
        let allowed = match self.remote {
            _ if is_local => Scope::Full,
            AdminRemote::Read => Scope::Read,
            AdminRemote::Status | AdminRemote::Full => Scope::Status,
        };
        if wanted <= allowed {
            return Ok(());
        }
        if self.remote == AdminRemote::Full {
            return self.check_token(request.headers()).await;
        }
        let message = match wanted {
            Scope::Full => {
                "other machines need `admin_remote: full` and the token of `admin_token_file` for this; on the agent's own machine it needs neither"
            }
            _ => {
                "other machines get /metrics, /healthz, /ready and /api/v1/status; `admin_remote: read` in the agent's configuration gives them this too"
            }
        };
        Err(HttpError(StatusCode::FORBIDDEN, message.to_owned()))
    }

    async fn check_token(&self, headers: &HeaderMap) -> Result<(), HttpError> {
        // Read for each request: a new token needs no reload.
        let path = self.token_file.clone();
        let read = tokio::task::spawn_blocking(move || read(&path)).await;
        let known = match read.map_err(io::Error::other).and_then(|known| known) {
            Ok(known) => known,
            Err(error) => {
                let message = format!("admin_token_file: {}: {error}", self.token_file.display());
                tracing::warn!("{message}; requests of other machines are refused");
                return Err(HttpError(StatusCode::SERVICE_UNAVAILABLE, message));
            }
        };
        let given = headers.get_all(header::AUTHORIZATION).iter();
        let is_known = |given: Vec<u8>| is_same(&given, known.as_bytes());
        if !known.is_empty() && given.filter_map(|given| token(given.as_bytes())).any(is_known) {
            return Ok(());
        }
        Err(HttpError(
            StatusCode::UNAUTHORIZED,
            "the token of admin_token_file is missing or wrong: as `Authorization: Bearer TOKEN`, or as the password of any user".to_owned(),
        ))
    }
}

/// A browser asks its user for the token, as a password, and then sends it with every request of the page.
pub(super) fn with_challenge<B>(mut answer: Response<B>) -> Response<B> {
    if answer.status() == StatusCode::UNAUTHORIZED {
        let scheme = HeaderValue::from_static("Basic realm=\"weir: any user, the token as password\"");
        answer.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
    }
    answer
}

/// Whether the peer is a program on this machine: only they reach loopback, or have the address that they connect to.
pub fn is_local(peer: SocketAddr, own: Option<SocketAddr>) -> bool {
    let peer = peer.ip().to_canonical();
    peer.is_loopback() || own.is_some_and(|own| own.ip().to_canonical() == peer)
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?
        .take(TOKEN_BYTES_MAX)
        .read_to_string(&mut text)?;
    Ok(text.trim().to_owned())
}

/// The token of an `Authorization` header: of a program, or of a browser that has asked its user for a password.
fn token(authorization: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(authorization).ok()?;
    let (scheme, value) = text.split_once(' ')?;
    let value = value.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(value.as_bytes().to_vec());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = STANDARD_NO_PAD_INDIFFERENT.decode(value).ok()?;
    let user = decoded.iter().position(|&byte| byte == b':')?;
    Some(decoded[user + 1..].to_vec())
}

/// Takes the same time wherever the texts differ.
fn is_same(given: &[u8], known: &[u8]) -> bool {
    let differences = given.iter().zip(known).fold(0, |all, (a, b)| all | (a ^ b));
    given.len() == known.len() && std::hint::black_box(differences) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(remote: AdminRemote, token_file: &Path) -> Access {
        Access {
            remote,
            token_file: token_file.to_owned(),
        }
    }

    /// The status of a refusal, or 200.
    fn asked(access: &Access, is_local: bool, path: &str, authorization: &str) -> u16 {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut request = Request::get(path);
        if !authorization.is_empty() {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = request.body(()).unwrap();
        match runtime.block_on(access.check(is_local, &request)) {
            Ok(()) => 200,
            Err(HttpError(status, _)) => status.as_u16(),
        }
    }

    const STATUS: [&str; 6] = [
        "/healthz",
        "/ready",
        "/metrics",
        "/api/v1/status",
        "/api/v1/losses",
        "/api/v1/meanings",
    ];
    const READ: [&str; 7] = [
        "/",
        "/page.js",
        "/api/v1/metrics",
        "/api/v1/live",
        "/api/v1/query?metric=a",
        "/api/v1/explain?line=a:1%7Cc",
        "/anything",
    ];
    const FULL: [&str; 6] = [
        "/api/v1/reload",
        "/api/v1/tail",
        "/api/v1/capture?for=1s",
        "/debug/vars",
        "/debug/pprof/profile?seconds=1",
        "/debug/pprof/heap",
    ];

    #[test]
    fn other_machines_get_what_the_setting_says() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        std::fs::write(&file, "s3cret:with+colon\n").unwrap();
        for (remote, allowed) in [
            (AdminRemote::Status, vec![STATUS.to_vec()]),
            (AdminRemote::Read, vec![STATUS.to_vec(), READ.to_vec()]),
            (AdminRemote::Full, vec![STATUS.to_vec()]),
        ] {
            let access = access(remote, &file);
            for path in STATUS.iter().chain(&READ).chain(&FULL) {
                assert_eq!(asked(&access, true, path, ""), 200, "{path} on this machine");
                let is_allowed = allowed.iter().flatten().any(|one| one == path);
                let refused = if remote == AdminRemote::Full { 401 } else { 403 };
                let expected = if is_allowed { 200 } else { refused };
                assert_eq!(asked(&access, false, path, ""), expected, "{remote:?}: {path}");
            }
        }
    }

    #[test]
    fn an_address_that_other_machines_reach_is_warned_of() {
        for (address, others) in [
            ("0.0.0.0:1", "other machines get health, metrics and status there"),
            ("[::]:1", "other machines get health, metrics and status there"),
            ("127.0.0.1:1", ""),
            ("[::1]:1", ""),
            ("[::ffff:127.0.0.1]:1", ""),
        ] {
            let warning = Access::default().warning(address.parse().unwrap());
            let expected = format!("admin: {address} is not loopback: {others}");
            match others {
                "" => assert_eq!(warning, None),
                _ => assert!(warning.unwrap().starts_with(&expected), "{expected}"),
            }
        }
    }

    #[test]
    fn the_token_opens_everything_and_no_other_text_does() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        std::fs::write(&file, "s3cret:x\n").unwrap();
        let access = access(AdminRemote::Full, &file);
        for (authorization, expected) in [
            ("Bearer s3cret:x", 200),
            ("bearer  s3cret:x", 200),
            // Of `weir:s3cret:x`, `:s3cret:x` and `weir:other`.
            ("Basic d2VpcjpzM2NyZXQ6eA==", 200),
            ("basic OnMzY3JldDp4", 200),
            ("Basic d2VpcjpvdGhlcg==", 401),
            ("Basic ???", 401),
            ("Bearer s3cret:", 401),
            ("Bearer s3cret:xx", 401),
            ("Bearer ", 401),
            ("s3cret:x", 401),
            ("", 401),
        ] {
            for path in READ.iter().chain(&FULL) {
                assert_eq!(
                    asked(&access, false, path, authorization),
                    expected,
                    "{authorization}: {path}"
                );
            }
        }
        std::fs::write(&file, "new").unwrap();
        assert_eq!(asked(&access, false, "/", "Bearer s3cret:x"), 401);
        assert_eq!(
            asked(&access, false, "/", "Bearer new"),
            200,
            "a reload is not needed"
        );
        std::fs::write(&file, "\n").unwrap();
        assert_eq!(
            asked(&access, false, "/", "Bearer "),
            401,
            "an empty file is no token"
        );
        std::fs::remove_file(&file).unwrap();
        assert_eq!(asked(&access, false, "/", "Bearer new"), 503);
        assert_eq!(asked(&access, false, "/metrics", ""), 200);
    }

    #[test]
    fn this_machine_is_loopback_and_the_address_that_is_connected_to() {
        for (peer, own, expected) in [
            ("127.0.0.1:1", "0.0.0.0:8127", true),
            ("127.3.2.1:1", "127.0.0.1:8127", true),
            ("[::1]:1", "[::]:8127", true),
            ("[::ffff:127.0.0.1]:1", "[::]:8127", true),
            ("10.0.0.5:1", "10.0.0.5:8127", true),
            ("[::ffff:10.0.0.5]:1", "10.0.0.5:8127", true),
            ("10.0.0.6:1", "10.0.0.5:8127", false),
            ("[::ffff:10.0.0.6]:1", "[::]:8127", false),
            ("172.17.0.1:1", "172.17.0.2:8127", false),
            ("[fe80::1]:1", "[::1]:8127", false),
        ] {
            let own = own.parse().unwrap();
            assert_eq!(
                is_local(peer.parse().unwrap(), Some(own)),
                expected,
                "{peer} at {own}"
            );
        }
    }
}
