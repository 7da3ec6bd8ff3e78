//! Embeds the live page, if it has been built, and passes features and commit to the program.
//!
//! The page is written in `web/` and built by Node into `web/dist`, which `make` does where Node is. Without it the
//! agent serves a page that says how to build it.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;

fn main() -> io::Result<()> {
    println!("cargo::rustc-env=BUILD_FEATURES={}", features().join(","));
    commit();
    page()
}

/// The checkout's commit, unless `make dist` names it. Not in builds for tests: each commit would compile and link all of them again.
fn commit() {
    println!("cargo::rerun-if-env-changed=WEIR_COMMIT");
    if variable("PROFILE") != "release" || std::env::var_os("WEIR_COMMIT").is_some() {
        return;
    }
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("../..");
    let git = |arguments: &[&str]| {
        let ran = Command::new("git").arg("-C").arg(&root).args(arguments).output();
        let text = String::from_utf8(ran.ok().filter(|ran| ran.status.success())?.stdout).ok()?;
        Some(text.trim().to_owned())
    };
    // The source may be in a folder of another repository.
    let is_own = git(&["rev-parse", "--show-prefix"]).is_some_and(|prefix| prefix.is_empty());
    let Some(commit) = git(&["rev-parse", "HEAD"]).filter(|_| is_own) else {
        return;
    };
    println!("cargo::rustc-env=WEIR_COMMIT={commit}");
    if let Some(moves) = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={moves}");
    }
}

/// As in Cargo.toml. Cargo passes them in capitals, each in its own variable.
fn features() -> Vec<String> {
    let mut features: Vec<String> = std::env::vars()
        .filter_map(|(name, _)| {
            Some(
                name.strip_prefix("CARGO_FEATURE_")?
                    .to_lowercase()
                    .replace('_', "-"),
            )
        })
        .filter(|name| name != "default")
        .collect();
    features.sort();
    features
}

fn page() -> io::Result<()> {
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let built = root.join("../../web/dist");
    println!("cargo::rerun-if-changed={}", built.display());
    let out = PathBuf::from(variable("OUT_DIR"));
    let mut files = Vec::new();
    if built.is_dir() {
        collect(&built, &built, &mut files)?;
    }
    files.sort();
    let mut table = String::from("&[\n");
    for (number, (path, name)) in files.iter().enumerate() {
        println!("cargo::rerun-if-changed={}", path.display());
        let packed = out.join(format!("page.{number}.gz"));
        std::fs::write(&packed, compressed(&std::fs::read(path)?)?)?;
        writeln!(table, "    ({name:?}, include_bytes!({packed:?})),").map_err(io::Error::other)?;
    }
    table.push_str("]\n");
    std::fs::write(out.join("page.rs"), table)
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<(PathBuf, String)>) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(root, &path, files)?;
        } else if let Ok(name) = path.strip_prefix(root) {
            let name = name.to_string_lossy().into_owned();
            // The file that keeps the folder in the repository.
            if !name.starts_with('.') {
                files.push((path, name));
            }
        }
    }
    Ok(())
}

fn compressed(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    encoder.finish()
}
