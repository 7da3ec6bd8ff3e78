//! What this program is: its version, the commit it was built from, and what is built in.

use std::fmt::Write as _;

use serde::Serialize;
use weir_output::settings::OUTPUT_TYPES;

use crate::admin::page;

pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// As `weir --version --json` prints it.
#[derive(Serialize)]
pub struct About {
    pub version: &'static str,
    /// `make dist` names it; a build by cargo alone has none, and would be built again for each.
    pub commit: Option<&'static str>,
    pub target: String,
    /// It needs no library of the system.
    pub is_static: bool,
    /// It was built to be fast, and not to be debugged.
    pub is_optimised: bool,
    /// The live page is built in.
    pub has_page: bool,
    /// Cargo features that it was built with, beside what each build has.
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

    /// For people, the first line for scripts that look for a version.
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
