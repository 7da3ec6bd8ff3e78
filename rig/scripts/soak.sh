#!/usr/bin/env bash
# A bounded soak: churning contexts for SOAK_SECONDS (120) against the real agent over a Unix socket. Memory must stay flat
# and the books must balance. Loopback only; ends the processes that it started.
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${SOAK_SECONDS:-120}
cargo build --release --locked --bin weir --bin weir-bench
directory=$(mktemp -d)
agent=
cleanup() {
  [ -z "$agent" ] || kill "$agent" 2>/dev/null || true
  rm -rf "$directory"
}
trap cleanup EXIT

target/release/weir run --udp 0 --uds "$directory/dsd.sock" --admin 127.0.0.1:0 --memory 64MiB \
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
  target/release/weir-bench load run --profile unique-flood --seed "$round" --rate '20k msg/s' \
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
