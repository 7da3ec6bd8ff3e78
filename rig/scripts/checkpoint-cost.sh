#!/usr/bin/env bash
# The cost of checkpoints: the CPU time of an agent that gets CONTEXTS (10000) samples a second, each of another series, for
# SECONDS_EACH (20), without and with a state directory. Prints both in milliseconds per second, and the difference as a share of a
# core. PROFILE (release) is the build profile. Loopback only; ends the processes that it started.
set -euo pipefail
cd "$(dirname "$0")/../.."
contexts=${CONTEXTS:-10000}
seconds=${SECONDS_EACH:-20}
weir=target/${PROFILE:-release}/weir
directory=$(mktemp -d)
running=
cleanup() {
  [ -z "$running" ] || kill "$running" 2>/dev/null || true
  rm -rf "$directory"
}
trap cleanup EXIT
awk -v contexts="$contexts" 'BEGIN {
  split("c g ms d", kind, " ")
  for (i = 0; i < contexts; i++) printf "app.requests.latency:%d|%s|#host:web%d,route:/r%d,status:200\n", i, kind[i % 4 + 1], i % 97, i
}' >"$directory/lines"

# CPU time of all threads, in clock ticks.
used() { awk '{ sub(/.*\) /, ""); print $12 + $13 }' "/proc/$running/stat"; }

cost() { # OPTION...: ticks of the whole time
  : >"$directory/log"
  "$weir" run --udp 127.0.0.1:0 --tcp 127.0.0.1:0 --tcp-framing newline --admin off --memory 1GiB --bucket-width 10s --output prometheus \
    --flush-summary=false "$@" >/dev/null 2>"$directory/log" &
  running=$!
  local deadline=$((SECONDS + 60)) tcp= before second
  until tcp=$(sed -n 's#.*listening on tcp://\([0-9.]*:[0-9]*\).*#\1#p' "$directory/log" | head -1) && [ -n "$tcp" ]; do
    [ "$SECONDS" -lt "$deadline" ] || { cat "$directory/log" >&2; exit 1; }
    read -rt 0.1 <> <(:) || true
  done
  exec 9>"/dev/tcp/${tcp%:*}/${tcp##*:}"
  # The first second creates the contexts; the following seconds are alike.
  cat "$directory/lines" >&9
  read -rt 2 <> <(:) || true
  before=$(used)
  for ((second = 0; second < seconds; second++)); do
    cat "$directory/lines" >&9
    read -rt 1 <> <(:) || true
  done
  echo $(($(used) - before))
  exec 9>&-
  kill -TERM "$running"
  wait "$running"
  running=
}

without=$(cost)
with=$(cost --state-path "$directory/state")
awk -v without="$without" -v with="$with" -v seconds="$seconds" -v hz="$(getconf CLK_TCK)" 'BEGIN {
  a = without * 1000 / hz / seconds; b = with * 1000 / hz / seconds
  printf "without %.1f ms/s, with %.1f ms/s: checkpoints, books and sums cost %.2f %% of a core\n", a, b, (b - a) / 10
}'
