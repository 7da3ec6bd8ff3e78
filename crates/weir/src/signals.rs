//! Signals, and what a reload does.

use std::io;
use std::path::PathBuf;

use tokio::signal::unix::{Signal, SignalKind, signal};

use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use crate::config::{self, Change, Inputs, Loaded};
use crate::sandbox::{self, SandboxStatus};

/// The signals the agent listens to. While this lives, none of them ends the process by itself.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Drain, flush, deliver, end. A second one while doing so means now.
    Stop(&'static str),
    Reload,
}

impl Signals {
    /// Needs a tokio runtime.
    pub fn install() -> io::Result<Self> {
        crate::sys::ignore_file_size_signal();
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// The next request. Dropping the future loses none.
    pub async fn next(&mut self) -> Request {
        tokio::select! {
            _ = self.terminate.recv() => Request::Stop("SIGTERM"),
            _ = self.interrupt.recv() => Request::Stop("SIGINT"),
            _ = self.hangup.recv() => Request::Reload,
        }
    }

    /// The next request to stop; requests to reload, those of `asked` included, are served meanwhile. `apply` gets a
    /// configuration that is valid and differs from the one before, and may refuse it; `reopen` is called at every request,
    /// whatever the configuration says.
    pub async fn until_stop(
        &mut self,
        reloader: &mut Reloader,
        asked: &mut mpsc::Receiver<ReloadRequest>,
        mut apply: impl FnMut(&Loaded) -> Result<(), Vec<String>>,
        mut reopen: impl FnMut(),
    ) -> &'static str {
        loop {
            let answer = tokio::select! {
                request = self.next() => match request {
                    Request::Stop(name) => return name,
                    Request::Reload => None,
                },
                Some(answer) = asked.recv() => Some(answer),
            };
            reopen();
            let reloaded = reloader.reload_and_log(&mut apply);
            if let Some(answer) = answer {
                // Whoever asked may have left.
                let _ = answer.send(reloaded);
            }
        }
    }
}

/// Somebody who wants a reload, and to know what came of it.
pub type ReloadRequest = oneshot::Sender<Reloaded>;

/// What came of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reloaded {
    /// Why nothing has changed; empty when all went well.
    pub errors: Vec<String>,
    pub changes: Vec<ChangeReport>,
    /// Things that are allowed and probably not meant.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChangeReport {
    pub key: String,
    pub from: String,
    pub to: String,
    /// Otherwise it needs a restart.
    pub applied: bool,
}

/// The configuration in force, and how to read it again.
#[derive(Debug)]
pub struct Reloader {
    inputs: Inputs,
    current: Loaded,
    /// What the process started with: settings that need a restart are still as they are here.
    started: Loaded,
    sandbox: SandboxStatus,
}

impl Reloader {
    pub fn new(inputs: Inputs, current: Loaded) -> Self {
        let started = current.clone();
        Self {
            inputs,
            current,
            started,
            sandbox: SandboxStatus::default(),
        }
    }

    /// The configuration file, if there is one.
    pub fn file(&self) -> Option<PathBuf> {
        config::file(&self.inputs)
    }

    /// What the process has given up since, for errors that come of it.
    pub fn sandboxed(&mut self, sandbox: SandboxStatus) {
        self.sandbox = sandbox;
    }

    pub fn current(&self) -> &Loaded {
        &self.current
    }

    /// Reads every source again. A fault, or a refusal of `apply`, changes nothing.
    pub fn reload(
        &mut self,
        mut apply: impl FnMut(&Loaded) -> Result<(), Vec<String>>,
    ) -> Result<Vec<Change>, Vec<String>> {
        let loaded = config::load(&self.inputs)
            .map_err(|problems| problems.0.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        let since_last = loaded.changes(&self.current);
        if !since_last.is_empty() {
            apply(&loaded)?;
        }
        // What needs a restart is told at every reload until there is one, with the value that is in force.
        let waiting = loaded.changes(&self.started);
        let waits = |key: &str| waiting.iter().any(|change| change.key == key && !change.live);
        let applied = since_last
            .into_iter()
            .filter(|change| change.live && !waits(&change.key));
        let mut changes: Vec<Change> = applied.collect();
        changes.extend(waiting.into_iter().filter(|change| !change.live));
        changes.sort_by(|a, b| a.key.cmp(&b.key));
        self.current = loaded;
        Ok(changes)
    }

    /// Like [`Reloader::reload`], and says in the log what came of it.
    pub fn reload_and_log(&mut self, apply: impl FnMut(&Loaded) -> Result<(), Vec<String>>) -> Reloaded {
        let changes = match self.reload(apply) {
            Ok(changes) => changes,
            Err(mut errors) => {
                errors.extend(sandbox::hint(&self.sandbox, &errors));
                for error in &errors {
                    tracing::error!("reload: {error}");
                }
                tracing::error!("reload: the configuration in force stays as it is");
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
                tracing::warn!("reload: {key} will be {to} after a restart; until then it stays {from}");
            }
        }
        let notes = &self.current.notes;
        if !changes.is_empty() {
            for note in notes {
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
            notes: notes.clone(),
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
        // Nothing is new, and the restart still due.
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
            ("outputs.file.enabled", "false", false),
            ("outputs.graphite.enabled", "true", false),
            ("outputs.other.enabled", "true", false),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_changed_output_is_named_until_the_restart_and_no_longer_when_it_is_changed_back() {
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
            assert!(found.iter().all(|change| !change.live), "{found:?}");
            let texts = found
                .into_iter()
                .map(|change| (change.key, change.from, change.to));
            texts.collect::<Vec<_>>()
        };
        let url = |to: &str| {
            let key = "outputs.datadog.url".to_owned();
            (key, "http://a".to_owned(), format!("http://{to}"))
        };
        assert_eq!(changes("b", key), [url("b")]);
        assert_eq!(changes("b", key), [url("b")], "a reminder");
        assert_eq!(
            changes("c", key),
            [url("c")],
            "what is in force is still the first"
        );
        assert_eq!(changes("a", key), []);
        let replaced = changes("a", "ffffffffffffffffffffffffffffffff");
        assert_eq!(replaced[0].0, "outputs.datadog.api_key");
        assert!(!format!("{replaced:?}").contains("0123456789"), "{replaced:?}");
    }
}
