#!/usr/bin/env bash
# Prints the path of the weir binary the tests run against: WEIR_BIN, else one built here.
set -euo pipefail

if [ -n "${WEIR_BIN:-}" ]; then
  [ -x "$WEIR_BIN" ] || { echo "WEIR_BIN=$WEIR_BIN is not an executable file" >&2; exit 1; }
  echo "$WEIR_BIN"
  exit 0
fi
root=$(cd "$(dirname "$0")/../../.." && pwd)
cargo build --quiet --locked --manifest-path "$root/Cargo.toml" --bin weir >&2
echo "${CARGO_TARGET_DIR:-$root/target}/debug/weir"
