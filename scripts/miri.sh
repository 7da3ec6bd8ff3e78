#!/usr/bin/env bash
# Runs Miri over the tests of weir-protocol and weir-context. It finds out-of-bounds and dangling accesses, misaligned and
# uninitialised reads, and broken aliasing rules, which a test does not notice. Miri supports only the instructions of every x86-64, so
# it checks the portable level. The other levels load and compare in other ways; tests compare them with the portable one. Each crate
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
