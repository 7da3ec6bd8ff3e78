#!/usr/bin/env bash
# The rate of the first lost packet: one message per UDP datagram at a rate that rises until the kernel drops a packet, then closer
# (to 5 %). weir with its own receive buffer, weir with the system's, as most programs have it, and another agent, in turn, each
# on CPU 1 with the generator on CPU 0. PEER: dogstatsd, gostatsd or statsd-exporter, found in PATH or by its variable (DOGSTATSD_BIN,
# GOSTATSD_BIN, STATSD_EXPORTER_BIN). ROUNDS (1; 0 leaves this out). Less than three minutes per round.
#
# Then CPU time, memory and lost packets at each of RATES (thousand packets a second), SWEEPS (ROUNDS) times, SECONDS_EACH (4) for each program and
# rate: three more minutes per sweep, also drawn as first-loss.svg. On a busy machine, prefix it with `chrt -r 1` (as root): generator and
# target then run before everything else. Adds a section to first-loss.md; delete an older one of the same peer.
source "$(dirname "$0")/common.sh"
peer=${PEER:-statsd-exporter}
rounds=${ROUNDS:-1}
sweeps=${SWEEPS:-$rounds}
read -ra rates <<<"${RATES:-5 10 20 40 60 80 120 160 240 320}"

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

# serve_ready NAME: starts the program; sets `port` and `child`. A program that listens has its port in /proc/net/udp.
serve_ready() {
  port=$(free_port)
  serve "$1" "$port" &
  child=$!
  until grep -q "$(printf ':%04X 00000000:0000' "$port")" /proc/net/udp /proc/net/udp6; do
    kill -0 "$child" 2>/dev/null || { echo "record: $1 has ended" >&2; exit 1; }
    sleep 0.05
  done
}

end() {
  kill "$child"
  wait "$child" 2>/dev/null || true
}

# search NAME ROUND: the result of one search as JSON.
search() {
  local port child
  serve_ready "$1"
  # A search that disturbances keep running has no result.
  timeout 58 "$bench" load search small-packets --to "udp://127.0.0.1:$port" --cpu 0 --from '10k packets/s' --up-to '600k packets/s' \
    --settle 300ms --probe 1500ms --confirm 4s --precision 0.05 --loss 0 --lateness 100ms 2>>"$work/probes" >"$work/found-$1.$2" || true
  end
}

# CPU time of the program so far, nanoseconds.
cpu_time() { cat /proc/"$child"/task/*/schedstat | awk '{sum += $1} END {print sum}'; }

# at_rate NAME RATE: a line with name, rate, CPU time in % of a core, peak of the resident memory in MiB, and lost packets in %. Without the last three where the
# generator did not keep up.
at_rate() {
  local port child before
  serve_ready "$1"
  # Its start is not part of the rate.
  sleep 1
  before=$(cpu_time)
  "$bench" load run small-packets --to "udp://127.0.0.1:$port" --cpu 0 --rate "${2}k packets/s" --duration "${SECONDS_EACH:-4}s" >"$work/sent" 2>>"$work/probes"
  # Packets that wait in the socket are a part of the work.
  sleep 0.5
  jq -r --arg name "$1" --argjson rate "$2" --argjson cpu "$(($(cpu_time) - before))" --argjson kib "$(sed -n 's/^VmHWM:[[:space:]]*\([0-9]*\) kB/\1/p' "/proc/$child/status")" '
    def tenths: . * 10 | round / 10;
    [$name, $rate] + if .achieved < 0.97 * .scheduled then ["-", "-", "-"]
      else [($cpu / .elapsed_s / 1e7 | tenths), ($kib / 1024 | tenths), (100 * .kernel_drops / .packets * 1000 | round / 1000)] end | @tsv' "$work/sent" >>"$work/sweep"
  end
}

for round in $(seq "$rounds"); do
  for name in weir weir-small "$peer"; do
    search "$name" "$round"
  done
done

touch "$work/sweep" "$work/probes"
for _ in $(seq "$sweeps"); do
  for rate in "${rates[@]}"; do
    for name in weir weir-small "$peer"; do
      at_rate "$name" "$rate"
    done
  done
done

# figures NAME RATE COLUMN: median, least and most over the sweeps; `-` where the generator did not keep up once.
figures() {
  awk -F'\t' -v n="$1" -v r="$2" -v c="$3" '$1 == n && $2 == r {print $c}' "$work/sweep" | sort -g |
    awk '$1 == "-" {missing = 1} {v[NR] = $1} END {print missing || !NR ? "-" : v[int((NR + 1) / 2)] " " v[1] " " v[NR]}'
}

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
  if [ "$rounds" -gt 0 ]; then
    echo "| program | no packet lost at | first packet lost at | ended by |"
    echo "| --- | --- | --- | --- |"
    row weir "weir"
    row weir-small "weir with the system's receive buffer (\`receive_buffer: 0\`)"
    row "$peer" "$peer"
  fi
  if [ "$sweeps" -gt 0 ]; then
    echo
    echo "CPU in % of a core, resident memory at its peak in MiB, packets that the kernel dropped in %: medians of $sweeps sweeps of ${SECONDS_EACH:-4} s at each rate (thousand packets a second)."
    echo "The third column of each has the system's receive buffer. \`-\`: the generator did not keep up."
    echo
    echo "![CPU, memory and lost packets over the rate](first-loss.svg)"
    echo
    echo "| rate | CPU: weir | $peer | small buffer | memory: weir | $peer | small buffer | lost: weir | $peer | small buffer |"
    echo "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for rate in "${rates[@]}"; do
      line="| $rate"
      for column in 3 4 5; do
        for name in weir "$peer" weir-small; do
          line+=" | $(figures "$name" "$rate" "$column" | cut -d' ' -f1)"
        done
      done
      echo "$line |"
    done
  fi
} >>"$page"
for name in weir weir-small "$peer"; do
  [ "$sweeps" -gt 0 ] || break
  shown=${name/weir-small/weir, 208 KiB}
  for rate in "${rates[@]}"; do
    printf 'packets a second/%s\t%s\t%s\t%s\t%s\n' "$shown" "${rate}000" "$(figures "$name" "$rate" 3)" "$(figures "$name" "$rate" 4)" "$(figures "$name" "$rate" 5)"
  done
done >"$work/chart"
[ "$sweeps" = 0 ] || rig/scripts/record/growth-chart.py "CPU, % of a core" "peak memory, MiB" "=lost packets, %" <"$work/chart" >"$pages/first-loss.svg"
cat "$work/probes" >&2
echo "written: $page"
