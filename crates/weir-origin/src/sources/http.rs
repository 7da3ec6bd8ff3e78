//! The HTTP client of the sources: over a Unix socket or TLS, with bounded answers.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, ClientBuilder, Response};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

/// How long a source may take to begin an answer, and to go on with it.
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

/// A client that speaks to whoever listens on this socket.
pub fn over_socket(path: &Path) -> Result<ClientBuilder, String> {
    Ok(builder(tls(Roots::None, None)?).unix_socket(path))
}

/// A client for addresses of a network.
pub fn over_network(roots: Roots<'_>, identity: Option<Identity<'_>>) -> Result<Client, String> {
    builder(tls(roots, identity)?).build().map_err(describe)
}

/// PEM files with the certificate, and its key, that a client shows where it is asked for one.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    pub certificate: &'a Path,
    pub key: &'a Path,
}

type Chain = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

impl Identity<'_> {
    fn read(self) -> Result<Chain, String> {
        let refuse = |path: &Path, why: String| format!("{}: {why}", path.display());
        let chain = CertificateDer::pem_file_iter(self.certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| refuse(self.certificate, error.to_string()))?;
        if chain.is_empty() {
            return Err(refuse(self.certificate, "no certificate in it".into()));
        }
        let key = PrivateKeyDer::from_pem_file(self.key)
            .map_err(|error| refuse(self.key, format!("no private key in it: {error}")))?;
        Ok((chain, key))
    }
}

/// Whom a TLS client trusts.
#[derive(Clone, Copy, Debug)]
pub enum Roots<'a> {
    /// There will be no TLS.
    None,
    /// Those of a PEM file, or of the system where there is none.
    File(&'a Path),
    /// Whoever answers.
    Anybody,
}

fn tls(roots: Roots<'_>, identity: Option<Identity<'_>>) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS: {error}"))?;
    let mut store = RootCertStore::empty();
    match roots {
        Roots::None => {}
        Roots::File(path) if path.exists() => {
            let refuse = |why: String| format!("{}: {why}", path.display());
            let certificates =
                CertificateDer::pem_file_iter(path).map_err(|error| refuse(error.to_string()))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|error| refuse(error.to_string()))?;
                store
                    .add(certificate)
                    .map_err(|error| refuse(error.to_string()))?;
            }
            if store.is_empty() {
                return Err(refuse("no certificate in it".into()));
            }
        }
        Roots::File(_) => {
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        Roots::Anybody => {}
    }
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
                .map_err(|error| format!("{}: {error}", identity.key.display()))
        }
    }
}

/// Takes any certificate, for kubelets that sign their own. Signatures are still checked, so a connection is with whoever
/// showed the certificate.
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

/// The whole body of an answer that is a success and not too long.
pub async fn body(mut response: Response, bytes_max: usize) -> Result<Vec<u8>, String> {
    let status = response.status();
    if !status.is_success() {
        return Err(format!("it answers {status}"));
    }
    let mut bytes = Vec::new();
    loop {
        let chunk = tokio::time::timeout(PATIENCE, response.chunk())
            .await
            .map_err(|_| "it stopped in the middle of an answer".to_owned())?
            .map_err(describe)?;
        let Some(chunk) = chunk else {
            return Ok(bytes);
        };
        if bytes.len() + chunk.len() > bytes_max {
            return Err(format!("its answer is longer than {bytes_max} bytes"));
        }
        bytes.extend_from_slice(&chunk);
    }
}

/// The innermost reason, which is the one that tells something.
pub fn describe(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut reason: &dyn Error = &error;
    while let Some(source) = reason.source() {
        reason = source;
    }
    reason.to_string()
}
