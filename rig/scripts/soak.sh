#!/usr/bin/env bash
# Bounded long runs. Loopback only; ends the processes that it started.
#
# First churning contexts for SOAK_SECONDS (120) against the real agent over a Unix socket: memory must stay flat and the books must
# balance. Then the long forms of the restart tests: HAND_OVERS (20) in a row under load on four transports, as many stops and starts with
# sockets that a service manager keeps, at 200,000 messages a second (four senders, 66 packets of 750 messages a second each), and KILLS
# (100) at random times; clients that send columns (Go and Ruby) through kills and hand-overs; and a fleet through
# 60 faults, over Kafka and over files.
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${SOAK_SECONDS:-120}
release=${CARGO_TARGET_DIR:-target}/release
cargo build --release --locked --bin weir --bin weir-bench
directory=$(mktemp -d)
agent=
cleanup() {
  [ -z "$agent" ] || kill "$agent" 2>/dev/null || true
  rm -rf "$directory"
}
trap cleanup EXIT

"$release/weir" run --udp 0 --uds "$directory/dsd.sock" --admin 127.0.0.1:0 --memory 64MiB \
  --bucket-width 1s --counter-expiry 5s --context-expiry 5s --flush-summary=false 2>"$directory/log" &
agent=$!
deadline=$((SECONDS + 30))
until grep -q 'listening on' "$directory/log" && grep -q 'admin on' "$directory/log"; do
  [ "$SECONDS" -lt "$deadline" ] || { cat "$directory/log"; echo "soak: the agent did not start" >&2; exit 1; }
  read -rt 0.1 <> <(:) || true
done

rss() { awk '/^VmRSS/ {print $2}' "/proc/$agent/status"; }

rounds=6
sizes=()
for round in $(seq "$rounds"); do
  # Every message of this profile has a new context, so contexts are created and expire all the time.
  "$release/weir-bench" load run --profile unique-flood --seed "$round" --rate '20k msg/s' \
    --to "unixgram://$directory/dsd.sock" --duration "$((seconds / rounds))s" >/dev/null
  sizes+=("$(rss)")
  echo "round $round of $rounds: ${sizes[-1]} kB resident"
done
kill -TERM "$agent"
wait "$agent"
agent=
grep -i 'do not balance' "$directory/log" && { echo "soak: the books do not balance" >&2; exit 1; }
# The first rounds fill caches; after that, more than a fifth of growth is a leak.
if [ "${sizes[-1]}" -gt $((sizes[1] * 12 / 10 + 2048)) ]; then
  echo "soak: memory grew from ${sizes[1]} to ${sizes[-1]} kB" >&2
  exit 1
fi
echo "soak: flat at ${sizes[-1]} kB over ${seconds}s"

export WEIR_TEST_HAND_OVERS=${HAND_OVERS:-20} WEIR_TEST_KILLS=${KILLS:-100}
rig/scripts/soak-hand-overs.py --hand-overs "$WEIR_TEST_HAND_OVERS"
rig/scripts/soak-columns.py --hand-overs "$WEIR_TEST_HAND_OVERS"
rig/scripts/soak-columns.py --hand-overs "$WEIR_TEST_HAND_OVERS" --own-timestamps
tests=(cargo nextest run --locked --workspace --features weir/kafka --run-ignored all --test-threads 1 --success-output final)
"${tests[@]}" -E 'test(/^(hand_over|kills|columns_once)::/)'
WEIR_TEST_RESTARTS=$WEIR_TEST_HAND_OVERS WEIR_TEST_MESSAGES=750 \
  "${tests[@]}" -E 'test(/^kept_sockets::with_a_descriptor_store/)'
cargo build --locked --workspace --features weir/kafka --bin weir --bin weir-broker
rig/scripts/soak-fleet.py
rig/scripts/soak-fleet.py --directory
