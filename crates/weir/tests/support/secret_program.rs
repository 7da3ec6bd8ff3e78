//! A program that knows secrets, for configurations that ask one.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

/// Answers with the content of `answer` beside it, and keeps the question.
pub const PROGRAM: &str = "#!/bin/sh\nhere=${0%/*}\ncat > \"$here/question\"\necho \"$@\" > \"$here/arguments\"\ncat \"$here/answer\"\n";

pub struct SecretProgram {
    directory: tempfile::TempDir,
}

impl SecretProgram {
    pub fn new(answer: &str) -> SecretProgram {
        let program = SecretProgram {
            directory: tempfile::tempdir().unwrap(),
        };
        program.answers(answer);
        program.becomes(PROGRAM, 0o700);
        program
    }

    /// The place of a file beside it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn answers(&self, answer: &str) {
        std::fs::write(self.path("answer"), answer).unwrap();
    }

    /// Another script, with these rights.
    pub fn becomes(&self, script: &str, mode: u32) {
        let new = self.path("new");
        std::fs::write(&new, script).unwrap();
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(mode)).unwrap();
        std::fs::rename(&new, self.path("program")).unwrap();
    }

    /// A configuration beside it that asks it.
    pub fn configured(&self, config: &str) -> PathBuf {
        let path = self.path("weir.yaml");
        let command = self.path("program").display().to_string();
        std::fs::write(&path, format!("secret_backend_command: {command}\n{config}")).unwrap();
        path
    }
}

/// The answer to one handle.
pub fn answer(handle: &str, value: &str) -> String {
    format!(r#"{{"{handle}":{{"value":"{value}","error":null}}}}"#)
}
