//! The HTTP client of the sources: over a Unix socket or TLS, with limits on answers.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, ClientBuilder, Response};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::error::{FileError, SourceError};

/// Timeout for the start of an answer and for each pause in it.
pub const PATIENCE: Duration = Duration::from_secs(5);

fn builder(tls: ClientConfig) -> ClientBuilder {
    Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .connect_timeout(PATIENCE)
        .retry(reqwest::retry::never())
        .user_agent(concat!("weir/", env!("CARGO_PKG_VERSION")))
}

/// A client for the server on this socket.
pub fn over_socket(path: &Path) -> Result<ClientBuilder, SourceError> {
    Ok(builder(tls(Roots::None, None)?).unix_socket(path))
}

/// A client for network addresses.
pub fn over_network(roots: Roots<'_>, identity: Option<Identity<'_>>) -> Result<Client, SourceError> {
    Ok(builder(tls(roots, identity)?).build()?)
}

/// PEM files with the client certificate and its key.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    pub certificate: &'a Path,
    pub key: &'a Path,
}

type Chain = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

impl Identity<'_> {
    fn read(self) -> Result<Chain, SourceError> {
        let chain = certificates(self.certificate).map_err(|error| error.of(self.certificate))?;
        let key = PrivateKeyDer::from_pem_file(self.key);
        let key = key.map_err(|error| FileError::NoKey(error).of(self.key))?;
        Ok((chain, key))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let found = CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>()?;
    if found.is_empty() {
        return Err(FileError::NoCertificate);
    }
    Ok(found)
}

fn authorities(path: &Path) -> Result<RootCertStore, FileError> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(path)? {
        store.add(certificate)?;
    }
    Ok(store)
}

/// The certificates that a TLS client trusts.
#[derive(Clone, Copy, Debug)]
pub enum Roots<'a> {
    /// TLS is not used.
    None,
    /// The authorities in a PEM file, or the system's if it does not exist.
    File(&'a Path),
    /// Any certificate.
    Anybody,
}

fn tls(roots: Roots<'_>, identity: Option<Identity<'_>>) -> Result<ClientConfig, SourceError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let store = match roots {
        Roots::File(path) if path.exists() => authorities(path).map_err(|error| error.of(path))?,
        Roots::File(_) => {
            let mut store = RootCertStore::empty();
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            store
        }
        Roots::None | Roots::Anybody => RootCertStore::empty(),
    };
    let builder = if matches!(roots, Roots::Anybody) {
        builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Unverified(provider)))
    } else {
        builder.with_root_certificates(store)
    };
    match identity {
        None => Ok(builder.with_no_client_auth()),
        Some(identity) => {
            let (chain, key) = identity.read()?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| FileError::Tls(error).of(identity.key))
        }
    }
}

/// Accepts any certificate, for kubelets that sign their own. Signatures are still verified, so the peer owns the key of its certificate.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// The body of a successful answer within the size limit.
pub async fn body(mut response: Response, bytes_max: usize) -> Result<Vec<u8>, SourceError> {
    let status = response.status();
    if !status.is_success() {
        return Err(SourceError::Status(status));
    }
    let mut bytes = Vec::new();
    loop {
        let chunk = tokio::time::timeout(PATIENCE, response.chunk())
            .await
            .map_err(|_| SourceError::AnswerStopped)??;
        let Some(chunk) = chunk else {
            return Ok(bytes);
        };
        if bytes.len() + chunk.len() > bytes_max {
            return Err(SourceError::AnswerTooLong(bytes_max));
        }
        bytes.extend_from_slice(&chunk);
    }
}
