//! Runs the program that knows secrets: handles as JSON to its standard input, secrets as JSON from its standard output.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;

use rustix::process::{Pid, Signal, getegid, geteuid, getgroups, kill_process_group};
use serde::{Deserialize, Serialize};
use weir_config::{HandleError, Secret, SecretAnswers, SecretBackend};

/// Maximum size of an answer.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

#[derive(Serialize)]
struct Question<'q> {
    version: &'static str,
    secrets: &'q BTreeSet<String>,
}

#[derive(Deserialize)]
struct Answer {
    value: Option<String>,
    error: Option<String>,
}

/// Why the program gave no answer. No message has a part of an answer.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    #[error("is not set, and the configuration has handles of secrets: {0}")]
    NotSet(String),
    #[error("{} {wrong}", path.display())]
    Rights {
        path: PathBuf,
        #[source]
        wrong: RightsError,
    },
    #[error("{} cannot be run: {error}", path.display())]
    NotRun {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("{} did not end within {seconds} s, and was killed", path.display())]
    Late { path: PathBuf, seconds: u64 },
    #[error("{} ended with {status}; its standard error is in this log", path.display())]
    Failed { path: PathBuf, status: ExitStatus },
    #[error("{}: the answer {wrong}", path.display())]
    Wrong { path: PathBuf, wrong: &'static str },
}

/// An unsuitable state of the program's file.
#[derive(Debug, thiserror::Error)]
pub enum RightsError {
    #[error("is not an absolute path")]
    Relative,
    #[error("cannot be found: {0}")]
    NotFound(#[source] io::Error),
    #[error("is not a file")]
    NotFile,
    #[error("has mode {mode:o}, so others than its owner have rights on it; chmod {remedy}")]
    Others { mode: u32, remedy: &'static str },
    #[error("cannot be executed by its owner; chmod u+x")]
    NotExecutable,
    #[error("cannot be executed by its group; chmod g+x")]
    NotExecutableByGroup,
    #[error("belongs to user {owner}, and weir runs as user {user}; chown {user}")]
    Owner { owner: u32, user: u32 },
    #[error("belongs to user {owner} and group {group}, and weir runs as neither")]
    NeitherOwnerNorGroup { owner: u32, group: u32 },
}

impl BackendError {
    /// Whether the sandbox forbade it: before that, the rights of the program were right.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::NotRun { error, .. } if error.kind() == io::ErrorKind::PermissionDenied)
    }
}

/// Asks for the secrets of `handles`.
pub fn ask(backend: &SecretBackend, handles: &BTreeSet<String>) -> Result<SecretAnswers, BackendError> {
    let Some(path) = &backend.secret_backend_command else {
        let handles: Vec<String> = handles.iter().map(|handle| format!("ENC[{handle}]")).collect();
        return Err(BackendError::NotSet(handles.join(", ")));
    };
    check_rights(path, backend.secret_backend_command_allow_group_exec_perm).map_err(|wrong| {
        BackendError::Rights {
            path: path.clone(),
            wrong,
        }
    })?;
    let question = serde_json::to_vec(&Question {
        version: "1.0",
        secrets: handles,
    });
    let question = question.map_err(|error| BackendError::NotRun {
        path: path.clone(),
        error: error.into(),
    })?;
    let answer = run(path, backend, question)?;
    read(path, &answer, handles)
}

/// The rights that the Datadog Agent asks for: its user owns the program, and nobody else has a right on it.
fn check_rights(path: &Path, for_group: bool) -> Result<(), RightsError> {
    if !path.is_absolute() {
        return Err(RightsError::Relative);
    }
    let found = std::fs::metadata(path).map_err(RightsError::NotFound)?;
    if !found.is_file() {
        return Err(RightsError::NotFile);
    }
    let (mode, user, owner) = (found.mode(), geteuid().as_raw(), found.uid());
    let is_member = || {
        let groups = getgroups().unwrap_or_default();
        let mut own = std::iter::once(getegid()).chain(groups);
        own.any(|group| group.as_raw() == found.gid())
    };
    let (forbidden, remedy) = if for_group { (0o027, "750") } else { (0o077, "700") };
    if mode & forbidden != 0 {
        return Err(RightsError::Others {
            mode: mode & 0o7777,
            remedy,
        });
    }
    match (owner == user, for_group) {
        (true, _) if mode & 0o100 == 0 => Err(RightsError::NotExecutable),
        (true, _) => Ok(()),
        (false, false) => Err(RightsError::Owner { owner, user }),
        (false, true) if mode & 0o010 == 0 => Err(RightsError::NotExecutableByGroup),
        (false, true) if is_member() => Ok(()),
        (false, true) => Err(RightsError::NeitherOwnerNorGroup {
            owner,
            group: found.gid(),
        }),
    }
}

/// Standard output of the program.
fn run(path: &Path, backend: &SecretBackend, question: Vec<u8>) -> Result<Vec<u8>, BackendError> {
    let path = || path.to_owned();
    let mut child = Command::new(path())
        .args(&backend.secret_backend_arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|error| BackendError::NotRun { path: path(), error })?;
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let (done, ended) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        // The receiver has gone if it was too late.
        let _ = done.send(converse(&mut child, &question));
    });
    let limit = backend.secret_backend_timeout;
    let Ok(result) = ended.recv_timeout(limit) else {
        // Its children too, which may hold the pipe open.
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
        return Err(BackendError::Late {
            path: path(),
            seconds: limit.as_secs(),
        });
    };
    // The sandbox wants this to be the only thread.
    let _ = thread.join();
    let (answer, status) = result.map_err(|error| BackendError::NotRun { path: path(), error })?;
    // Before the status: a program that still writes is ended by the closed pipe.
    if answer.len() as u64 > ANSWER_BYTES_MAX {
        return Err(BackendError::Wrong {
            path: path(),
            wrong: "is longer than 1 MiB",
        });
    }
    if !status.success() {
        return Err(BackendError::Failed { path: path(), status });
    }
    Ok(answer)
}

fn converse(child: &mut Child, question: &[u8]) -> io::Result<(Vec<u8>, ExitStatus)> {
    if let Some(mut input) = child.stdin.take() {
        match input.write_all(question) {
            // A program with one secret need not read the question.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
            _ => {}
        }
    }
    let mut answer = Vec::new();
    if let Some(output) = child.stdout.take() {
        output.take(ANSWER_BYTES_MAX + 1).read_to_end(&mut answer)?;
    }
    Ok((answer, child.wait()?))
}

fn read(path: &Path, answer: &[u8], handles: &BTreeSet<String>) -> Result<SecretAnswers, BackendError> {
    let Ok(mut answers) = serde_json::from_slice::<HashMap<String, Option<Answer>>>(answer) else {
        return Err(BackendError::Wrong {
            path: path.to_owned(),
            wrong: "is not JSON of the form {\"handle\": {\"value\": \"...\", \"error\": null}}",
        });
    };
    let mut of = |handle: &String| match answers.remove(handle).flatten() {
        None => Err(HandleError::NotAnswered),
        Some(Answer {
            error: Some(error), ..
        }) if !error.is_empty() => Err(HandleError::Said(weir_config::quote(&error))),
        Some(Answer { value, .. }) => {
            let value = value.unwrap_or_default();
            let value = value.strip_suffix('\n').unwrap_or(&value);
            match value.strip_suffix('\r').unwrap_or(value) {
                "" => Err(HandleError::Empty),
                value => Ok(Secret::new(value)),
            }
        }
    };
    Ok(handles
        .iter()
        .map(|handle| (handle.clone(), of(handle)))
        .collect::<BTreeMap<_, _>>())
}
