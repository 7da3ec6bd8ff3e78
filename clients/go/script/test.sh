#!/usr/bin/env bash
# go test with these arguments. Prints what fails, and at the end `skipped: N` with each skipped test and its reason.
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
  /^ *--- SKIP: / { count++; lines = lines "  " $3 ": " reason "\n" }
  END { printf "skipped: %d\n%s", count, lines }' "$log"
exit "$status"
