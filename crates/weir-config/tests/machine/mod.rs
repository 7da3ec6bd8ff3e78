//! A machine that tests make up.

use std::net::SocketAddr;
use std::path::Path;

use weir_config::{Accounts, Host, HostError, Secret, SecretError, TlsContent, TlsFileError, TlsPaths};

/// A machine with four cores, a gibibyte, and a file of a token.
pub struct Machine;

impl Host for Machine {
    fn name(&self) -> String {
        "box".into()
    }

    fn memory(&self) -> (u64, &'static str) {
        (1 << 30, "the machine")
    }

    fn cores(&self) -> f64 {
        4.0
    }

    fn exists(&self, _: &Path) -> bool {
        false
    }

    fn account(&self, name: &str, _: Accounts) -> Result<u32, HostError> {
        Err(HostError::NoAccount {
            name: name.to_owned(),
            file: "/etc/passwd",
        })
    }

    fn resolve(&self, name: &str, _: u16) -> Result<SocketAddr, HostError> {
        Err(HostError::NoAddress(name.to_owned()))
    }

    fn has_ipv6(&self) -> bool {
        false
    }

    fn has_ipv6_loopback(&self) -> bool {
        true
    }

    fn secret(&self, path: &Path) -> Result<Secret, SecretError> {
        match path.to_str() {
            Some("/token") => Ok(Secret::new("0123456789abcdef")),
            _ => Err(SecretError::Wrong {
                path: path.to_owned(),
                wrong: "does not exist",
            }),
        }
    }

    fn tls(&self, paths: &TlsPaths) -> Result<TlsContent, TlsFileError> {
        Err(TlsFileError {
            path: paths.key.clone(),
            message: "is no key".into(),
        })
    }
}
