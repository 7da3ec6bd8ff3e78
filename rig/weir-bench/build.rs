//! Puts the library of experiments into the program, so that an installed one compares without a checkout.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

fn main() -> io::Result<()> {
    let variable = |name| PathBuf::from(std::env::var_os(name).unwrap_or_default());
    let root = variable("CARGO_MANIFEST_DIR").join("../experiments");
    println!("cargo::rerun-if-changed={}", root.display());
    let mut table = String::from("&[\n");
    list(&root, &root, &mut table)?;
    std::fs::write(variable("OUT_DIR").join("library.rs"), table + "]\n")
}

fn list(root: &Path, folder: &Path, table: &mut String) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            list(root, &path, table)?;
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            let name = path.strip_prefix(root).map_err(io::Error::other)?;
            writeln!(table, "    ({name:?}, include_str!({path:?})),").map_err(io::Error::other)?;
        }
    }
    Ok(())
}
