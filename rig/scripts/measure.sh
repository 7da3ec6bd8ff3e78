#!/usr/bin/env bash
# Memory, idle cost, gaps and floods of the real agent without outputs: one Markdown row each, beside the project's budget.
# About four minutes, loopback only, on a quiet machine with two cores. Arguments name rows: memory idle rate gap flood.
set -euo pipefail
cd "$(dirname "$0")/../.."
rows=("$@")
[ "${#rows[@]}" -gt 0 ] || rows=(memory idle rate gap flood)
[ -n "${NO_BUILD:-}" ] || cargo build --release --locked -q -p weir -p weir-bench
release=${CARGO_TARGET_DIR:-target}/release
work=$(mktemp -d)
agent=
cleanup() {
  [ -z "$agent" ] || kill "$agent" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT

# start FLAGS...: an agent on one Unix socket; its status is at $admin.
start() {
  : >"$work/log"
  env -i "$release/weir" run --udp 0 --uds "$work/dsd.sock" --admin 127.0.0.1:0 --flush-summary=false "$@" 2>"$work/log" &
  agent=$!
  until grep -q 'listening on' "$work/log" && grep -q 'admin on' "$work/log"; do
    kill -0 "$agent" 2>/dev/null || { cat "$work/log" >&2; exit 1; }
    read -rt 0.1 <> <(:) || true
  done
  admin=$(sed -n 's/.*admin on \(http:\/\/\)\{0,1\}\([0-9.:]*\).*/\2/p' "$work/log" | head -1)
}

stop() {
  kill -TERM "$agent"
  wait "$agent" || true
  agent=
}

pause() { read -rt "$1" <> <(:) || true; }
resident() { awk '/^VmRSS/ {printf "%.1f", $2 / 1024}' "/proc/$agent/status"; }
# CPU time of all threads, user and system, in clock ticks of 10 ms.
ticks() { awk '{print $14 + $15}' "/proc/$agent/stat"; }
load() { "$release/weir-bench" load run --seed 7 --to "unixgram://$work/dsd.sock" --cpu 1 "$@" 2>/dev/null; }
# contexts NUMBER: the first budget profile with this number of contexts.
contexts() { "$release/weir-bench" load show budget-100k | sed "s/^contexts: .*/contexts: \"$1\"/" >"$work/$1.yaml"; }
field() { python3 -c 'import json,sys; v=json.load(sys.stdin)
for key in sys.argv[1].split("."): v=v[int(key)] if key.isdigit() else v[key]
print(v)' "$1"; }

# The budget is for contexts: no output, no history.
printf 'outputs: {prometheus: {enabled: false}}\nhistory: 0\n' >"$work/alone.yaml"

# The second figure has both, like an agent without configuration.
memory() {
  local row alone
  # After the first flush, which runs code that the start did not keep in memory.
  start --config "$work/alone.yaml"
  pause 13
  alone=$(resident)
  stop
  start
  pause 13
  echo "| resident memory, idle; with history and scrape | $alone MiB; $(resident) MiB | 10 MiB |"
  stop
  for row in 3000:20 10000:30 100000:90 250000:160; do
    contexts "${row%:*}"
    start --config "$work/alone.yaml" --bucket-width 2s
    load --profile "$work/${row%:*}.yaml" --rate '100k msg/s' --duration 12s >/dev/null
    alone=$(resident)
    stop
    start --bucket-width 2s
    load --profile "$work/${row%:*}.yaml" --rate '100k msg/s' --duration 12s >/dev/null
    echo "| resident memory, ${row%:*} contexts; with history and scrape | $alone MiB; $(resident) MiB | ${row#*:} MiB |"
    stop
  done
}

# 50,000 contexts once, then silence: the time until memory is back near its level before. That level is of an agent that has
# received, flushed and expired a few contexts, so the pages of the code that this needs are resident.
idle() {
  # History and scrape keep what came for minutes.
  start --config "$work/alone.yaml" --bucket-width 1s --context-expiry 5s --counter-expiry 5s
  contexts 100
  load --profile "$work/100.yaml" --rate '1k msg/s' --duration 1s >/dev/null
  pause 14
  local before after waited=0
  before=$(resident)
  load --profile low-then-idle --duration 3s >/dev/null
  local peak=$(resident)
  while after=$(resident) && awk "BEGIN {exit !($after > 1.2 * $before)}" && [ "$waited" -lt 90 ]; do
    pause 1
    waited=$((waited + 1))
  done
  echo "| 50,000 contexts that never return: idle $before MiB, $peak MiB with them, after expiry (10 s) and in all $waited s | $after MiB | within 20 % of idle |"
  stop
}

rate() {
  start
  load --profile budget-1k --rate '200k msg/s' --duration 3s >/dev/null
  local from to start_ns end_ns
  from=$(ticks)
  start_ns=$(date +%s%N)
  load --profile budget-1k --rate '200k msg/s' --duration 20s >/dev/null
  end_ns=$(date +%s%N)
  to=$(ticks)
  echo "| 200,000 messages a second in 8 KiB datagrams | $(awk "BEGIN {printf \"%.4f\", ($to - $from) / 100 / (($end_ns - $start_ns) / 1e9)}") of a core | 0.03 |"
  stop
}

gap() {
  contexts 1000000
  start --memory 4GiB
  load --profile "$work/1000000.yaml" --rate '150k msg/s' --duration 45s >/dev/null
  local status
  status=$(curl -s "http://$admin/api/v1/status")
  echo "| longest time between two receive turns, $(field contexts.live <<<"$status") contexts flushing | $(field flush.longest_gap_seconds <<<"$status" | awk '{printf "%.1f", $1 * 1000}') ms | 5 ms |"
  stop
}

flood() {
  start --memory 64MiB --bucket-width 2s
  load --profile unique-flood --rate '100k msg/s' --duration 15s >/dev/null
  echo "| unique-flood, budget of 64 MiB | $(resident) MiB resident | budget and idle |"
  stop
  # One message in ten has a context that never occurs again; the share of the others found by their bytes.
  local sent hot=
  for profile in hot-alone flood-plus-hot; do
    "$release/weir-bench" load show flood-plus-hot >"$work/$profile.yaml"
    [ "$profile" = flood-plus-hot ] || sed -i 's/^flood_p: .*/flood_p: 0.0/' "$work/$profile.yaml"
    start --memory 64MiB --bucket-width 2s
    sent=$(load --profile "$work/$profile.yaml" --rate '100k msg/s' --duration 15s | tail -1 | field messages)
    pause 3
    hot=$(curl -s "http://$admin/api/v1/status" | python3 -c 'import json,sys
misses = json.load(sys.stdin)["contexts"]["alias_misses"]
sent, flood = int(sys.argv[1]), float(sys.argv[2])
print("%.4f" % ((sent - misses) / (sent * (1 - flood))))' "$sent" "$([ "$profile" = hot-alone ] && echo 0 || echo 0.1)")
    echo "| $profile, 64 MiB: share of the hot messages known by their bytes; $(resident) MiB resident | $hot | 95 % of the share without flood |"
    stop
  done
}

echo "| what | measured | budget |"
echo "|---|---|---|"
for row in "${rows[@]}"; do "$row"; done
