#!/usr/bin/env bash
# Ratios of weir to the floor of this machine (weir-bench budget --help). Passes its arguments, for example
# make bench ARGS="--row budget-1k --runs 9". Also writes results/budget.json.
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo build --release --locked -p weir -p weir-bench
mkdir -p results
exec "${CARGO_TARGET_DIR:-target}/release/weir-bench" budget --json results/budget.json "$@"
