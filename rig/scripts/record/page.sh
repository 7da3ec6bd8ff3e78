#!/usr/bin/env bash
# The cost of an open page, or of a reader of the tail (WHAT=tail): CPU per message with and without it, in pairs (PAIRS, SECONDS_OF_WINDOW).
set -euo pipefail
cd "$(dirname "$0")/../../.."
[ -n "${WEIR_BIN:-}" ] || make build
make -C web node_modules/.package-lock.json
cd web
WEIR_BIN="${WEIR_BIN:-../target/release/weir}" node test/cost.mjs "${PAIRS:-12}" "${SECONDS_OF_WINDOW:-10}" "${WHAT:-page}"
