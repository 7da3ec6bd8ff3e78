//! Signals, and what a reload does.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::{self, Change, Inputs, Loaded, Problems};

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

    /// The next request to stop; requests to reload are served meanwhile. `apply` gets a configuration that is
    /// valid and differs from the one before; `reopen` is called at every request, whatever the configuration says.
    pub async fn until_stop(
        &mut self,
        reloader: &mut Reloader,
        mut apply: impl FnMut(&Loaded, &[Change]),
        mut reopen: impl FnMut(),
    ) -> &'static str {
        loop {
            match self.next().await {
                Request::Stop(name) => return name,
                Request::Reload => {
                    reopen();
                    if let Some(changes) = reloader.reload_and_log() {
                        apply(reloader.current(), &changes);
                    }
                }
            }
        }
    }
}

/// The configuration in force, and how to read it again.
#[derive(Debug)]
pub struct Reloader {
    inputs: Inputs,
    current: Loaded,
}

impl Reloader {
    pub fn new(inputs: Inputs, current: Loaded) -> Self {
        Self { inputs, current }
    }

    pub fn current(&self) -> &Loaded {
        &self.current
    }

    /// Reads every source again. A fault changes nothing.
    pub fn reload(&mut self) -> Result<Vec<Change>, Problems> {
        let loaded = config::load(&self.inputs)?;
        let changes = loaded.changes(&self.current);
        self.current = loaded;
        Ok(changes)
    }

    /// Like [`Reloader::reload`], and says in the log what came of it. `None` when nothing changed.
    pub fn reload_and_log(&mut self) -> Option<Vec<Change>> {
        let changes = match self.reload() {
            Ok(changes) => changes,
            Err(problems) => {
                for problem in &problems.0 {
                    tracing::error!("reload: {problem}");
                }
                tracing::error!("reload: the configuration in force stays as it is");
                return None;
            }
        };
        if changes.is_empty() {
            tracing::info!("reload: nothing has changed");
            return None;
        }
        for Change { key, from, to, live } in &changes {
            if *live {
                tracing::info!("reload: {key} is now {to}, was {from}");
            } else {
                tracing::warn!("reload: {key} will be {to} after a restart; until then it stays {from}");
            }
        }
        Some(changes)
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
        assert!(reloader.reload().unwrap_err().to_string().contains("log_level"));
        assert_eq!(*reloader.current(), loaded);

        std::fs::write(&file, "log_level: debug\nbucket_width: 1s\n").unwrap();
        let changes = reloader.reload().unwrap();
        let found: Vec<_> = changes
            .iter()
            .map(|change| (change.key.as_str(), change.live))
            .collect();
        assert_eq!(found, [("bucket_width", false), ("log_level", true)]);
        assert_eq!(reloader.reload().unwrap(), []);
    }
}
