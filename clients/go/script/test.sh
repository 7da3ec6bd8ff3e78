#!/usr/bin/env bash
# go test with these arguments. Prints what fails, and at the end how many tests were skipped; each with its reason in a
# line `skipped: TEST: REASON`, which `make test` of the repository collects.
set -uo pipefail
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"${GO:-go}" test -v "$@" >"$log" 2>&1
status=$?
if [ "$status" -ne 0 ]; then
  grep -Ev '^=== (RUN|PAUSE|CONT|NAME)|^ *--- PASS' "$log"
else
  grep -E '^ok' "$log"
fi
awk '
  /_test\.go:[0-9]+: / { reason = $0; sub(/^.*_test\.go:[0-9]+: /, "", reason) }
  /^ *--- SKIP: / { count++; lines = lines "skipped: " $3 ": " reason "\n" }
  END { printf "%stests skipped: %d\n", lines, count }' "$log"
exit "$status"
