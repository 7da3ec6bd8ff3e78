#!/usr/bin/env bash
# The cost of an open page, of another view (WHAT=metrics), or of a reader of the tail (WHAT=tail): CPU per message of two agents side by
# side, one of them with it, in pairs of windows (PAIRS, SECONDS_OF_WINDOW, RATE).
set -euo pipefail
cd "$(dirname "$0")/../../.."
[ -n "${WEIR_BIN:-}" ] || make build
make -C web node_modules/.package-lock.json
cd web
WEIR_BIN="${WEIR_BIN:-${CARGO_TARGET_DIR:-../target}/release/weir}" node test/cost.mjs "${PAIRS:-12}" "${SECONDS_OF_WINDOW:-10}" "${WHAT:-page}" "${RATE:-200000}"
