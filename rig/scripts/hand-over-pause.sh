#!/usr/bin/env bash
# The pause in receiving during a hand-over: CONTEXTS (10000) series, HAND_OVERS (5) in a row, with the program of
# PROFILE (release). Prints each pause in milliseconds, the longest last. Loopback only; ends the processes that it started.
set -euo pipefail
cd "$(dirname "$0")/../.."
contexts=${CONTEXTS:-10000}
hand_overs=${HAND_OVERS:-5}
weir=target/${PROFILE:-release}/weir
directory=$(mktemp -d)
running=
cleanup() {
  [ -z "$running" ] || kill "$running" 2>/dev/null || true
  rm -rf "$directory"
}
trap cleanup EXIT

"$weir" run --udp 127.0.0.1:0 --tcp 127.0.0.1:0 --tcp-framing newline --admin 127.0.0.1:0 --memory 1GiB --bucket-width 1h \
  --state-path "$directory/state" --output prometheus --flush-summary=false >/dev/null 2>"$directory/log" &
running=$!
address() { sed -n "s#.*$1\\([0-9.]*:[0-9]*\\).*#\\1#p" "$directory/log" | head -1; }
deadline=$((SECONDS + 60))
until [ -n "$(address 'listening on tcp://')" ] && [ -n "$(address 'admin on http://')" ]; do
  [ "$SECONDS" -lt "$deadline" ] || { cat "$directory/log" >&2; exit 1; }
  read -rt 0.1 <> <(:) || true
done
tcp=$(address 'listening on tcp://')
admin=$(address 'admin on http://')
field() { "$weir" status --json --admin "$admin" | jq -r "$1"; }
# Alternating kinds, as in applications.
awk -v contexts="$contexts" 'BEGIN {
  split("c g ms d", kind, " ")
  for (i = 0; i < contexts; i++) printf "app.requests.latency:%d|%s|#host:web%d,route:/r%d,status:200\n", i, kind[i % 4 + 1], i % 97, i
}' >"/dev/tcp/${tcp%:*}/${tcp##*:}"
until [ "$(field .contexts.live)" -ge "$contexts" ]; do
  [ "$SECONDS" -lt "$((deadline + 60))" ] || { echo "hand-over-pause: the contexts do not come" >&2; exit 1; }
  read -rt 0.2 <> <(:) || true
done
pauses=()
for _ in $(seq "$hand_overs"); do
  "$weir" upgrade --state-path "$directory/state" >/dev/null
  running=$(field .pid)
  [ "$(field .contexts.live)" -ge "$contexts" ] || { echo "hand-over-pause: contexts were lost" >&2; exit 1; }
  pauses+=("$(field '.state.hand_over.pause_seconds * 1000')")
done
printf '%s\n' "${pauses[@]}" | sort -n
kill -TERM "$running"
# The last agent is not a child of this shell, so `wait` cannot be used.
until [ ! -e "/proc/$running" ]; do read -rt 0.1 <> <(:) || true; done
running=
