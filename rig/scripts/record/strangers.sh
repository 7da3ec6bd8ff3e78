#!/usr/bin/env bash
# The detector as a stranger uses it: two programs of others and one that is slowed down on purpose, with known changes and beside themselves.
# STATE=quiet (nothing else runs) or STATE=busy (beside LOOPS (2) busy loops; 0: other programs keep all processors busy). The page shows
# both, each as recorded last. Per state 7 comparisons of PAIRS (14) pairs, and AA (12) of each program with itself. 40 minutes.
source "$(dirname "$0")/common.sh"
source rig/scripts/record/programs.sh
state=${STATE:-quiet}
pairs=${PAIRS:-14}
aa=${AA:-12}
parts=$(realpath -m "$results/strangers")
programs=$parts/programs
mkdir -p "$parts/$state" "$programs"

in_state "$state"

# A load of one's own for nats-server, and its case, as docs/howto/compare-own-load.md describes them. The server answers the last line when it
# has read all before it.
own_load() {
  mkdir -p "$work/own/experiments/cases/nats"
  cat >"$work/own/load.go" <<'GO'
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

func main() {
	const rate = 20000
	duration, _ := strconv.Atoi(os.Args[2])
	server, err := net.Dial("tcp", "127.0.0.1:"+os.Args[1])
	if err != nil {
		panic(err)
	}
	out, start, sent, answered := bufio.NewWriter(server), time.Now(), 0, 0
	fmt.Fprint(out, "CONNECT {\"verbose\":false}\r\n")
	for total := rate * duration / 1000; sent < total; time.Sleep(time.Millisecond) {
		for due := min(total, int(time.Since(start).Seconds()*rate)); sent < due; sent++ {
			fmt.Fprint(out, "PUB orders 32\r\n0123456789abcdef0123456789abcdef\r\n")
		}
		out.Flush()
	}
	elapsed := time.Since(start).Seconds()
	fmt.Fprint(out, "PING\r\n")
	out.Flush()
	for lines := bufio.NewScanner(server); answered == 0 && lines.Scan() && !strings.HasPrefix(lines.Text(), "-ERR"); {
		if lines.Text() == "PONG" {
			answered = sent
		}
	}
	manifest, _ := json.Marshal(map[string]any{
		"started_unix_ns": start.UnixNano(),
		"totals":          map[string]int{"messages": sent, "acknowledged": answered},
		"sending":         map[string]float64{"elapsed_s": elapsed},
	})
	if err := os.WriteFile(os.Args[3], manifest, 0o644); err != nil {
		panic(err)
	}
}
GO
  (cd "$work/own" && go build -o load load.go)
  cat >"$work/own/experiments/cases/nats/experiment.yaml" <<YAML
description: 20,000 messages of 32 bytes per second
goal: cpu_per_message
target:
  command: ["{bin}", --addr, "127.0.0.1", --port, "{port:nats}"]
  ready: {all_of: [{tcp_port: "{port:nats}"}]}
load:
  - command: ["$work/own/load", "{port:nats}", "{duration_ms}", "{manifest}"]
valid: {min_target_share: 1}
YAML
}

# compare NAME ROWS ARGS...: a comparison and its seconds, unless they are there.
compare() {
  local folder=$parts/$state/$1 rows=$2 code=0 began=$SECONDS
  shift 2
  [ ! -s "$folder/seconds" ] || return 0
  rm -rf "$folder"
  (cd "$work/own" && "$bench" compare "$@" --rows "$rows" --pairs "$pairs" --preset quick --results "$folder" "${flags[@]}") >"$work/report" 2>&1 || code=$?
  # A regression is what most of them are to find.
  [ "$code" -le 1 ] || { cat "$work/report" >&2; exit "$code"; }
  mv "$folder"/*/report.json "$folder/"
  echo $((SECONDS - began)) >"$folder/seconds"
}

# of PROGRAM PERCENT: the arguments for a program and one that does PERCENT more.
of() {
  local buffer=--statsd.read-buffer=4194304
  case $1 in
    practice) echo --baseline target:practice --comparison target:practice "practice${2:+-slower-$2}" ;;
    nats-server) echo --as none --baseline "bin:$(filled_up "$1" 0)" --comparison "bin:$(filled_up "$1" "${2:-0}")" nats ;;
    statsd_exporter)
      echo --as statsd-exporter --baseline "bin:$(filled_up "$1" 0)" --comparison "bin:$(filled_up "$1" "${2:-0}")" \
        --baseline-args=$buffer --comparison-args=$buffer peer-statsd-5k
      ;;
  esac
}

bench=$(realpath "$bench")
own_load
known=(practice-2 practice-5 practice-10 statsd_exporter-4 statsd_exporter-80 nats-server-5 nats-server-30)
# As many intervals of both states hold at once as at 95 % for one.
for name in "${known[@]}"; do
  compare "$name" 1 $(of "${name%-*}" "${name##*-}") --confidence 99.6
done
for name in practice statsd_exporter nats-server; do
  compare "$name-itself" "$aa" $(of "$name" "")
done
command="STATE=$state ${LOOPS:+LOOPS=$LOOPS }PAIRS=$pairs rig/scripts/record/strangers.sh"
echo "\`$command\` on $(date -u +'%Y-%m-%d %H:%M') UTC, commit $commit, $(machine), beside $beside; load at the end $(cut -d' ' -f1-3 /proc/loadavg); $pairs pairs per comparison" >"$parts/$state/recorded"

# cells FOLDER FILTER: what the filter prints of a report, with its minutes.
cells() {
  if [ -s "$1/seconds" ]; then
    jq -r --argjson seconds "$(cat "$1/seconds")" 'def r: . * 100 | round / 100; '"$2"' + " | \($seconds / 6 | round / 10)"' "$1/report.json"
  else
    echo " | "
  fi
}

page=$pages/strangers.md
{
  echo "# Is the detector right about programs of others?"
  for of in quiet busy; do
    [ ! -s "$parts/$of/recorded" ] || { echo; echo "Recorded by $(cat "$parts/$of/recorded")."; }
  done
  echo
  echo "| program | slower by | quiet: estimate (interval of 99.6 %) | minutes | busy: estimate (interval of 99.6 %) | minutes |"
  echo "| --- | --- | --- | --- | --- | --- |"
  change='.rows[0] | if .change then "\(.change.delta | r) % (\(.change.low | r) to \(.change.high | r)), \(.verdict)" else .verdict end'
  for name in "${known[@]}"; do
    echo "| ${name%-*} | ${name##*-} % | $(cells "$parts/quiet/$name" "$change") | $(cells "$parts/busy/$name" "$change") |"
  done
  echo
  echo "Beside itself, intervals of 90 %: comparisons, those without zero, those reported as a change, and minutes for one comparison:"
  echo
  echo "| program | quiet | minutes | busy | minutes |"
  echo "| --- | --- | --- | --- | --- |"
  itself='[.rows[] | select(.change)] | "\(length), \(map(select(.change.low > 0 or .change.high < 0)) | length), \(map(select(.verdict | test("regression|improvement"))) | length)" as $cells | (length as $n | $seconds / $n) as $seconds | $cells'
  for name in practice statsd_exporter nats-server; do
    echo "| $name | $(cells "$parts/quiet/$name-itself" "$itself") | $(cells "$parts/busy/$name-itself" "$itself") |"
  done
} >"$page"
echo "written: $page; raw data: $parts"
