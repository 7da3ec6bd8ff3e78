#!/usr/bin/env bash
# Runs every test of every language.
#
# What fails runs once more: these tests talk to real processes on real sockets, and a machine that stands still for a moment can fail
# one of more than a thousand. What is broken fails twice. What passes the second time is named at the end, because it is a fault too,
# of the test if not of the program.
set -uo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
make=${MAKE:-make}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
broken=()
flaky=()

again() { # COMMAND [ARGUMENT ...]
  echo "test: once more: $*"
  if "$@"; then flaky+=("$*"); else broken+=("$*"); fi
}

"$cargo" test --workspace --locked --no-fail-fast 2>&1 | tee "$log"
if [ "${PIPESTATUS[0]}" -ne 0 ]; then
  # After everything has run, cargo names each target with a failure as the arguments that run it. What does not compile has no names.
  mapfile -t targets < <(sed -n '/^error: [0-9]* targets\{0,1\} failed:$/,$ s/^ *`\(.*\)`$/\1/p' "$log")
  [ "${#targets[@]}" -gt 0 ] || exit 1
  for target in "${targets[@]}"; do
    read -ra arguments <<<"$target"
    again "$cargo" test --locked "${arguments[@]}"
  done
fi

# Tests of clients take the agent that the tests above have built: for them alone it would be built with other features of its
# dependencies, and most of those once more.
WEIR_BIN=${WEIR_BIN:-${CARGO_TARGET_DIR:-$PWD/target}/debug/weir}
export WEIR_BIN
[ -x "$WEIR_BIN" ] || { echo "test: there is no agent at $WEIR_BIN" >&2; exit 1; }
for client in clients/*/Makefile; do
  client=$(dirname "$client")
  "$make" -C "$client" test || again "$make" -C "$client" test
done

sed -n 's/^test \(.*\) \.\.\. FAILED$/test: failed at first: \1/p' "$log"
for name in "${flaky[@]}"; do echo "test: flaky, passed the second time: $name"; done
for name in "${broken[@]}"; do echo "test: failed twice: $name" >&2; done
[ "${#broken[@]}" -eq 0 ]
