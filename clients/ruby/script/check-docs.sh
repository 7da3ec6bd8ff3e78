#!/usr/bin/env bash
# Everything public is documented, and the documentation refers only to what exists.
set -euo pipefail
cd "$(dirname "$0")/.."
output=$(yard stats --list-undoc 2>&1)
if grep -q '\[warn\]' <<<"$output" || ! grep -q '100.00% documented' <<<"$output"; then
  echo "$output" >&2
  exit 1
fi
