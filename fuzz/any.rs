//! One program for all targets, because each would link the whole agent. `WEIR_FUZZ` names the target.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use weir_fuzz_checks::{Check, TARGETS};

static CHECK: LazyLock<Check> = LazyLock::new(|| {
    let wanted = std::env::var("WEIR_FUZZ").unwrap_or_default();
    let found = TARGETS.iter().find(|(name, _)| *name == wanted);
    let names = TARGETS.map(|(name, _)| name).join(", ");
    found
        .unwrap_or_else(|| panic!("WEIR_FUZZ={wanted}: it must be one of {names}"))
        .1
});

fuzz_target!(|bytes: &[u8]| CHECK(bytes));
