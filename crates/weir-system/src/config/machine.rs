//! Facts about the machine that the configuration needs.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use weir_config::{
    Accounts, HandleError, Host, HostError, Secret, SecretAnswers, SecretBackend, SecretBackendError,
    SecretError, TlsContent, TlsFileError, TlsPaths,
};
use weir_listener::{TlsFiles, TlsServer};

use super::backend;
use super::secrets::{self, SecretFile};
use super::{Inputs, KEPT_SECRETS};

pub struct Machine {
    resolve_names: bool,
    /// Whether the program that knows secrets may run.
    run_secret_backend: bool,
    /// Secrets of an earlier reading.
    known_secrets: BTreeMap<String, Secret>,
    /// They were taken, because the program may not run any more.
    kept_secrets: Cell<bool>,
    /// Key and token files that were read.
    secret_files: RefCell<Vec<SecretFile>>,
}

impl Machine {
    pub fn new(inputs: &Inputs) -> Self {
        Self {
            resolve_names: inputs.resolve_names,
            run_secret_backend: inputs.run_secret_backend,
            known_secrets: inputs.known_secrets.clone(),
            kept_secrets: Cell::new(false),
            secret_files: RefCell::default(),
        }
    }

    /// A warning if secrets of an earlier reading were taken.
    pub fn kept_secrets(&self) -> Option<String> {
        self.kept_secrets.get().then(|| KEPT_SECRETS.to_owned())
    }

    pub fn secret_files(self) -> Vec<SecretFile> {
        self.secret_files.into_inner()
    }

    /// The secrets of the start, where the sandbox forbids to ask again.
    fn secrets_of_the_start(&self, handles: &BTreeSet<String>) -> SecretAnswers {
        self.kept_secrets.set(true);
        let known = |handle: &String| {
            self.known_secrets
                .get(handle)
                .cloned()
                .ok_or(HandleError::Forbidden)
        };
        handles
            .iter()
            .map(|handle| (handle.clone(), known(handle)))
            .collect()
    }
}

impl Host for Machine {
    fn name(&self) -> String {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        name.trim().to_owned()
    }

    /// The smaller of the machine's memory and the limits of the process's cgroups.
    fn memory(&self) -> (u64, &'static str) {
        let machine = std::fs::read_to_string("/proc/meminfo")
            .ok()
            .and_then(|text| total_memory(&text));
        let machine = machine.unwrap_or(256 << 20);
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let limit = cgroup_files(&own)
            .iter()
            .filter_map(|file| std::fs::read_to_string(file).ok()?.trim().parse::<u64>().ok())
            .filter(|limit| *limit > 0)
            .min();
        match limit {
            Some(limit) if limit < machine => (limit, "the cgroup's limit"),
            _ => (machine, "the machine"),
        }
    }

    fn cores(&self) -> f64 {
        std::thread::available_parallelism().map_or(1, |cores| cores.get()) as f64
    }

    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }

    /// By number, or by the name in the system's file.
    fn account(&self, name: &str, of: Accounts) -> Result<u32, HostError> {
        if let Ok(id) = name.parse() {
            return Ok(id);
        }
        let file = match of {
            Accounts::Users => "/etc/passwd",
            Accounts::Groups => "/etc/group",
        };
        let listed = std::fs::read_to_string(file).map_err(|error| HostError::Accounts { file, error })?;
        let id = listed.lines().find_map(|line| {
            let mut fields = line.split(':');
            fields.next().filter(|first| *first == name)?;
            fields.nth(1)?.parse().ok()
        });
        id.ok_or_else(|| HostError::NoAccount {
            name: name.to_owned(),
            file,
        })
    }

    fn resolve(&self, name: &str, port: u16) -> Result<SocketAddr, HostError> {
        if !self.resolve_names {
            return Err(HostError::NamesNotResolved(name.to_owned()));
        }
        let found = (name, port)
            .to_socket_addrs()
            .map_err(|error| HostError::NotResolved {
                name: name.to_owned(),
                error,
            })?;
        let found: Vec<SocketAddr> = found.collect();
        let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
        first
            .copied()
            .ok_or_else(|| HostError::NoAddress(name.to_owned()))
    }

    fn has_ipv6(&self) -> bool {
        Path::new("/proc/net/if_inet6").exists()
    }

    fn has_ipv6_loopback(&self) -> bool {
        let addresses = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
        let loopback = format!("{:032x}", 1);
        addresses.lines().any(|line| line.starts_with(&loopback))
    }

    fn secret(&self, path: &Path) -> Result<Secret, SecretError> {
        let (secret, stamp) = secrets::read_secret(path)?;
        let mut files = self.secret_files.borrow_mut();
        // A configuration with handles is read twice.
        files.retain(|file| file.path != path);
        files.push(SecretFile {
            path: path.to_owned(),
            stamp: Some(stamp),
        });
        Ok(Secret::new(secret))
    }

    fn secrets(
        &self,
        backend: &SecretBackend,
        handles: &BTreeSet<String>,
    ) -> Result<Option<SecretAnswers>, SecretBackendError> {
        if !self.run_secret_backend {
            return Ok(None);
        }
        match backend::ask(backend, handles) {
            Ok(answers) => Ok(Some(answers)),
            Err(error) if error.is_forbidden() && !self.known_secrets.is_empty() => {
                Ok(Some(self.secrets_of_the_start(handles)))
            }
            Err(error) => Err(SecretBackendError(error.to_string())),
        }
    }

    fn tls(&self, paths: &TlsPaths) -> Result<TlsContent, TlsFileError> {
        match TlsServer::load(&tls_files(paths)) {
            Ok(server) => Ok(TlsContent {
                certificate: server.certificate(),
                client_ca: server.client_ca(),
            }),
            Err(error) => Err(TlsFileError {
                message: error.to_string(),
                path: error.path,
            }),
        }
    }
}

/// In the form for the listener.
pub fn tls_files(paths: &TlsPaths) -> TlsFiles {
    TlsFiles {
        certificate: paths.certificate.clone(),
        key: paths.key.clone(),
        client_ca: paths.client_ca.clone(),
    }
}

fn total_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Files with a memory limit: those of this cgroup and of every one above it. In a container the root of the mount is the container's own.
fn cgroup_files(own: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (mount, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            list if list.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let mut path = path.trim_matches('/');
        loop {
            files.push(PathBuf::from(mount).join(path).join(file));
            match path.rsplit_once('/') {
                Some((parent, _)) => path = parent,
                None if path.is_empty() => break,
                None => path = "",
            }
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_all_parent_groups_are_read() {
        let files = cgroup_files("0::/system.slice/weir.service\n");
        let shown: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
        assert_eq!(
            shown,
            [
                "/sys/fs/cgroup/system.slice/weir.service/memory.max",
                "/sys/fs/cgroup/system.slice/memory.max",
                "/sys/fs/cgroup/memory.max",
            ]
        );
        let files = cgroup_files("4:memory:/docker/ab\n1:cpu:/x\n0::/\n");
        assert_eq!(
            files[0].display().to_string(),
            "/sys/fs/cgroup/memory/docker/ab/memory.limit_in_bytes"
        );
        assert_eq!(files.len(), 4);
        assert_eq!(total_memory("MemTotal:       16 kB\n"), Some(16_384));
        assert_eq!(total_memory("MemFree: 1 kB"), None);
        let (available, _) = Machine::new(&Inputs::default()).memory();
        assert!(available > 1 << 20);
    }
}
