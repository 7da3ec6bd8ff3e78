//! The HTTP client of the outputs: certificate authorities, proxies, timeouts, and errors without secrets.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, InvalidHeaderValue, RETRY_AFTER};
use reqwest::{ClientBuilder, Method, NoProxy, Proxy, RequestBuilder};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use rustls::{ClientConfig, RootCertStore};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::delivery::{Outcome, Payload, retry_after};
use crate::names;
use crate::settings::{Authorization, DeliverySettings};

/// A connection that is not used for this long is closed, before most backends and proxies would do it.
const IDLE: Duration = Duration::from_secs(50);
/// Bytes read of an error's body: enough for its message.
const BODY_MAX: usize = 512;
/// Longest wait for the rest of an answer once its status is known.
const BODY_WAIT: Duration = Duration::from_secs(2);

/// The receiver does not know who sends.
pub const DENIED: &str = "refused: the key, token or password is not accepted; payloads wait for another one";

/// A backend's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub headers: HeaderMap,
    pub retry_after: Option<Duration>,
    /// The beginning of the body of an answer that is not a success.
    pub message: String,
    /// The beginning of the body.
    pub body: Vec<u8>,
}

impl Response {
    /// Its status, what that means, and its own words.
    pub fn text(&self, what: &str) -> String {
        let status = self.status;
        match self.message.as_str() {
            "" => format!("{status} {what}"),
            message => format!("{status} {what}: {message}"),
        }
    }

    /// The attempt is to be repeated.
    pub fn retry(&self, what: &str) -> Outcome {
        Outcome::Retry {
            error: self.text(what),
            after: self.retry_after,
        }
    }

    /// The meaning of the status, where the output's own protocol says nothing else. A refusal is final; a redirect, a failure and an unknown
    /// status may be over with the next attempt.
    pub fn outcome(&self) -> Outcome {
        match self.status {
            200..300 => Outcome::Delivered,
            300..400 => {
                self.retry("redirects; weir does not follow, because a key must not reach another host")
            }
            400 | 422 => Outcome::Invalid {
                error: self.text("refused"),
            },
            401 | 403 | 407 => Outcome::Denied {
                error: self.text(DENIED),
            },
            408 => self.retry("timed out"),
            429 => self.retry("asks to slow down"),
            402..500 => Outcome::Rejected {
                error: self.text("refused"),
            },
            _ => self.retry("failed"),
        }
    }
}

/// Why there is no client. The text names the setting.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("delivery.proxy: not a proxy URL, such as http://proxy:3128")]
    Proxy,
    #[error("delivery.ca_file: {path}: {error}; it must be a PEM file with certificates")]
    CaFile { path: String, error: CaError },
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error("HTTP client: {0}")]
    Build(#[source] RequestError),
    #[error("a thread for requests cannot be started: {0}")]
    Thread(#[source] io::Error),
}

/// The error in a file of certificates.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    #[error(transparent)]
    Pem(#[from] pem::Error),
    #[error(transparent)]
    Certificate(#[from] rustls::Error),
    #[error("no certificate in it")]
    Empty,
}

/// A value that no HTTP header can carry. The value is never shown.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    #[error("{0}: the key has a character that no HTTP header can carry")]
    Key(&'static str),
    #[error("bearer_token: it has a character that no HTTP header can carry")]
    BearerToken,
    #[error("headers: {0:?} is not the name of a header")]
    Name(String),
    #[error("headers: the value of {0} has a character that no HTTP header can carry")]
    Value(String),
}

/// Why there was no answer. It knows no URL: that may carry a secret, and the endpoint's label stands beside it anyway.
#[derive(Debug)]
pub struct RequestError(reqwest::Error);

impl RequestError {
    /// It may work later.
    pub fn retry(&self) -> Outcome {
        Outcome::Retry {
            error: self.to_string(),
            after: None,
        }
    }
}

impl From<reqwest::Error> for RequestError {
    fn from(error: reqwest::Error) -> Self {
        RequestError(error.without_url())
    }
}

/// With its causes.
impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.0.to_string();
        let mut cause = self.0.source();
        while let Some(inner) = cause {
            let inner_text = inner.to_string();
            if !text.contains(&inner_text) {
                text.push_str(": ");
                text.push_str(&inner_text);
            }
            cause = inner.source();
        }
        f.write_str(&one_line(&text))
    }
}

impl Error for RequestError {}

/// A client, and the thread on which all its requests run.
///
/// A receiver can keep the task of a connection busy for a second at a time, for example with informational answers (100) without end. On the runtime
/// of all outputs that would delay the others, every deadline and the end of the process.
#[derive(Clone)]
pub struct Client {
    client: reqwest::Client,
    thread: Arc<RequestThread>,
}

impl Client {
    /// A request, to be sent with [`Client::apart`].
    pub fn request(&self, method: Method, url: &str) -> RequestBuilder {
        self.client.request(method, url)
    }

    /// Works on the client's thread. Dropped, it ends the work.
    pub async fn apart<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        // Dropped, it aborts its task.
        let mut task = JoinSet::new();
        task.spawn_on(work, self.thread.runtime().handle());
        match task.join_next().await {
            Some(Ok(done)) => done,
            Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The thread ends with its clients.
            _ => std::future::pending().await,
        }
    }
}

struct RequestThread(Option<Runtime>);

impl RequestThread {
    fn start() -> Result<Arc<Self>, ClientError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("requests")
            .enable_all()
            .build();
        Ok(Arc::new(Self(Some(runtime.map_err(ClientError::Thread)?))))
    }

    fn runtime(&self) -> &Runtime {
        self.0.as_ref().expect("it is taken by the drop alone")
    }
}

impl Drop for RequestThread {
    fn drop(&mut self) {
        // A normal drop would wait for name look-ups that never return.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Builds a client. Redirects are not followed: a key must not travel to another host.
pub fn client(settings: &DeliverySettings, user_agent: &str) -> Result<Client, ClientError> {
    let tls = tls(&settings.ca_file)?;
    Ok(Client {
        client: build(reqwest::Client::builder().http1_only(), tls, settings, user_agent)?,
        thread: RequestThread::start()?,
    })
}

/// A client of a server that speaks HTTP/2 and nothing else, as those of gRPC.
///
/// HTTP/2 has one connection for all requests and keeps it when one of them is given up. If its other end has disappeared, or
/// its name has moved, every later request would wait there too: after a request that was given up there is a new connection.
pub struct Http2 {
    settings: DeliverySettings,
    user_agent: String,
    thread: Arc<RequestThread>,
    client: Mutex<Option<Client>>,
}

impl Http2 {
    pub fn new(settings: &DeliverySettings, user_agent: &str) -> Result<Self, ClientError> {
        let http2 = Self {
            settings: settings.clone(),
            user_agent: user_agent.to_owned(),
            thread: RequestThread::start()?,
            client: Mutex::default(),
        };
        http2.call()?.done();
        Ok(http2)
    }

    /// For one request.
    pub fn call(&self) -> Result<Call<'_>, ClientError> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if client.is_none() {
            *client = Some(self.client()?);
        }
        Ok(Call {
            http2: self,
            client: client.clone().expect("made above"),
            is_done: false,
        })
    }

    fn client(&self) -> Result<Client, ClientError> {
        let mut tls = tls(&self.settings.ca_file)?;
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let builder = reqwest::Client::builder().http2_prior_knowledge();
        Ok(Client {
            client: build(builder, tls, &self.settings, &self.user_agent)?,
            thread: self.thread.clone(),
        })
    }
}

/// See [`Http2`]. Dropped before it is done, it takes the connection along.
pub struct Call<'a> {
    http2: &'a Http2,
    pub client: Client,
    is_done: bool,
}

impl Call<'_> {
    pub fn done(mut self) {
        self.is_done = true;
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            *self.http2.client.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
}

fn build(
    builder: ClientBuilder,
    tls: ClientConfig,
    settings: &DeliverySettings,
    user_agent: &str,
) -> Result<reqwest::Client, ClientError> {
    let mut builder = builder
        .tls_backend_preconfigured(tls)
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(settings.timeout)
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(settings.concurrency)
        .retry(reqwest::retry::never())
        .user_agent(user_agent);
    if names::has_ipv6_loopback() {
        // The ports are those of the URL.
        let both = weir_units::loopbacks("localhost", 0);
        builder = builder.resolve_to_addrs("localhost", both.as_ref().map_or(&[], |both| both));
    }
    if settings.proxy == "none" {
        builder = builder.no_proxy();
    } else if !settings.proxy.is_empty() {
        let proxy = Proxy::all(&settings.proxy).map_err(|_| ClientError::Proxy)?;
        let except = NoProxy::from_string(&settings.no_proxy.join(","));
        builder = builder.proxy(proxy.no_proxy(except));
    }
    builder.build().map_err(|error| ClientError::Build(error.into()))
}

fn tls(ca_file: &str) -> Result<ClientConfig, ClientError> {
    let roots = if ca_file.is_empty() {
        let mut roots = RootCertStore::empty();
        // A system without certificates fails only with TLS, in the handshake.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        roots
    } else {
        authorities(ca_file).map_err(|error| ClientError::CaFile {
            path: ca_file.to_owned(),
            error,
        })?
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

fn authorities(ca_file: &str) -> Result<RootCertStore, CaError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca_file)? {
        roots.add(certificate?)?;
    }
    if roots.is_empty() {
        return Err(CaError::Empty);
    }
    Ok(roots)
}

/// Sends one request. `now` is Unix seconds, for a `Retry-After` that is a date.
pub async fn send(
    client: &Client,
    method: Method,
    url: &str,
    headers: HeaderMap,
    body: bytes::Bytes,
    now: i64,
) -> Result<Response, RequestError> {
    let request = client.request(method, url).headers(headers).body(body);
    client.apart(exchange(request, now)).await
}

async fn exchange(request: RequestBuilder, now: i64) -> Result<Response, RequestError> {
    let mut response = request.send().await?;
    let status = response.status();
    let value = response
        .headers()
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok());
    let retry_after = value.and_then(|value| retry_after(value, now));
    let headers = std::mem::take(response.headers_mut());
    let mut start = Vec::new();
    // The status decides. The body is read for its message and so that the connection can be used again, but an answer
    // that trickles, never ends or breaks off changes nothing.
    let body = async {
        while let Ok(Some(chunk)) = response.chunk().await {
            if start.len() < BODY_MAX {
                start.extend_from_slice(&chunk);
            } else {
                break;
            }
        }
    };
    drop(tokio::time::timeout(BODY_WAIT, body).await);
    start.truncate(BODY_MAX);
    let message = if status.is_success() {
        String::new()
    } else {
        one_line(&String::from_utf8_lossy(&start))
    };
    Ok(Response {
        status: status.as_u16(),
        headers,
        retry_after,
        message,
        body: start,
    })
}

/// A header value that is never shown. Fails on characters that no header can have.
pub fn secret_header(value: &str) -> Result<HeaderValue, InvalidHeaderValue> {
    let mut header = HeaderValue::from_str(value)?;
    header.set_sensitive(true);
    Ok(header)
}

/// Headers that an operator configured; their values are never shown.
pub fn configured_headers(authorization: &Authorization) -> Result<HeaderMap, HeaderError> {
    let Authorization {
        headers,
        bearer_token,
        ..
    } = authorization;
    let mut all = HeaderMap::new();
    if !bearer_token.is_empty() {
        let value = secret_header(&format!("Bearer {}", bearer_token.expose().trim()))
            .map_err(|_| HeaderError::BearerToken)?;
        all.insert(AUTHORIZATION, value);
    }
    for (name, value) in headers {
        let key = HeaderName::try_from(name.as_str()).map_err(|_| HeaderError::Name(name.clone()))?;
        let value = secret_header(value.expose().trim()).map_err(|_| HeaderError::Value(name.clone()))?;
        all.insert(key, value);
    }
    Ok(all)
}

/// Bodies and errors go to logs and terminals: no control characters.
pub fn one_line(text: &str) -> String {
    let words = text
        .split(|c: char| c.is_control() || c.is_whitespace())
        .filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ").chars().take(300).collect()
}

/// The name of an endpoint's queue on disk: its host for users, a digest of its URL (without user and password, which may change), and one
/// of its key, if it has one.
pub fn directory(base: &str, key: &str) -> String {
    let family = family(base);
    if key.is_empty() {
        return family;
    }
    format!("{family}-{}", digest(&[base, key]))
}

/// The common prefix of the queue names of one URL, for all keys; `-` follows.
pub fn family(base: &str) -> String {
    let shown = shown_url(base);
    let host = shown.split_once("://").map_or(shown.as_str(), |(_, rest)| rest);
    let host: String = host
        .chars()
        .take(100)
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '.' {
                c
            } else {
                '_'
            }
        })
        .collect();
    let query = base.find(['?', '#']).map_or("", |at| &base[at..]);
    format!("{host}-{}", digest(&[&shown, query]))
}

/// Sixteen hexadecimal digits.
fn digest(parts: &[&str]) -> String {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    for part in parts {
        context.update(part.as_bytes());
        context.update(&[0]);
    }
    let digest = context.finish();
    digest.as_ref()[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// `Idempotency-Key`: the same for every attempt to deliver a payload, in this process and the next, for a backend or a proxy that
/// looks at it. A structured header: a string in quotes.
pub fn idempotency_key(payload: &Payload) -> (HeaderName, HeaderValue) {
    let text = format!("\"{:032x}\"", payload.digest());
    let value = HeaderValue::try_from(text).expect("hexadecimal digits");
    (HeaderName::from_static("idempotency-key"), value)
}

/// A URL as it may be shown: without user, password, query and fragment.
pub fn shown_url(url: &str) -> String {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    let url = &url[..end];
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let (authority, path) = rest
        .split_once('/')
        .map_or((rest, None), |(authority, path)| (authority, Some(path)));
    let host = authority.rsplit('@').next().unwrap_or(authority);
    match path {
        Some(path) => format!("{scheme}://{host}/{path}"),
        None => format!("{scheme}://{host}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_urls_have_no_secrets() {
        for (url, shown) in [
            ("https://app.example.com", "https://app.example.com"),
            ("https://user:pass@host:1/path?api_key=x#y", "https://host:1/path"),
            ("http://u@h", "http://h"),
            ("https://host?key=1", "https://host"),
        ] {
            assert_eq!(shown_url(url), shown);
        }
    }

    #[test]
    fn queues_on_disk_are_named_for_url_and_key_alone() {
        let names = [
            directory("https://host", "a"),
            directory("https://host", "b"),
            directory("https://host", ""),
            directory("https://host/path", ""),
            directory("https://host?tenant=1", ""),
        ];
        for (i, name) in names.iter().enumerate() {
            assert!(names[..i].iter().all(|other| other != name), "{names:?}");
            assert!(name.starts_with("host"), "{name}");
        }
        assert!(
            names[..2]
                .iter()
                .all(|name| name.starts_with(&format!("{}-", names[2])))
        );
        assert_eq!(
            directory("https://user:one@host/x", ""),
            directory("https://user:two@host/x", "")
        );
    }

    #[test]
    fn foreign_text_becomes_one_short_line() {
        assert_eq!(one_line("a\r\n\x1b[31mb  c\0"), "a [31mb c");
        assert_eq!(one_line(&"x".repeat(1000)).len(), 300);
    }
}
