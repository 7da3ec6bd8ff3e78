#!/usr/bin/env bash
# Runs Miri over the tests of weir-protocol and weir-context: out-of-bounds and dangling accesses, misaligned and uninitialised
# reads, and broken aliasing rules, none of which a test would see. Miri has no instructions beyond those of every x86-64, so it
# sees the portable level; those above it differ in how they load and compare, which the tests compare with it. Each crate
# may take SECONDS_MAX (1800): Miri is some hundred times slower, so floods are left out and random cases are few.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${SECONDS_MAX:-1800}
installed=$(rustup component list --toolchain nightly --installed)
for component in miri rust-src; do
  grep -q "^$component" <<<"$installed" || rustup component add --toolchain nightly "$component"
done
# Tests read the shared vectors, and proptest the seeds of earlier failures.
export MIRIFLAGS=${MIRIFLAGS:--Zmiri-disable-isolation} PROPTEST_CASES=${PROPTEST_CASES:-4}
miri() { # ARGUMENTS of `cargo miri test`
  timeout "$seconds" cargo +nightly miri test --locked "$@"
}
miri -p weir-protocol --lib
miri -p weir-context --lib --test find
