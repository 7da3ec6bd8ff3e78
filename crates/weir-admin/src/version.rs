//! The program's version, commit and features.

use std::fmt::Write as _;

use serde::Serialize;
use weir_output::settings::OUTPUT_TYPES;

use crate::page;

pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Version and, in a release, commit, for the first lines of a log.
pub fn version_and_commit() -> String {
    match option_env!("WEIR_COMMIT") {
        Some(commit) => format!("{VERSION} ({})", &commit[..commit.len().min(12)]),
        None => VERSION.to_owned(),
    }
}

/// The output of `weir --version --json`.
#[derive(Serialize)]
pub struct About {
    pub version: &'static str,
    /// Of a release build from a checkout, or named by `make dist`. A build for tests has none: it would rebuild for each commit.
    pub commit: Option<&'static str>,
    pub target: String,
    /// Whether it needs no system library.
    pub is_static: bool,
    /// Whether it is an optimised build.
    pub is_optimised: bool,
    /// Whether the live page is built in.
    pub has_page: bool,
    /// Non-default Cargo features.
    pub features: Vec<&'static str>,
    pub outputs: Vec<&'static str>,
}

impl About {
    pub fn this() -> Self {
        let abi = if cfg!(target_env = "musl") { "musl" } else { "gnu" };
        About {
            version: VERSION,
            commit: option_env!("WEIR_COMMIT"),
            target: format!("{}-{}-{abi}", std::env::consts::ARCH, std::env::consts::OS),
            is_static: cfg!(target_feature = "crt-static"),
            is_optimised: !cfg!(debug_assertions),
            has_page: page::is_built_in(),
            features: env!("BUILD_FEATURES").split_terminator(',').collect(),
            outputs: OUTPUT_TYPES.iter().map(|known| known.name).collect(),
        }
    }

    /// Text for users. Scripts find the version in the first line.
    pub fn text(&self) -> String {
        let mut text = format!("weir {}\n", self.version);
        let linked = if self.is_static { "static" } else { "dynamic" };
        let built = if self.is_optimised { "release" } else { "debug" };
        let page = if self.has_page {
            "with page"
        } else {
            "without page"
        };
        let _ = writeln!(text, "commit   {}", self.commit.unwrap_or("not known"));
        let _ = writeln!(text, "target   {}, {linked}", self.target);
        let _ = writeln!(text, "build    {built}, {page}");
        let features = if self.features.is_empty() {
            "none".to_owned()
        } else {
            self.features.join(", ")
        };
        let _ = writeln!(text, "features {features}");
        let _ = writeln!(text, "outputs  {}", self.outputs.join(", "));
        text
    }
}
