//! The two programs of a comparison: file, start, and supported features.

use super::experiment::{SinkLayer, TargetLayer};
use super::layer::{self, ConfigError, Entries, Layered, List, Result, Slot, layer, suggestion};
use super::library::{Library, Overlay};
use super::record::ArmInfo;
use super::running::{self, Running};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An entry of `targets.yaml`.
#[derive(Debug, Clone)]
pub struct Definition {
    pub name: String,
    pub description: String,
    /// Names of the program, looked up beside `weir-bench` and then in `PATH`.
    pub find: Vec<String>,
    /// A variable that holds the path of the program.
    pub variable: Option<String>,
    pub version: Vec<String>,
    /// Package and binary for `git:` arms, built with cargo.
    pub build: Option<String>,
    /// The same for any program: a command that runs in the revision's worktree and writes `{out}`.
    pub build_command: Vec<String>,
    /// Instructions for getting it, printed when it is missing.
    pub obtain: String,
    pub overlay: Overlay,
    pub supports: Vec<String>,
}

/// One arm, ready to run.
#[derive(Debug, Clone)]
pub struct ArmProgram {
    pub info: ArmInfo,
    pub bin: PathBuf,
    pub overlay: Overlay,
    pub supports: Vec<String>,
    pub running: Option<Running>,
}

/// The programs that can be named, from one file or several.
#[derive(Debug, Default)]
pub struct Targets {
    definitions: Vec<Definition>,
}

/// Entry that starts plain binaries.
pub const USUAL_TARGET: &str = "weir";

/// In place of a target's name: the case has its own `target.command`.
const NONE: &str = "none";

impl Targets {
    /// Targets of the library and of a user's file, whose entries replace those of the same name.
    pub fn of(library: &Library, file: Option<&Path>) -> Result<Self> {
        let mut targets = Self::default();
        for (name, text) in library.targets() {
            targets.add(&text, &name)?;
        }
        if let Some(file) = file {
            targets.add(&layer::read_text(file)?, &file.display().to_string())?;
        }
        Ok(targets)
    }

    fn add(&mut self, text: &str, file: &str) -> Result<()> {
        let found: TargetsLayer = layer::parse(text, file)?;
        if found.targets.is_missing() {
            return Err(ConfigError(format!("{file}: targets: missing")));
        }
        for (name, entry) in found.targets.0 {
            self.definitions.retain(|known| known.name != name);
            self.definitions.push(entry.definition(name));
        }
        Ok(())
    }

    pub fn all(&self) -> &[Definition] {
        &self.definitions
    }

    /// The entry that starts plain binaries; none for a case with a command of its own.
    pub fn like(&self, name: &str) -> Result<Option<&Definition>> {
        match name {
            NONE => Ok(None),
            name => self.get(name).map(Some),
        }
    }

    pub fn get(&self, name: &str) -> Result<&Definition> {
        let names: Vec<&str> = self.definitions.iter().map(|d| d.name.as_str()).collect();
        self.definitions.iter().find(|d| d.name == name).ok_or_else(|| {
            ConfigError(format!(
                "there is no target {name:?}{}; there are: {}; --targets FILE describes others",
                suggestion(name, &names),
                names.join(", ")
            ))
        })
    }
}

layer!(
    /// `targets.yaml`.
    TargetsLayer at "" { targets: Entries<DefinitionLayer>, }
);
layer!(DefinitionLayer at "targets" {
    description: Slot<String>,
    find: Slot<Vec<String>>,
    variable: Slot<String>,
    version: Slot<Vec<String>>,
    build: Slot<String>,
    build_command: Slot<Vec<String>>,
    obtain: Slot<String>,
    supports: Slot<Vec<String>>,
    target: TargetLayer,
    sinks: List<SinkLayer>,
});

impl DefinitionLayer {
    fn definition(self, name: String) -> Definition {
        let list = |slot: &Slot<Vec<String>>| slot.get().cloned().unwrap_or_default();
        Definition {
            description: self.description.text().unwrap_or_default(),
            find: list(&self.find),
            variable: self.variable.text(),
            version: list(&self.version),
            build: self.build.text(),
            build_command: list(&self.build_command),
            obtain: self.obtain.text().unwrap_or_default(),
            supports: list(&self.supports),
            overlay: Overlay {
                names: vec![name.clone()],
                target: self.target,
                sinks: self.sinks,
            },
            name,
        }
    }
}

impl Definition {
    /// The program on this machine, or an error with the places that were searched.
    pub fn locate(&self) -> Result<PathBuf> {
        if let Some(variable) = &self.variable
            && let Some(path) = std::env::var_os(variable)
        {
            let path = PathBuf::from(path);
            return if path.is_file() {
                Ok(path)
            } else {
                Err(ConfigError(format!(
                    "{variable}={}: no such file",
                    path.display()
                )))
            };
        }
        let beside = std::env::current_exe()
            .ok()
            .and_then(|p| p.parent().map(Path::to_owned));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = beside.into_iter().chain(std::env::split_paths(&path));
        for folder in folders {
            for name in &self.find {
                let candidate = folder.join(name);
                if candidate.is_file() {
                    return Ok(candidate);
                }
            }
        }
        let variable = self
            .variable
            .as_ref()
            .map(|v| format!(", or set {v}"))
            .unwrap_or_default();
        let obtain = if self.obtain.is_empty() {
            String::new()
        } else {
            format!("; to get it: {}", self.obtain)
        };
        Err(ConfigError(format!(
            "target {}: found no {} beside weir-bench or in PATH{variable}{obtain}",
            self.name,
            self.find.join(" or ")
        )))
    }
}

/// Resolves a program as `bin:PATH`, `git:REVISION`, `target:NAME`, `pid:PID@ADDRESS` or `cgroup:GROUP@ADDRESS`. `like`: the definition that starts a plain binary or a revision.
pub fn arm(spec: &str, like: &str, targets: &Targets, cache: &Path) -> Result<ArmProgram> {
    let (kind, rest) = spec.split_once(':').ok_or_else(|| {
        ConfigError(format!(
            "{spec:?} is not a target: write bin:PATH, git:REVISION, target:NAME, pid:PID@ADDRESS or cgroup:GROUP@ADDRESS"
        ))
    })?;
    let plain = || -> Result<Option<&Definition>> {
        match targets.all().is_empty() {
            true => Ok(None),
            false => targets.like(like),
        }
    };
    let mut running = None;
    let (definition, bin, commit, dirty) = match kind {
        "bin" => {
            let path = fs::canonicalize(rest).map_err(|e| ConfigError(format!("{spec}: {e}")))?;
            (plain()?, path, String::new(), false)
        }
        "target" => {
            let d = targets.get(rest)?;
            (Some(d), d.locate()?, String::new(), false)
        }
        "git" => {
            let d = targets.get(like)?;
            let (path, commit, dirty) = build(rest, d, cache)?;
            (Some(d), path, commit, dirty)
        }
        // The usual entry says how to start a program, which is of no use here.
        "pid" | "cgroup" => {
            let found = Running::find(kind, rest)?;
            let bin = found.program();
            running = Some(found);
            let d = (like != USUAL_TARGET).then(|| targets.like(like)).transpose()?;
            (d.flatten(), bin, String::new(), false)
        }
        other => {
            return Err(ConfigError(format!(
                "{other:?} is not a kind of target; allowed: bin, git, target, pid, cgroup"
            )));
        }
    };
    let (mut overlay, supports, name, version_args) = match definition {
        Some(d) => (
            d.overlay.clone(),
            d.supports.clone(),
            d.name.clone(),
            d.version.clone(),
        ),
        None => (
            Overlay::default(),
            Vec::new(),
            running::file_name(&bin),
            Vec::new(),
        ),
    };
    if let Some(running) = &running {
        if let Err(e) = fs::File::open(&bin) {
            return Err(ConfigError(format!(
                "{spec}: {}: {e}; another user's program needs root",
                bin.display()
            )));
        }
        overlay.target.override_with(running.settings(spec));
    } else if !is_executable(&bin) {
        return Err(ConfigError(format!(
            "{spec}: {} is not an executable file",
            bin.display()
        )));
    }
    overlay.names.push(spec.to_owned());
    let info = ArmInfo {
        spec: spec.to_owned(),
        target: name,
        bin: bin.display().to_string(),
        args: Vec::new(),
        sha256: sha256(&bin).map_err(|e| ConfigError(format!("{}: {e}", bin.display())))?,
        build_id: build_id(&bin).unwrap_or_default(),
        size: fs::metadata(&bin).map_or(0, |m| m.len()),
        version: match &running {
            Some(running) => format!("process {}", running.pid),
            None => version(&bin, &version_args),
        },
        commit,
        dirty,
        build_profile: build_profile(&bin),
    };
    Ok(ArmProgram {
        info,
        bin,
        overlay,
        supports,
        running,
    })
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

fn sha256(path: &Path) -> std::io::Result<String> {
    let mut file = fs::File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n => hash.update(&buffer[..n]),
        }
    }
    Ok(hex(&hash.finalize()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The GNU build id note: a fixed header `GNU\0` behind two lengths and the type 3.
fn build_id(path: &Path) -> Option<String> {
    let mut head = Vec::new();
    // Linkers put the note near the front.
    fs::File::open(path)
        .ok()?
        .take(1 << 16)
        .read_to_end(&mut head)
        .ok()?;
    let marker = [3, 0, 0, 0, b'G', b'N', b'U', 0];
    let at = head.windows(8).position(|w| w == marker)?;
    let length = u32::from_le_bytes(head.get(at.checked_sub(4)?..at)?.try_into().ok()?) as usize;
    if length > 64 {
        return None;
    }
    head.get(at + 8..at + 8 + length).map(hex)
}

/// Cargo's directories show it; for other programs it is unknown.
fn build_profile(path: &Path) -> String {
    let folders: Vec<String> = path
        .components()
        .map(|c| c.as_os_str().to_string_lossy().into_owned())
        .collect();
    ["release", "debug"]
        .iter()
        .find(|p| folders.iter().any(|f| f == *p))
        .map(|p| (*p).to_owned())
        .unwrap_or_default()
}

fn version(bin: &Path, args: &[String]) -> String {
    if args.is_empty() {
        return String::new();
    }
    let output = Command::new(bin).args(args).stdin(Stdio::null()).output();
    let Ok(output) = output else { return String::new() };
    let text = if output.stdout.is_empty() {
        output.stderr
    } else {
        output.stdout
    };
    String::from_utf8_lossy(&text)
        .lines()
        .next()
        .unwrap_or_default()
        .trim()
        .chars()
        .take(100)
        .collect()
}

/// Why git gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    #[error("git: {0}")]
    Start(#[source] io::Error),
    #[error("git {args}: {message}")]
    Failed { args: String, message: String },
}

pub fn git(args: &[&str], folder: Option<&Path>) -> std::result::Result<String, GitError> {
    let mut command = Command::new("git");
    if let Some(folder) = folder {
        command.current_dir(folder);
    }
    let output = command.args(args).output().map_err(GitError::Start)?;
    if !output.status.success() {
        return Err(GitError::Failed {
            args: args.join(" "),
            message: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        });
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Builds a revision once, in a separate worktree, and keeps the binary by commit.
fn build(revision: &str, d: &Definition, cache: &Path) -> Result<(PathBuf, String, bool)> {
    let fail = |e: String| ConfigError(format!("git:{revision}: {e}"));
    let name = d.build.as_ref().unwrap_or(&d.name);
    if d.build.is_none() && d.build_command.is_empty() {
        return Err(fail(format!(
            "target {} does not say how it is built: build: PACKAGE of Rust, or build_command: [...] that writes {{out}}",
            d.name
        )));
    }
    let commit = git(
        &["rev-parse", "--verify", &format!("{revision}^{{commit}}")],
        None,
    )
    .map_err(|e| fail(e.to_string()))?;
    // Another command builds another program.
    let command = match d.build_command.is_empty() {
        true => String::new(),
        false => hex(&Sha256::digest(d.build_command.join("\0")))[..12].to_owned(),
    };
    let bin = cache
        .join("bin")
        .join(&commit)
        .join("release")
        .join(command)
        .join(name);
    if bin.is_file() {
        return Ok((bin, commit, false));
    }
    let source = cache.join("source").join(&commit);
    let folder = bin.parent().expect("the path above has one");
    for needed in [&cache.join("source"), folder] {
        fs::create_dir_all(needed).map_err(|e| fail(format!("{}: {e}", needed.display())))?;
    }
    // The build runs in another folder.
    let (bin, cache) = (absolute(&bin), absolute(cache));
    if !source.is_dir() {
        let path = source.display().to_string();
        git(&["worktree", "add", "--detach", "--force", &path, &commit], None)
            .map_err(|e| fail(e.to_string()))?;
    }
    eprintln!("building {name} at {} (kept for later runs)", &commit[..12]);
    let (mut builder, made) = builder(d, name, &cache, &bin);
    let built = builder.current_dir(&source).status();
    let program = builder.get_program().to_string_lossy().into_owned();
    let result = match built {
        Ok(status) if status.success() && made == bin => fs::metadata(&bin)
            .map(drop)
            .map_err(|_| fail("build_command did not write {out}".to_owned())),
        Ok(status) if status.success() => fs::copy(made, &bin)
            .map(drop)
            .map_err(|e| fail(format!("{}: {e}", bin.display()))),
        Ok(status) => Err(fail(format!("{program} ended with {status}"))),
        Err(e) => Err(fail(format!("{program}: {e}"))),
    };
    // The worktree is registered in the user's repository, so it is always removed.
    let _ = git(
        &["worktree", "remove", "--force", &source.display().to_string()],
        None,
    );
    result.map(|()| (bin, commit, false))
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The command that builds a program, and the file that it writes.
fn builder(d: &Definition, name: &str, cache: &Path, bin: &Path) -> (Command, PathBuf) {
    if let Some((program, args)) = d.build_command.split_first() {
        let out = bin.display().to_string();
        let mut command = Command::new(program);
        command.args(args.iter().map(|arg| arg.replace("{out}", &out)));
        return (command, bin.to_owned());
    }
    let mut command = Command::new("cargo");
    command
        .args(["build", "--release", "--locked", "--bin", name])
        .env("CARGO_TARGET_DIR", cache.join("target"));
    (command, cache.join("target/release").join(name))
}

/// A feature that an experiment needs and one of the arms lacks.
pub fn lacking(needs: &[String], arms: [&ArmProgram; 2]) -> Option<String> {
    for arm in arms {
        // A plain binary declares nothing, so the experiment's word counts.
        if arm.supports.is_empty() {
            continue;
        }
        let missing: Vec<&str> = needs
            .iter()
            .filter(|n| !arm.supports.contains(n))
            .map(String::as_str)
            .collect();
        if !missing.is_empty() {
            return Some(format!(
                "{} does not support {}",
                arm.info.target,
                missing.join(", ")
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_are_checked() {
        let cache = tempfile::tempdir().unwrap();
        let error = |spec: &str| {
            arm(spec, "weir", &Targets::default(), cache.path())
                .unwrap_err()
                .0
        };
        assert!(error("./weir").contains("bin:PATH, git:REVISION, target:NAME"));
        assert!(error("file:x").contains("allowed: bin, git, target, pid, cgroup"));
        assert!(error("bin:/nowhere/x").contains("/nowhere/x"));
        let plain = cache.path().join("plain");
        fs::write(&plain, "text").unwrap();
        assert!(error(&format!("bin:{}", plain.display())).contains("not an executable"));
    }

    #[test]
    fn a_binary_is_described() {
        let cache = tempfile::tempdir().unwrap();
        let a = arm("bin:/bin/sh", "none", &Targets::default(), cache.path()).unwrap();
        assert_eq!(a.info.sha256.len(), 64);
        assert!(a.info.size > 0);
    }

    #[test]
    fn missing_programs_are_errors_with_the_way_to_get_them() {
        let dir = tempfile::tempdir().unwrap();
        let mut targets = Targets::default();
        let text =
            "targets:\n  peer: {find: [no-such-program-anywhere], obtain: build it, supports: [udp]}\n";
        targets.add(text, "targets.yaml").unwrap();
        let e = arm("target:peer", "weir", &targets, dir.path()).unwrap_err().0;
        assert!(
            e.contains("no-such-program-anywhere") && e.contains("build it"),
            "{e}"
        );
        assert!(
            arm("target:per", "weir", &targets, dir.path())
                .unwrap_err()
                .0
                .contains("did you mean \"peer\"")
        );
    }
}
