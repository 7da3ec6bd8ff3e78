//! Restricts the files that can be opened, with Landlock.

use std::path::PathBuf;

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetStatus,
    Scope, path_beneath_rules,
};

use super::plan::Plan;

/// The newest tested version. On older kernels the crate omits unsupported rights.
const KNOWN: ABI = ABI::V7;

/// Why files are not restricted.
#[derive(Debug, thiserror::Error)]
pub enum LandlockError {
    #[error("{0} is mounted with hidepid, and origin detection has to look at other processes")]
    HiddenProcesses(String),
    #[error("this kernel does not support it")]
    NotOffered,
    #[error(transparent)]
    Refused(#[from] landlock::RulesetError),
}

pub fn restrict(plan: &Plan) -> Result<(), LandlockError> {
    if let Some(mount) = &plan.hidden_processes {
        return Err(LandlockError::HiddenProcesses(mount.to_string()));
    }
    let everything = AccessFs::from_all(KNOWN);
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let write =
        everything & !(AccessFs::Execute | AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev);
    let status = Ruleset::default()
        .handle_access(everything)?
        .scope(Scope::Signal)?
        .create()?
        .add_rules(beneath(&plan.readable, read))?
        .add_rules(beneath(&plan.writable, write))?
        .restrict_self()?;
    match status.ruleset {
        RulesetStatus::NotEnforced => Err(LandlockError::NotOffered),
        _ => Ok(()),
    }
}

/// Skips missing paths: they cannot be opened, and the kernel needs an open descriptor.
fn beneath(
    paths: &[PathBuf],
    access: BitFlags<AccessFs>,
) -> impl Iterator<Item = Result<landlock::PathBeneath<landlock::PathFd>, landlock::RulesetError>> {
    path_beneath_rules(paths, access)
}
