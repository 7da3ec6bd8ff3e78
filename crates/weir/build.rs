//! Links a static program so that it starts.

fn main() {
    // Without a file to watch, cargo watches all of the package: a change of a test would compile the program again.
    println!("cargo::rerun-if-changed=build.rs");
    link_statically();
}

/// For the first flag see `crates/weir-system/src/sys/unwinding.rs`, which is compiled under the same condition.
fn link_statically() {
    let is_static = variable("CARGO_CFG_TARGET_FEATURE")
        .split(',')
        .any(|feature| feature == "crt-static");
    if is_static && variable("CARGO_CFG_TARGET_ENV") == "gnu" && variable("CARGO_CFG_TARGET_ARCH") == "x86_64"
    {
        println!("cargo::rustc-link-arg=-Wl,--wrap=_dl_find_object");
        // The standard library refers to these weakly, and where everything is one unit that makes every reference weak: an archive
        // is not searched for weak ones, and who calls them calls nothing. packaging/test/binary.sh looks for others.
        for name in ["gettid", "getrandom", "statx", "copy_file_range"] {
            println!("cargo::rustc-link-arg=-Wl,--undefined={name}");
        }
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}
