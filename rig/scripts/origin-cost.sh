#!/usr/bin/env bash
# The cost of asking the kernel for the sender of each Unix datagram: CPU time per datagram of weir with origin_detection off and
# on, alternating, beside the kernel's own cost (weir-bench floor without and with credentials).
#
#   rig/scripts/origin-cost.sh [PAIRS] [PROFILE]      7 pairs of small-packets (one message per datagram); budget-1k has 8 KiB
#
# Receivers run on CPU 0, the sender on CPU 1. Needs a quiet machine; prints medians and the smallest and largest ratio.
set -euo pipefail
cd "$(dirname "$0")/../.."
pairs=${1:-7} profile=${2:-small-packets} seconds=${SECONDS_PER_RUN:-2}
bin=${BIN:-${CARGO_TARGET_DIR:-target}/release}
[ -n "${BIN:-}" ] || cargo build --release --locked -p weir -p weir-bench 2>/dev/null
directory=$(mktemp -d)
receiver=
trap '[ -z "$receiver" ] || kill "$receiver" 2>/dev/null || true; rm -rf "$directory"' EXIT
socket=$directory/dsd.sock

# CPU time of all threads of a process, in nanoseconds.
spent() { cat /proc/"$1"/task/*/schedstat | awk '{sum += $1} END {printf "%.0f", sum}'; }

wait_for_socket() {
  local deadline=$((SECONDS + 30))
  until [ -S "$socket" ]; do
    [ "$SECONDS" -lt "$deadline" ] || { echo "origin-cost: the receiver did not start" >&2; exit 1; }
    read -rt 0.05 <> <(:) || true
  done
}

# load SEED: prints the number of sent datagrams.
load() {
  taskset -c 1 "$bin/weir-bench" load run --profile "$profile" --seed "$1" --all-out --to "unixgram://$socket" \
    --duration "${2:-$seconds}s" 2>"$directory/load" | sed -n 's/.*"packets":\([0-9]*\).*/\1/p'
}

# weir SEED ARGUMENT...: nanoseconds per datagram. A short load before the measured one creates the contexts.
weir() {
  local seed=$1 before packets
  shift
  rm -f "$socket"
  taskset -c 0 "$bin/weir" run --udp 0 --uds "$socket" --admin off --set outputs.prometheus.enabled=false "$@" 2>"$directory/log" &
  receiver=$!
  wait_for_socket
  load "$seed" 0.5 >/dev/null
  before=$(spent "$receiver")
  packets=$(load "$seed")
  [ -n "$packets" ] || { cat "$directory/load" >&2; exit 1; }
  # At most ten datagrams are still queued.
  echo $((($(spent "$receiver") - before) / packets))
  kill -TERM "$receiver"
  wait "$receiver" || { cat "$directory/log" >&2; exit 1; }
  receiver=
}

# floor SEED VARIANT
floor() {
  local packets
  rm -f "$socket"
  taskset -c 0 "$bin/weir-bench" floor --listen "unixgram://$socket" --receive "$2" >"$directory/floor" 2>/dev/null &
  receiver=$!
  wait_for_socket
  load "$1" >/dev/null
  kill -TERM "$receiver"
  wait "$receiver" || true
  receiver=
  sed -n 's/.*"cpu_ns_per_packet":\([0-9]*\).*/\1/p' "$directory/floor" | tail -1
}

off=() on=() plain=() asking=()
for pair in $(seq "$pairs"); do
  # The order alternates, so that drift of the machine favours neither.
  if [ $((pair % 2)) = 1 ]; then
    off+=("$(weir "$pair")"); on+=("$(weir "$pair" --origin-detection)")
    plain+=("$(floor "$pair" r2)"); asking+=("$(floor "$pair" r3)")
  else
    on+=("$(weir "$pair" --origin-detection)"); off+=("$(weir "$pair")")
    asking+=("$(floor "$pair" r3)"); plain+=("$(floor "$pair" r2)")
  fi
  echo "pair $pair: weir ${off[-1]} and ${on[-1]} ns per datagram, kernel alone ${plain[-1]} and ${asking[-1]}" >&2
done

# row NAME OFF... -- ON...
row() {
  echo "$@" | awk '{
    name = $1; n = (NF - 2) / 2
    for (i = 1; i <= n; i++) { off[i] = $(1 + i); on[i] = $(2 + n + i); ratio[i] = on[i] / off[i] }
    asort_(off, n); asort_(on, n); asort_(ratio, n); middle = int((n + 1) / 2)
    printf "%-12s off %5d ns, on %5d ns, ratio %.2f (%.2f to %.2f)\n", name, off[middle], on[middle], ratio[middle], ratio[1], ratio[n]
  }
  function asort_(a, n,   i, j, t) { for (i = 2; i <= n; i++) for (j = i; j > 1 && a[j] < a[j - 1]; j--) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t } }'
}
echo "$profile, $pairs pairs of $seconds s, $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), commit $(git rev-parse --short HEAD)"
row weir "${off[@]}" -- "${on[@]}"
row kernel "${plain[@]}" -- "${asking[@]}"
