//! Common to all clients of one log: connection settings, and the client library's explanations of errors.

use std::fmt::Display;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD_INDIFFERENT;
use rdkafka::ClientContext;
use rdkafka::client::OAuthToken;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::types::RDKafkaConfRes;

use crate::{Brokers, Error, Mechanism, unix_milliseconds};

/// Time for which a line of the client library can explain errors.
const EXPLAINS: Duration = Duration::from_secs(60);

/// The client library's mark on lines about a connection that failed. A broker that hangs up is only information to it.
const FAILED_CONNECTION: &str = "FAIL";

/// The client library's guess about a broker that does not answer its first request: all brokers that weir needs know it, but one that is
/// stopped does not answer.
const GUESS: &str = ": probably due to broker version";

/// Longest wait of a new client for its token.
const TOKEN_WAIT: Duration = Duration::from_secs(2);

/// One wait for an event of it.
pub(crate) const TOKEN_STEP: Duration = Duration::from_millis(20);

/// Life of a token that does not say when it expires.
const TOKEN_LIFE_MS: i64 = 300_000;

/// Text before the reason in an error.
pub(crate) const REASON: &str = "; last failure of a connection: ";

/// Text before the right that is missing.
pub(crate) const RIGHT: &str = "; allow this user ";

/// Shared by all clients of a log: the last failure in the client library's log, because errors of calls often say only "timed out", and
/// the file with the token.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastFailure {
    last: Arc<Mutex<Option<(Instant, String)>>>,
    group: Arc<str>,
    token_file: Option<Arc<Path>>,
    /// Number of tokens asked for.
    tokens: Arc<AtomicU64>,
}

impl LastFailure {
    pub fn of(brokers: &Brokers) -> Self {
        let sasl = brokers.sasl.as_ref();
        let sasl = sasl.filter(|sasl| sasl.mechanism == Mechanism::OAuthBearer);
        LastFailure {
            group: Arc::from(&*brokers.group),
            token_file: sasl.and_then(|sasl| sasl.token_file.as_deref().map(Arc::from)),
            ..LastFailure::default()
        }
    }

    /// Lets a new client take its token, without which it connects to no broker. `poll` handles one event of it, if there is one.
    pub fn give_token(&self, mut poll: impl FnMut()) {
        let before = self.tokens.load(Ordering::Relaxed);
        let until = Instant::now() + TOKEN_WAIT;
        while self.token_file.is_some()
            && self.tokens.load(Ordering::Relaxed) == before
            && Instant::now() < until
        {
            poll();
        }
    }

    /// The token in the file.
    pub fn token(&self) -> Result<OAuthToken, Box<dyn std::error::Error>> {
        self.tokens.fetch_add(1, Ordering::Relaxed);
        let path = self.token_file.as_deref().ok_or("no file has a token")?;
        let token = std::fs::read_to_string(path).map_err(|error| {
            let error = format!("sasl.token_file: {}: {error}", path.display());
            self.note(&error);
            error
        })?;
        let token = token.trim().to_owned();
        let now = unix_milliseconds();
        if expiry(&token).is_some_and(|seconds| seconds.saturating_mul(1000) <= now) {
            let error = format!("sasl.token_file: {}: the token has expired", path.display());
            self.note(&error);
            return Err(error.into());
        }
        Ok(OAuthToken {
            principal_name: "weir".to_owned(),
            lifetime_ms: expiry(&token).map_or(now + TOKEN_LIFE_MS, |seconds| seconds.saturating_mul(1000)),
            token,
        })
    }

    fn note(&self, line: &str) {
        // Lines begin with the name of a thread.
        let line = line.rsplit_once("]: ").map_or(line, |(_, line)| line);
        let line = line.split_once(GUESS).map_or(line, |(line, _)| line);
        if let Ok(mut last) = self.last.lock() {
            *last = Some((Instant::now(), line.trim().to_owned()));
        }
    }

    fn last(&self) -> Option<String> {
        let last = self.last.lock().ok()?;
        let (at, line) = last.as_ref()?;
        (at.elapsed() < EXPLAINS).then(|| line.clone())
    }

    /// An error of a call, with the client library's reason.
    pub fn explain(&self, doing: impl Into<String>, error: impl Display) -> Error {
        let what = match self.last() {
            Some(reason) => format!("{error}{REASON}{reason}"),
            None => error.to_string(),
        };
        let doing = doing.into();
        Error::Kafka { doing, what }
    }

    /// The same for a request that needs this right, and those of a member of the group.
    pub fn explain_right(&self, doing: impl Into<String>, error: impl Display, right: &str) -> Error {
        let mut error = error.to_string();
        let is_of_group = |text: &str| text.contains("Group authorization failed");
        // A question to the group only times out if it is refused, and messages of a refused transaction are only purged.
        if let Some(last) = self.last()
            && (error.contains("imed out") && is_of_group(&last)
                || error.contains("Purged") && is_refusal(&last))
        {
            error = format!("{error}{REASON}{last}");
        }
        let group = format!("READ on group {}", self.group);
        let right = match is_of_group(&error) {
            true => &group,
            false => right,
        };
        match is_refusal(&error) {
            true => Error::Kafka {
                doing: doing.into(),
                what: format!("{error}{RIGHT}{right}"),
            },
            false => self.explain(doing, error),
        }
    }

    /// A client that could not be made. Values of settings may be secret, so the error has only the name of the wrong one.
    pub fn not_made(&self, error: KafkaError) -> Error {
        let doing = "connecting";
        match error {
            KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, _, name, _) => {
                self.explain(doing, format!("the client library has no property {name}"))
            }
            KafkaError::ClientConfig(_, _, name, _) => {
                self.explain(doing, format!("the client library refuses the value of {name}"))
            }
            error => self.explain(doing, error),
        }
    }
}

/// By the client library's words for its codes.
fn is_refusal(error: &str) -> bool {
    error.contains("authorization failed")
}

impl ClientContext for LastFailure {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, _: Option<&str>) -> Result<OAuthToken, Box<dyn std::error::Error>> {
        self.token()
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        if (level as i32) <= RDKafkaLogLevel::Error as i32 || facility == FAILED_CONNECTION {
            self.note(line);
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code();
        // The end of a partition is not an error, and that all connections failed is no reason: each has its own.
        if code != Some(RDKafkaErrorCode::PartitionEOF) && code != Some(RDKafkaErrorCode::AllBrokersDown) {
            self.note(&format!("{error}: {reason}"));
        }
    }
}

/// Waits of the client library, by a clock that never steps.
///
/// The library names a moment of the wall clock until which a thread waits. When that clock is set back by an hour, the wait lasts an hour
/// longer, and the threads of a client and their callers are stuck. The function of the C library that it calls for each of these waits is
/// replaced by one that waits for the same time by the monotonic clock.
#[cfg(all(target_env = "gnu", target_pointer_width = "64"))]
mod waits {
    #![allow(unsafe_code)]

    use std::ffi::{c_int, c_void};
    use std::time::{Duration, SystemTime};

    use rustix::time::{ClockId, Timespec, clock_gettime};

    const CLOCK_MONOTONIC: c_int = ClockId::Monotonic as c_int;

    /// Results of `cnd_timedwait`.
    const SUCCESS: c_int = 0;
    const ERROR: c_int = 2;
    const TIMED_OUT: c_int = 4;

    unsafe extern "C" {
        fn pthread_cond_clockwait(
            condition: *mut c_void,
            mutex: *mut c_void,
            clock: c_int,
            until: *const Timespec,
        ) -> c_int;
    }

    /// # Safety
    ///
    /// As for the function of C11: a condition, a mutex that the caller holds, and a time.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn cnd_timedwait(
        condition: *mut c_void,
        mutex: *mut c_void,
        until: *const Timespec,
    ) -> c_int {
        // SAFETY: the caller gives a time.
        let until = unsafe { &*until };
        let until = Duration::new(
            until.tv_sec.try_into().unwrap_or(0),
            until.tv_nsec.try_into().unwrap_or(0),
        );
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let monotonic = clock_gettime(ClockId::Monotonic);
        let left = Timespec::try_from(until.saturating_sub(now)).unwrap_or_default();
        let until = monotonic.checked_add(left).unwrap_or(monotonic);
        // SAFETY: conditions and mutexes of C11 are those of POSIX in this C library, and the caller gives both.
        match unsafe { pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, &until) } {
            0 => SUCCESS,
            error if error == rustix::io::Errno::TIMEDOUT.raw_os_error() => TIMED_OUT,
            _ => ERROR,
        }
    }
}

/// Addresses, TLS and credentials.
pub(crate) fn config(brokers: &Brokers) -> ClientConfig {
    // Linked before the C library's.
    #[cfg(all(target_env = "gnu", target_pointer_width = "64"))]
    std::hint::black_box(waits::cnd_timedwait as *const ());
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", brokers.addresses.join(","))
        .set("client.id", "weir")
        .set("socket.keepalive.enable", "true")
        .set("reconnect.backoff.max.ms", "2000")
        // Longest delay before added partitions are seen.
        .set("topic.metadata.refresh.interval.ms", "30000")
        .set_log_level(RDKafkaLogLevel::Info);
    secure(&mut config, brokers);
    config
}

fn secure(config: &mut ClientConfig, brokers: &Brokers) {
    let protocol = match (&brokers.tls, &brokers.sasl) {
        (None, None) => "plaintext",
        (Some(_), None) => "ssl",
        (None, Some(_)) => "sasl_plaintext",
        (Some(_), Some(_)) => "sasl_ssl",
    };
    config.set("security.protocol", protocol);
    if let Some(tls) = &brokers.tls {
        let authorities = tls.authorities.as_ref().map(|path| path.to_string_lossy());
        config.set("ssl.ca.location", authorities.as_deref().unwrap_or("probe"));
        if let Some((certificate, key)) = &tls.certificate {
            config.set("ssl.certificate.location", certificate.to_string_lossy());
            config.set("ssl.key.location", key.to_string_lossy());
        }
    }
    if let Some(sasl) = &brokers.sasl {
        config.set("sasl.mechanisms", sasl.mechanism.name());
        if sasl.mechanism != Mechanism::OAuthBearer {
            config
                .set("sasl.username", &sasl.user)
                .set("sasl.password", &sasl.password);
        }
    }
}

/// The operator's properties, over those of the client's own.
pub(crate) fn overridden(mut config: ClientConfig, brokers: &Brokers) -> ClientConfig {
    for (name, value) in &brokers.properties.0 {
        config.set(name, value);
    }
    config
}

/// The Unix second at which a token expires, if it is a JSON Web Token that says so.
fn expiry(token: &str) -> Option<i64> {
    let claims = token.split('.').nth(1)?;
    let claims = URL_SAFE_NO_PAD_INDIFFERENT.decode(claims).ok()?;
    let claims = std::str::from_utf8(&claims).ok()?;
    let (_, rest) = claims.split_once("\"exp\"")?;
    let rest = rest.trim_start().strip_prefix(':')?.trim_start();
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// Settings of a reading client.
pub(crate) fn reading(brokers: &Brokers, group: &str) -> ClientConfig {
    let mut config = config(brokers);
    config
        .set("group.id", group)
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "earliest")
        .set("allow.auto.create.topics", "false");
    config
}

/// Milliseconds as a setting.
pub(crate) fn milliseconds(duration: Duration) -> String {
    duration.as_millis().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_broker_is_not_called_an_old_one() {
        let last_failure = LastFailure::default();
        last_failure.note(
            "[thrd:b:9092/1]: b:9092/1: ApiVersionRequest failed: Local: Timed out: probably due to broker version < 0.10 \
             (see api.version.request configuration) (after 10002ms in state APIVERSION_QUERY)",
        );
        let error = last_failure.explain("reading", "timed out").to_string();
        assert!(
            error.ends_with("b:9092/1: ApiVersionRequest failed: Local: Timed out"),
            "{error}"
        );
    }

    #[test]
    fn a_token_says_when_it_expires() {
        // {"alg":"none"} and {"sub":"weir", "exp": 1700000123}
        let token = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJ3ZWlyIiwgImV4cCI6IDE3MDAwMDAxMjN9.";
        assert_eq!(expiry(token), Some(1_700_000_123));
        for other in ["", "opaque", "a.b.c", "a.!.c", "a.eyJzdWIiOiJ3ZWlyIn0.c"] {
            assert_eq!(expiry(other), None, "{other}");
        }
    }
}
