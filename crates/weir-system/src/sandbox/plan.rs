//! The files and foreign processes that the configuration needs.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use weir_config::node::{self, Node};
use weir_config::{PathUse, Role, Setting, leaves};
use weir_output::settings::OUTPUT_TYPES;

use crate::config::Loaded;
use crate::sys::May;

/// Files that every agent reads: libraries, name resolution, certificate authorities, and kernel information. Directories, because their
/// files are replaced by new ones with the same name.
const READABLE: &[&str] = &[
    "/etc",
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/proc",
    "/sys/fs/cgroup",
    "/sys/devices/system",
    "/run/systemd/resolve",
    "/var/lib/ca-certificates",
    "/dev/null",
    "/dev/random",
    "/dev/urandom",
];

/// Variables with the places of certificate authorities.
const AUTHORITY_VARIABLES: &[&str] = &["SSL_CERT_FILE", "SSL_CERT_DIR"];

/// Maximum entries of a directory that are checked one by one.
const ENTRIES_MAX: usize = 4096;

#[derive(Debug, Default)]
pub struct Plan {
    /// Directories with all that is in them, and files.
    pub readable: Vec<PathBuf>,
    pub writable: Vec<PathBuf>,
    /// The mount that hides the processes of other users unless a capability is kept, if they are needed.
    pub hidden_processes: Option<String>,
    /// Whether socket files get another owner or group.
    pub socket_ownership: bool,
    named: Vec<(PathBuf, PathUse)>,
}

impl Plan {
    /// `file` is the configuration file.
    pub fn of(loaded: &Loaded, file: Option<&Path>) -> Plan {
        let mut named: Vec<(PathBuf, PathUse)> = named_paths(loaded);
        named.extend(file.map(|file| (file.to_owned(), PathUse::Read)));
        let secrets = loaded.secret_files.iter();
        named.extend(secrets.map(|file| (file.path.clone(), PathUse::Read)));
        named.extend(std::env::current_exe().map(|exe| (exe, PathUse::Itself)));
        for variable in AUTHORITY_VARIABLES {
            let value = std::env::var_os(variable).unwrap_or_default();
            named.extend(std::env::split_paths(&value).map(|path| (path, PathUse::Read)));
        }
        // The resolver's file is often a link.
        named.push(("/etc/resolv.conf".into(), PathUse::Read));
        let (mut readable, mut writable) = (BTreeSet::new(), BTreeSet::new());
        readable.extend(READABLE.iter().map(PathBuf::from));
        for (path, used) in &named {
            match used {
                PathUse::Itself => drop(readable.insert(path.clone())),
                PathUse::Read => readable.extend(around(path)),
                PathUse::ReadBeneath => drop(readable.insert(path.clone())),
                PathUse::WriteBeside => drop(writable.insert(parent(path))),
                PathUse::WriteBeneath => {
                    // The output would create it later, but the kernel needs an existing path. If this fails, the output reports the error.
                    let _ = std::fs::create_dir_all(path);
                    writable.insert(path.clone());
                }
                PathUse::Connect => {}
            }
        }
        let config = &loaded.config;
        let unix = config.listeners.has_unix_sockets();
        let owner = &config.addresses.socket_ownership;
        Plan {
            readable: readable.into_iter().filter(|path| path.exists()).collect(),
            writable: writable.into_iter().filter(|path| path.exists()).collect(),
            hidden_processes: config
                .origin
                .origin_detection
                .then(|| hidden_processes(&config.origin.proc_root))
                .flatten(),
            socket_ownership: unix && (owner.uid.is_some() || owner.gid.is_some()),
            named,
        }
    }

    /// All accesses, as far as they are known now.
    pub fn accesses(&self) -> impl Iterator<Item = (PathBuf, May)> {
        self.named.iter().flat_map(|(path, used)| match used {
            PathUse::Itself | PathUse::Read => vec![(path.clone(), May::Read)],
            PathUse::ReadBeneath => vec![(path.clone(), May::List)],
            PathUse::Connect => vec![(path.clone(), May::Write)],
            PathUse::WriteBeside => vec![(parent(path), May::Change), (path.clone(), May::Write)],
            PathUse::WriteBeneath => {
                let mut accesses = vec![(path.clone(), May::Change)];
                let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
                accesses.extend(entries.take(ENTRIES_MAX).map(|entry| (entry.path(), May::Write)));
                accesses
            }
        })
    }
}

/// Every path in a setting, with its use.
pub fn named_paths(loaded: &Loaded) -> Vec<(PathBuf, PathUse)> {
    let own = leaves_of("", role(loaded).settings());
    let outputs = loaded.config.outputs.iter().flat_map(|output| {
        let known = OUTPUT_TYPES.iter().find(|known| known.name == output.output_type);
        let settings = known.map_or(&[][..], |known| known.settings);
        leaves_of(&format!("outputs.{}.", output.name), settings)
    });
    let used = |(key, setting): (String, &Setting)| Some((key, setting.path?));
    let uses: HashMap<String, PathUse> = own.into_iter().chain(outputs).filter_map(used).collect();
    let mut named = Vec::new();
    for shown in &loaded.shown {
        if let Some(used) = uses.get(&shown.key) {
            let node = node::parse(&shown.value).ok().flatten();
            let texts = node
                .iter()
                .flat_map(Node::texts)
                .filter(|text| !text.is_empty() && !weir_units::is_abstract(&path_in(text)));
            named.extend(texts.map(|text| (path_in(text), *used)));
        }
    }
    named
}

fn role(loaded: &Loaded) -> Role {
    match loaded.config.merge {
        Some(_) => Role::Merge,
        None => Role::Agent,
    }
}

/// Every leaf setting, with its full key.
fn leaves_of(
    prefix: &str,
    settings: impl IntoIterator<Item = &'static Setting>,
) -> Vec<(String, &'static Setting)> {
    let leaves = settings
        .into_iter()
        .flat_map(|setting| leaves(std::slice::from_ref(setting)));
    leaves
        .map(|leaf| (format!("{prefix}{}", leaf.path), leaf.setting))
        .collect()
}

/// Socket paths may be written as addresses.
fn path_in(text: &str) -> PathBuf {
    let path = text
        .strip_prefix("unixgram://")
        .or_else(|| text.strip_prefix("unix://"));
    path.unwrap_or(text).into()
}

/// The directories of a file that may be replaced: its own, and those along links. A file in the root directory stands for itself;
/// otherwise everything would be readable.
fn around(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in [Some(path.to_owned()), path.canonicalize().ok()]
        .into_iter()
        .flatten()
    {
        let directory = parent(&path);
        let is_root = directory == Path::new("/");
        found.push(if is_root { path } else { directory });
    }
    found
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
        Some(parent) => parent.to_owned(),
        None => PathBuf::from("/"),
    }
}

/// The mount of `root`, if it shows processes only to their owners.
fn hidden_processes(root: &Path) -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let root = root.canonicalize().ok()?;
    hides(&mounts, &root).then(|| root.display().to_string())
}

fn hides(mounts: &str, root: &Path) -> bool {
    // Of several mounts at one place the last one is visible.
    let at_root = |line: &&str| line.split(' ').nth(4).is_some_and(|at| Path::new(at) == root);
    let last = mounts.lines().rfind(at_root);
    let options = last.and_then(|line| line.split_once(" - ")?.1.split(' ').nth(2));
    options.is_some_and(|options| {
        let hidepid = options
            .split(',')
            .find_map(|option| option.strip_prefix("hidepid="));
        hidepid.is_some_and(|value| !matches!(value, "0" | "off"))
    })
}

#[cfg(test)]
mod tests {
    use weir_config::SettingType;

    use super::*;

    #[test]
    fn hidepid_is_seen_on_the_mount_that_counts() {
        let line = |at: &str, options: &str| format!("24 30 0:22 / {at} rw,nosuid - proc proc rw{options}\n");
        let hides = |mounts: &str| hides(mounts, Path::new("/proc"));
        for (options, expected) in [
            ("", false),
            (",hidepid=0", false),
            (",hidepid=off", false),
            (",hidepid=2", true),
            (",gid=5,hidepid=invisible", true),
        ] {
            assert_eq!(hides(&line("/proc", options)), expected, "{options}");
        }
        assert!(!hides(&line("/host/proc", ",hidepid=2")), "another mount");
        let twice = line("/proc", ",hidepid=2") + &line("/proc", "");
        assert!(!hides(&twice), "the later one is seen");
        assert!(!hides(""));
    }

    #[test]
    fn every_setting_that_looks_like_a_path_declares_its_use() {
        let endings = [
            "path",
            "_file",
            "_ca",
            "_certificate",
            "_key",
            "_token",
            "_root",
            "directory",
        ];
        let outputs = OUTPUT_TYPES
            .iter()
            .flat_map(|output| leaves_of(output.name, output.settings));
        for (key, setting) in leaves_of("", weir_config::settings()).into_iter().chain(outputs) {
            let looks = matches!(setting.kind, SettingType::Text)
                && endings.iter().any(|end| setting.key.ends_with(end));
            // Secret files are those that were read: `Loaded::secret_files`.
            let is_of_secrets = !setting.file_of.is_empty();
            assert!(
                !looks || setting.path.is_some() || is_of_secrets,
                "{key} names a file; .path() says what for"
            );
        }
    }
}
