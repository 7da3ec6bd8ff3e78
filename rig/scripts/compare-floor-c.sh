#!/usr/bin/env bash
# Alternates weir-bench's floor and a simple C loop under one sender and prints the median ratio of their CPU
# per message. Receivers on CPU 0, sender on CPU 1. RUNS (default 7) pairs for each row.
set -euo pipefail
cd "$(dirname "$0")/../.."
runs=${RUNS:-7}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cc -O3 -march=native -o "$work/floor-c" rig/experiments/floor-c/floor.c
[ -n "${WEIR_BENCH:-}" ] || cargo build --release --locked -q -p weir-bench
bench=${WEIR_BENCH:-${CARGO_TARGET_DIR:-target}/release/weir-bench}

# measure WHICH TRANSPORT PACKETS BYTES: prints CPU nanoseconds per message of one run.
measure() {
  local which=$1 transport=$2 packets=$3 bytes=$4 where=$work/socket address out=$work/out receiver
  [ "$transport" = udp ] && where=18126 && address=udp://127.0.0.1:18126 || address=unixgram://$where
  rm -f "$work/socket" "$out"
  case $which in
    ours-*) "$bench" floor --listen "$address" --receive "${which#ours-}" --cpu 0 --until-idle 500ms >"$out" & ;;
    c-*) taskset -c 0 "$work/floor-c" "${which#c-}" "$transport" "$where" >"$out" & ;;
  esac
  receiver=$!
  until grep -q listening "$out" 2>/dev/null; do sleep 0.01; done
  taskset -c 1 "$work/floor-c" send "$transport" "$where" "$packets" "$bytes"
  wait "$receiver"
  sed -n 's/.*"cpu_ns_per_message":\([0-9.]*\).*/\1/p' "$out" | tail -1
}

# compare OURS THEIRS TRANSPORT PACKETS BYTES: one row.
compare() {
  local ours=$1 theirs=$2 a b
  shift 2
  : >"$work/pairs"
  for run in $(seq "$runs"); do
    if [ $((run % 2)) = 0 ]; then
      a=$(measure "$ours" "$@")
      b=$(measure "$theirs" "$@")
    else
      b=$(measure "$theirs" "$@")
      a=$(measure "$ours" "$@")
    fi
    echo "$a $b" >>"$work/pairs"
  done
  awk '{ print $1 / $2, $1, $2 }' "$work/pairs" | sort -n | awk -v row="$*" -v ours="$ours" -v theirs="$theirs" '
    { ratio[NR] = $1; a[NR] = $2; b[NR] = $3 }
    END { printf "%-22s %-8s / %-7s median ratio %.3f (%.3f to %.3f), about %.1f and %.1f ns per message\n",
            row, ours, theirs, ratio[int((NR + 1) / 2)], ratio[1], ratio[NR], a[int((NR + 1) / 2)], b[int((NR + 1) / 2)] }'
}

echo "transport, packets, bytes; $runs pairs each"
compare ours-r1 c-recv unixgram 200000 8192
compare ours-r2 c-mmsg unixgram 200000 8192
compare ours-r2 c-mmsg unixgram 500000 150
compare ours-r2 c-mmsg udp 1000000 1432
