//! Encrypted connections: certificates from files, and what one connection needs between socket and framing.

use std::fmt;
use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use ring::digest;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};

use crate::sys;

/// Bytes of ciphertext taken with one receive call.
pub const TLS_READ_BYTES: usize = 32 * 1024;

/// Time limit of the TLS handshake.
pub const HANDSHAKE_NANOS: u64 = 10_000_000_000;

/// Estimated maximum memory of an encrypted connection: rustls holds up to one record each way, its keys, and the client's certificate.
pub const TLS_SESSION_BYTES: usize = 48 * 1024;

/// Longer files are something else.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Files of certificates and key, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate that clients are shown, those of intermediate authorities behind it.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Authorities; with them a client has to show a certificate that one of them signed.
    pub client_ca: Option<PathBuf>,
}

/// The invalid file, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFileError {
    pub path: PathBuf,
    pub message: String,
}

impl fmt::Display for TlsFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.message)
    }
}

impl std::error::Error for TlsFileError {}

/// Configuration that all encrypted connections of a listener share. It can be replaced while they are open: existing ones stay as they
/// were set up.
pub struct TlsServer(RwLock<Arc<Credentials>>);

struct Credentials {
    config: Arc<ServerConfig>,
    certificate: String,
    client_ca: Option<String>,
}

impl fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsServer")
    }
}

impl TlsServer {
    /// From now on new connections are set up as `other` says.
    pub fn replace(&self, other: TlsServer) {
        let new = other.current();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = new;
    }

    fn current(&self) -> Arc<Credentials> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The beginning of the SHA-256 fingerprint of the certificate that clients are shown.
    pub fn certificate(&self) -> String {
        self.current().certificate.clone()
    }

    /// Number of authorities for clients' certificates, and the beginning of their digest.
    pub fn client_ca(&self) -> Option<String> {
        self.current().client_ca.clone()
    }

    /// Reads the files. TLS 1.2 and 1.3.
    ///
    /// # Errors
    ///
    /// If a file cannot be read or is invalid, or if key and certificate do not match.
    pub fn load(files: &TlsFiles) -> Result<Self, TlsFileError> {
        let invalid = |path: &Path, message: String| TlsFileError {
            path: path.to_owned(),
            message,
        };
        let chain = certificates(&files.certificate)?;
        let certificate = fingerprint(&chain[..1]);
        let mut client_ca = None;
        let key = PrivateKeyDer::from_pem_slice(&read(&files.key)?).map_err(|error| {
            let message = format!("holds no private key in PEM (PKCS#8, PKCS#1 or SEC1): {error}");
            invalid(&files.key, message)
        })?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid(&files.certificate, error.to_string()))?;
        let builder = match &files.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                let authorities = certificates(path)?;
                let (count, digest) = (authorities.len(), fingerprint(&authorities));
                let plural = if count == 1 { "" } else { "s" };
                client_ca = Some(format!("{count} certificate{plural}, {digest}"));
                for certificate in authorities {
                    roots.add(certificate).map_err(|error| {
                        invalid(path, format!("holds no authority's certificate: {error}"))
                    })?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .build()
                    .map_err(|error| invalid(path, error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| {
            let message = format!("does not go with {}: {error}", files.certificate.display());
            invalid(&files.key, message)
        })?;
        // Clients of metrics write and do not read. Tickets that one has not read when it closes make its kernel reset the
        // connection and throw away what it had not sent yet.
        config.send_tls13_tickets = 0;
        Ok(Self(RwLock::new(Arc::new(Credentials {
            config: Arc::new(config),
            certificate,
            client_ca,
        }))))
    }
}

/// The beginning is enough for users to distinguish certificates.
fn fingerprint(certificates: &[CertificateDer<'_>]) -> String {
    use std::fmt::Write as _;
    let mut context = digest::Context::new(&digest::SHA256);
    for certificate in certificates {
        context.update(certificate);
    }
    let mut text = "SHA-256 ".to_owned();
    for byte in &context.finish().as_ref()[..8] {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn read(path: &Path) -> Result<Vec<u8>, TlsFileError> {
    let invalid = |message: String| TlsFileError {
        path: path.to_owned(),
        message,
    };
    let found = std::fs::metadata(path).map_err(|error| invalid(error.to_string()))?;
    if !found.is_file() || found.len() > FILE_BYTES_MAX {
        return Err(invalid("is not a file of at most 1 MiB".into()));
    }
    std::fs::read(path).map_err(|error| invalid(error.to_string()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
    let bytes = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let message = match found {
        Ok(found) if !found.is_empty() => return Ok(found),
        Ok(_) => "holds no certificate in PEM".to_owned(),
        Err(error) => format!("is not a PEM file: {error}"),
    };
    Err(TlsFileError {
        path: path.to_owned(),
        message,
    })
}

/// Why a connection could not be encrypted.
#[derive(Debug)]
pub enum TlsError {
    /// TLS refused a version, a certificate or a record.
    Tls(rustls::Error),
    /// The data is not valid TLS.
    Unreadable(io::Error),
    TooMuchAtOnce,
    /// TLS's own data could not be sent.
    NoAnswer(io::Error),
    NoHandshake,
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TlsError::Tls(error) => error.fmt(f),
            TlsError::Unreadable(error) => error.fmt(f),
            TlsError::TooMuchAtOnce => f.write_str("it sends more than TLS allows"),
            TlsError::NoAnswer(error) => write!(f, "it does not read the answer: {error}"),
            TlsError::NoHandshake => f.write_str("no handshake within ten seconds"),
        }
    }
}

impl std::error::Error for TlsError {}

/// The encryption of one connection.
pub struct TlsSession {
    session: Box<ServerConnection>,
    /// Monotonic nanoseconds until which it has to be set up.
    pub deadline: u64,
    /// The peer has sent close_notify, so the data is complete.
    pub ended: bool,
}

impl TlsSession {
    pub fn new(server: &TlsServer, now: u64) -> Result<Self, TlsError> {
        let mut session = ServerConnection::new(server.current().config.clone()).map_err(TlsError::Tls)?;
        // We send nothing but what TLS itself needs.
        session.set_buffer_limit(Some(TLS_READ_BYTES));
        Ok(Self {
            session: Box::new(session),
            deadline: now + HANDSHAKE_NANOS,
            ended: false,
        })
    }

    pub fn is_handshaking(&self) -> bool {
        self.session.is_handshaking()
    }

    /// Takes as many of the received bytes as fit, from the beginning; returns their number. Call [`TlsSession::plain`] until it
    /// has nothing before the next.
    pub fn take(&mut self, mut received: &[u8]) -> Result<usize, TlsError> {
        let before = received.len();
        self.session
            .read_tls(&mut received)
            .map_err(TlsError::Unreadable)?;
        let state = self.session.process_new_packets().map_err(TlsError::Tls)?;
        self.ended |= state.peer_has_closed();
        Ok(before - received.len())
    }

    /// Decrypted bytes; 0 when there are none at the moment.
    pub fn plain(&mut self, buffer: &mut [u8]) -> usize {
        self.session.reader().read(buffer).unwrap_or(0)
    }

    /// Sends what TLS has to say. It is little, so a peer that leaves no room for it does not read at all.
    pub fn answer(&mut self, fd: BorrowedFd<'_>, system_calls: &mut u64) -> io::Result<()> {
        while self.session.wants_write() {
            *system_calls += 1;
            self.session.write_tls(&mut Socket(fd))?;
        }
        Ok(())
    }
}

struct Socket<'a>(BorrowedFd<'a>);

impl io::Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        sys::send(self.0, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
