#!/usr/bin/env bash
# The rate of the first lost packet: one message per UDP datagram at a rate that rises until the kernel drops a packet, then closer
# (to 5 %). weir with its own receive buffer, weir with the system's, as most programs have it, and another agent, in turn, each
# on CPU 1 with the generator on CPU 0. PEER: dogstatsd, gostatsd or statsd-exporter, found in PATH or by its variable (DOGSTATSD_BIN,
# GOSTATSD_BIN, STATSD_EXPORTER_BIN). ROUNDS (1). Less than three minutes per round. On a busy machine, prefix it with `chrt -r 1`
# (as root): generator and target then run before everything else. Adds a section to first-loss.md; delete an older one of the same peer.
source "$(dirname "$0")/common.sh"
peer=${PEER:-statsd-exporter}
rounds=${ROUNDS:-1}

program() { # VARIABLE NAME
  local named=${!1:-}
  [ -n "$named" ] || named=$(command -v "$2") || { echo "record: no $2 in PATH, and $1 names none" >&2; exit 1; }
  echo "$named"
}
case $peer in
  dogstatsd) peer_bin=$(program DOGSTATSD_BIN dogstatsd) ;;
  gostatsd) peer_bin=$(program GOSTATSD_BIN gostatsd) ;;
  statsd-exporter) peer_bin=$(program STATSD_EXPORTER_BIN statsd_exporter) ;;
  *) echo "record: PEER is dogstatsd, gostatsd or statsd-exporter" >&2; exit 1 ;;
esac

# A free port.
free_port() { python3 -c 'import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# serve NAME PORT: becomes the program.
serve() {
  local web
  web=$(free_port)
  case $1 in
    weir) set -- "$WEIR_BIN" run --udp "127.0.0.1:$2" --admin off --flush-summary=false ;;
    weir-small) set -- "$WEIR_BIN" run --udp "127.0.0.1:$2" --admin off --flush-summary=false --receive-buffer 0 ;;
    statsd-exporter) set -- "$peer_bin" "--statsd.listen-udp=127.0.0.1:$2" --statsd.listen-tcp= "--web.listen-address=127.0.0.1:$web" ;;
    gostatsd)
      printf "metrics-addr='127.0.0.1:%s'\nbackends='null'\n" "$2" >"$work/gostatsd.toml"
      set -- "$peer_bin" --config-path "$work/gostatsd.toml"
      ;;
    dogstatsd)
      printf 'api_key: "00000000000000000000000000000000"\ndd_url: "http://127.0.0.1:9"\nhostname: bench\ndogstatsd_port: %s\nexpvar_port: 0\nuse_dogstatsd: true\n' "$2" >"$work/dogstatsd.yaml"
      set -- "$peer_bin" start -c "$work"
      ;;
  esac
  exec env -i PATH="$PATH" HOME="$work" taskset -c 1 "$@" >/dev/null 2>&1
}

# search NAME ROUND: the result of one search as JSON. A program that listens has its port in /proc/net/udp.
search() {
  local port child
  port=$(free_port)
  serve "$1" "$port" &
  child=$!
  until grep -q "$(printf ':%04X 00000000:0000' "$port")" /proc/net/udp /proc/net/udp6; do
    kill -0 "$child" 2>/dev/null || { echo "record: $1 has ended" >&2; exit 1; }
    sleep 0.05
  done
  # A search that disturbances keep running has no result.
  timeout 58 "$bench" load search small-packets --to "udp://127.0.0.1:$port" --cpu 0 --from '10k packets/s' --up-to '600k packets/s' \
    --settle 300ms --probe 1500ms --confirm 4s --precision 0.05 --loss 0 --lateness 100ms 2>>"$work/probes" >"$work/found-$1.$2" || true
  kill "$child"
  wait "$child" 2>/dev/null || true
}

for round in $(seq "$rounds"); do
  for name in weir weir-small "$peer"; do
    search "$name" "$round"
  done
done

# row NAME WHAT: the range over the rounds of the rates without and with a loss.
row() {
  jq -rs --arg what "$2" 'def kilo: . / 100 | round / 10;
    def range: if length == 0 then "-" else (min | kilo | tostring) + (if length > 1 then " to " + (max | kilo | tostring) else "" end) end;
    [.[].rate // empty] as $held
    | [.[] | [.probes[] | select(.loss > 0) | .rate] | min // empty] as $lost
    | ([.[].limited_by] | unique | join(", ") | if . == "" then "the time" else . end) as $why
    | "| \($what) | \($held | range) | \($lost | range) | \($why) |"' "$work/found-$1".*
}

page=$pages/first-loss.md
{
  real_time=""
  chrt -p $$ | grep -q SCHED_RR && real_time="chrt -r 1 "
  echo
  header "# $peer" "PEER=$peer ROUNDS=$rounds ${real_time}rig/scripts/record/first-loss.sh" | sed '1s/^# # /## /'
  echo "| program | no packet lost at | first packet lost at | ended by |"
  echo "| --- | --- | --- | --- |"
  row weir "weir"
  row weir-small "weir with the system's receive buffer (\`receive_buffer: 0\`)"
  row "$peer" "$peer"
} >>"$page"
cat "$work/probes" >&2
echo "written: $page"
