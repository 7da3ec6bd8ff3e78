//! Signals and reloads.

use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use tokio::sync::{mpsc, oneshot};

use weir_config::Change;
use weir_status::status::{ChangeReport, ReloadStatus, Reloaded};

use weir_system::config::{self, Inputs, Loaded, Stamp};
use weir_system::sandbox::{self, SandboxStatus};

/// The signals that the agent handles. While this exists, none of them ends the process directly.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    /// The terminal that started this process, if closing it ends the process.
    terminal: Option<File>,
    user2: Signal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Drain, flush, deliver, end. A second signal meanwhile ends at once.
    Stop(&'static str),
    Reload,
    /// Start the program on disk and let it take over.
    Upgrade,
}

impl Signals {
    /// Needs a tokio runtime.
    pub fn install() -> io::Result<Self> {
        weir_system::sys::ignore_file_size_signal();
        // Opened now, because the process may not open it after dropping its rights.
        let terminal = match weir_system::sys::ignores_hangup() {
            true => None,
            false => File::open("/dev/tty").ok(),
        };
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            terminal,
            user2: signal(SignalKind::user_defined2())?,
        })
    }

    /// The next request. Dropping the future loses none.
    pub async fn next(&mut self) -> Request {
        tokio::select! {
            _ = self.terminate.recv() => Request::Stop("SIGTERM"),
            _ = self.interrupt.recv() => Request::Stop("SIGINT"),
            _ = self.hangup.recv() => self.hung_up(),
            _ = self.user2.recv() => Request::Upgrade,
        }
    }

    /// The next request to stop by one of the signals for it. Others wait.
    pub async fn stop(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// SIGHUP means that the terminal was closed, or requests a reload.
    fn hung_up(&self) -> Request {
        // The kernel takes the terminal away before it sends the signal.
        match &self.terminal {
            Some(terminal) if !terminal.is_terminal() => Request::Stop("the terminal was closed"),
            _ => Request::Reload,
        }
    }

    /// The next request, by signal or from `asked`. With `watches`, returns at the latest when files are due to be checked.
    pub async fn until_asked(
        &mut self,
        asked: &mut mpsc::Receiver<ReloadRequest>,
        watches: bool,
    ) -> SignalRequest {
        tokio::select! {
            request = self.next() => match request {
                Request::Stop(name) => SignalRequest::Stop(name),
                Request::Reload => SignalRequest::Reload(None),
                Request::Upgrade => SignalRequest::Upgrade,
            },
            Some(answer) = asked.recv() => SignalRequest::Reload(Some(answer)),
            () = tokio::time::sleep(SECRETS_INTERVAL), if watches => SignalRequest::Nothing,
        }
    }
}

/// See [`Signals::until_asked`].
#[derive(Debug)]
pub enum SignalRequest {
    Stop(&'static str),
    /// With the requester, which gets the result.
    Reload(Option<ReloadRequest>),
    Upgrade,
    /// No request.
    Nothing,
}

/// Interval of checking key and token files.
const SECRETS_INTERVAL: Duration = Duration::from_secs(1);

/// A request for a reload that waits for the result.
pub type ReloadRequest = oneshot::Sender<Reloaded>;

/// The sources that a reload reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reread {
    Everything,
    /// Files with keys and tokens.
    Secrets,
}

/// The active configuration, and its sources.
#[derive(Debug)]
pub struct Reloader {
    inputs: Inputs,
    current: Loaded,
    /// The configuration at the start: settings that need a restart still have these values.
    started: Loaded,
    sandbox: SandboxStatus,
    /// Stamps of key and token files at the last check, and at the last read.
    seen: Vec<Stamp>,
    read: Vec<Stamp>,
    outcome: ReloadStatus,
}

impl Reloader {
    pub fn new(inputs: Inputs, current: Loaded) -> Self {
        let started = current.clone();
        let read: Vec<Stamp> = current.secret_files.iter().map(|file| file.stamp).collect();
        Self {
            inputs,
            current,
            started,
            sandbox: SandboxStatus::default(),
            seen: read.clone(),
            read,
            outcome: ReloadStatus::default(),
        }
    }

    /// The configuration file, if there is one.
    pub fn file(&self) -> Option<PathBuf> {
        config::file(&self.inputs)
    }

    /// Sets the dropped rights, which may cause errors.
    pub fn sandboxed(&mut self, sandbox: SandboxStatus) {
        self.sandbox = sandbox;
    }

    /// Whether key or token files have changed since they were read. Requires two checks with the same stamp, so that no file is read while
    /// it is being written.
    pub fn secrets_changed(&mut self) -> bool {
        let files = self.current.secret_files.iter();
        let found: Vec<Stamp> = files.map(|file| config::stamp(&file.path)).collect();
        let is_at_rest = found == self.seen;
        self.seen = found;
        is_at_rest && self.seen != self.read
    }

    pub fn has_secret_files(&self) -> bool {
        !self.current.secret_files.is_empty()
    }

    /// Results of reloads, for the status.
    pub fn outcome(&self) -> ReloadStatus {
        self.outcome.clone()
    }

    pub fn current(&self) -> &Loaded {
        &self.current
    }

    /// Reads every source again. An error, or a refusal by `apply`, changes nothing.
    pub fn reload(
        &mut self,
        mut apply: impl FnMut(&Loaded) -> Result<(), Vec<String>>,
    ) -> Result<Vec<Change>, Vec<String>> {
        let inputs = self.sources();
        self.reload_from(&inputs, &mut apply)
    }

    /// The sources, and the secrets for a process that may not ask for them again.
    fn sources(&self) -> Inputs {
        Inputs {
            known_secrets: self.current.secrets.clone(),
            ..self.inputs.clone()
        }
    }

    fn reload_from(
        &mut self,
        inputs: &Inputs,
        apply: &mut dyn FnMut(&Loaded) -> Result<(), Vec<String>>,
    ) -> Result<Vec<Change>, Vec<String>> {
        self.read.clone_from(&self.seen);
        let loaded = config::load(inputs)
            .map_err(|problems| problems.0.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        let since_last = loaded.changes(&self.current);
        if !since_last.is_empty() {
            apply(&loaded)?;
        }
        // Settings that need a restart are logged at every reload, with the active value.
        let waiting = loaded.changes(&self.started);
        let waits = |key: &str| waiting.iter().any(|change| change.key == key && !change.live);
        let applied = since_last
            .into_iter()
            .filter(|change| change.live && !waits(&change.key));
        let mut changes: Vec<Change> = applied.collect();
        changes.extend(waiting.into_iter().filter(|change| !change.live));
        changes.sort_by(|a, b| a.key.cmp(&b.key));
        self.read = loaded.secret_files.iter().map(|file| file.stamp).collect();
        self.seen.clone_from(&self.read);
        self.current = loaded;
        Ok(changes)
    }

    /// [`Reloader::reload`], or only of key and token files; logs the result.
    pub fn reload_and_log(
        &mut self,
        what: Reread,
        mut apply: impl FnMut(&Loaded) -> Result<(), Vec<String>>,
    ) -> Reloaded {
        let mut inputs = self.sources();
        if what == Reread::Secrets {
            tracing::info!("a file with a key or token has changed");
            // Unfinished edits of the configuration file must not apply now.
            inputs.text.clone_from(&self.current.text);
        }
        let result = self.reload_from(&inputs, &mut apply);
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        self.outcome
            .note(&result, since.map_or(0, |since| since.as_secs()));
        let changes = match result {
            Ok(changes) => changes,
            Err(mut errors) => {
                errors.extend(sandbox::hint(&self.sandbox, &errors));
                for error in &errors {
                    tracing::error!("reload: {error}");
                }
                tracing::error!("reload: the old configuration stays active");
                return Reloaded {
                    errors,
                    ..Reloaded::default()
                };
            }
        };
        if changes.is_empty() {
            tracing::info!("reload: nothing has changed");
        }
        for Change { key, from, to, live } in &changes {
            if *live {
                tracing::info!("reload: {key} is now {to}, was {from}");
            } else {
                tracing::warn!("reload: {key} stays {from} until a restart, then it will be {to}");
            }
        }
        let notes: Vec<String> = self
            .current
            .warnings
            .iter()
            .chain(&self.current.notes)
            .cloned()
            .collect();
        for warning in &self.current.warnings {
            tracing::warn!("reload: {warning}");
        }
        if !changes.is_empty() {
            for note in &self.current.notes {
                tracing::info!("reload: {note}");
            }
        }
        let report = |change: Change| ChangeReport {
            key: change.key,
            from: change.from,
            to: change.to,
            applied: change.live,
        };
        Reloaded {
            errors: Vec::new(),
            changes: changes.into_iter().map(report).collect(),
            notes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_file_changes_nothing_and_a_good_one_names_its_changes() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("weir.yaml");
        std::fs::write(&file, "log_level: info\n").unwrap();
        let inputs = Inputs {
            file: Some(file.clone()),
            ..Inputs::default()
        };
        let loaded = config::load(&inputs).unwrap();
        let mut reloader = Reloader::new(inputs, loaded.clone());

        std::fs::write(&file, "log_level: loud\n").unwrap();
        assert!(reloader.reload(|_| Ok(())).unwrap_err()[0].contains("log_level"));
        assert_eq!(*reloader.current(), loaded);

        std::fs::write(&file, "log_level: debug\nbucket_width: 1s\n").unwrap();
        let refused = reloader.reload(|_| Err(vec!["not now".into()]));
        assert_eq!(refused.unwrap_err(), ["not now"]);
        assert_eq!(*reloader.current(), loaded);
        let changes = reloader.reload(|_| Ok(())).unwrap();
        let found: Vec<_> = changes
            .iter()
            .map(|change| (change.key.as_str(), change.live))
            .collect();
        assert_eq!(found, [("bucket_width", false), ("log_level", true)]);
        // No new changes, and the restart is still due.
        let changes = reloader.reload(|_| unreachable!()).unwrap();
        assert_eq!(changes.len(), 1);
        assert_eq!(
            (changes[0].key.as_str(), changes[0].from.as_str()),
            ("bucket_width", "10s")
        );
    }

    #[test]
    fn an_output_that_is_switched_on_or_off_is_one_change() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("weir.yaml");
        std::fs::write(&file, "outputs: {file: {path: /a}}\n").unwrap();
        let inputs = Inputs {
            file: Some(file.clone()),
            ..Inputs::default()
        };
        let loaded = config::load(&inputs).unwrap();
        let mut reloader = Reloader::new(inputs, loaded);
        let text = "outputs: {graphite: {address: 'tcp://a:1'}, other: {type: file, path: /b}}\n";
        std::fs::write(&file, text).unwrap();
        let changes = reloader.reload(|_| Ok(())).unwrap();
        let found: Vec<_> = changes
            .iter()
            .map(|change| (change.key.as_str(), change.to.as_str(), change.live))
            .collect();
        let expected = [
            ("outputs.file.enabled", "false", true),
            ("outputs.graphite.enabled", "true", true),
            ("outputs.other.enabled", "true", true),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_changed_output_is_applied_and_its_key_is_not_shown() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("weir.yaml");
        let write = |url: &str, key: &str| {
            let text = format!("outputs: {{datadog: {{url: 'http://{url}', api_key: {key}}}}}\n");
            std::fs::write(&file, text).unwrap();
        };
        let key = "0123456789abcdef0123456789abcdef";
        write("a", key);
        let inputs = Inputs {
            file: Some(file.clone()),
            ..Inputs::default()
        };
        let loaded = config::load(&inputs).unwrap();
        let mut reloader = Reloader::new(inputs, loaded);
        let mut changes = |url: &str, key: &str| {
            write(url, key);
            let found = reloader.reload(|_| Ok(())).unwrap();
            assert!(found.iter().all(|change| change.live), "{found:?}");
            let texts = found
                .into_iter()
                .map(|change| (change.key, change.from, change.to));
            texts.collect::<Vec<_>>()
        };
        let url = |from: &str, to: &str| {
            let key = "outputs.datadog.url".to_owned();
            (key, format!("http://{from}"), format!("http://{to}"))
        };
        assert_eq!(changes("b", key), [url("a", "b")]);
        assert_eq!(changes("b", key), [], "it is active");
        assert_eq!(changes("c", key), [url("b", "c")]);
        let replaced = changes("c", "ffffffffffffffffffffffffffffffff");
        assert_eq!(replaced[0].0, "outputs.datadog.api_key");
        assert!(!format!("{replaced:?}").contains("0123456789"), "{replaced:?}");
    }
}
