//! Functions of the C library that a test replaces in the agent.

// Each test file uses a part of it.
#![allow(dead_code)]

use std::path::Path;

/// The wall clock plus as many seconds as a file says.
pub const OTHER_CLOCK: &str = include_str!("clock.c");

/// Compiles a library that takes the place of functions of the C library.
pub fn preloaded(directory: &Path, source: &str) -> String {
    let at = |name: &str| directory.join(name).display().to_string();
    std::fs::write(at("preloaded.c"), source).unwrap();
    let compiled = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-o", &at("preloaded.so"), &at("preloaded.c")])
        .status();
    assert!(compiled.expect("cc is needed").success());
    at("preloaded.so")
}
