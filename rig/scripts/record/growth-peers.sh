#!/usr/bin/env bash
# Cost by size of whole agents: CPU per message and resident bytes per context of weir, the Datadog Agent's dogstatsd (DOGSTATSD_BIN) and
# the agent data plane (ADP_BIN), as medians of RUNS (3) alternating runs. A program without its variable is left out. Writes
# docs/benchmarks/growth-peers.md with a chart, and the figures of each run to raw/growth-peers.tsv.gz. About 25 minutes and 3 GB, two cores.
#
#   CONTEXTS, TAGS   sizes (100 to 1,000,000 contexts, no tags); TAGS="1 16 256" adds 1000 contexts with these numbers of tags, 15 minutes
#   RATE             messages a second with 7 tags (60000); messages with more tags are sent at about the same bytes a second
#   WINDOW, WINDOW_LARGE   measured seconds below 100,000 contexts and from there on (15, 30): multiples of all intervals between flushes
#   PROGRAMS         weir dogstatsd adp; weir-default is weir with its default outputs besides Datadog's: scrape and history
#   DOGSTATSD_VERSION, ADP_VERSION   what the page calls the programs
source "$(dirname "$0")/common.sh"
runs=${RUNS:-3} rate=${RATE:-60000} window=${WINDOW:-15} window_large=${WINDOW_LARGE:-30}
read -ra by_contexts <<<"${CONTEXTS-100 1000 10000 100000 1000000}"
read -ra by_tags <<<"${TAGS-}"
read -ra wanted <<<"${PROGRAMS:-weir dogstatsd adp}"
declare -A binary=([weir]=$WEIR_BIN [weir-default]=$WEIR_BIN [dogstatsd]=${DOGSTATSD_BIN:-} [adp]=${ADP_BIN:-})
key=00000000000000000000000000000000
agent= sink= load=

programs=()
for name in "${wanted[@]}"; do
  if [ -x "${binary[$name]:-}" ]; then
    programs+=("$name") binary[$name]=$(realpath "${binary[$name]}")
  else
    echo "$name is left out: its variable names no program" >&2
  fi
done

end() { [ -z "${1:-}" ] || { kill -KILL "$1" && wait "$1"; } 2>/dev/null || true; }
cleanup() {
  end "$load"
  end "$agent"
  end "$sink"
  rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM
die() { echo "record: $*" >&2; exit 1; }
pause() { read -rt "$1" <> <(:) || true; }
# window SECONDS: waits in short turns. `gap` is the longest, in microseconds: a paused machine shows as a long one.
window() {
  local end=$((${EPOCHREALTIME/[.,]/} + $1 * 1000000)) at now=${EPOCHREALTIME/[.,]/}
  gap=0
  while [ "$now" -lt "$end" ]; do
    at=$now
    pause 0.5
    now=${EPOCHREALTIME/[.,]/}
    [ $((now - at)) -le "$gap" ] || gap=$((now - at))
  done
}
# until_true SECONDS WHAT COMMAND...: polls, because a socket or a log line of another program raises no event here. Turns are counted, not
# time: a virtual machine may be paused.
until_true() {
  local turns=$((10 * $1)) what=$2
  shift 2
  until "$@"; do
    [ $((turns--)) -gt 0 ] || die "$what: not within its time; $(tail -n 3 "$work/log" 2>/dev/null)"
    [ -z "$agent" ] || kill -0 "$agent" 2>/dev/null || die "$what: the program has ended; $(tail -n 3 "$work/log")"
    pause 0.1
  done
}

# The sender, the sink and the readings have core 1, each program core 0. The sender comes before the sink.
[ "$(nproc)" -ge 2 ] || die "two cores are needed"
taskset -c 1 nice -n 10 "$bench" sink --listen datadog=127.0.0.1:0 --keep 0 >"$work/sink" 2>"$work/sink.log" &
sink=$!
until_true 10 "sink" grep -q '"ready":true' "$work/sink"
intake=$(sed -nE 's/.*"address":"([^"]*)".*/\1/p' "$work/sink" | head -1)
read -r port_a port_b port_c < <(python3 -c 'import socket
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(s.getsockname()[1] for s in held))')

# configure NAME: its files, its command in `command`, and where it counts messages in `counters` and `counted`. Limits on contexts are raised;
# the rest is as the programs come, except that none of them asks the network for more than the sink. ADP's payloads are halved, because those of
# two buckets have more points than the intake allows.
configure() {
  case $1 in
    weir | weir-default)
      {
        printf 'udp: []\nuds: [%s]\nadmin: 127.0.0.1:%s\nhostname: bench\nmemory: 4GiB\nflush_summary: false\n' "$work/dsd.sock" "$port_a"
        printf 'outputs:\n  datadog: {api_key: "%s", url: "%s"}\n' $key "$intake"
        [ "$1" = weir-default ] || printf '  prometheus: {enabled: false}\nhistory: 0\n'
      } >"$work/weir.yaml"
      chmod o-r "$work/weir.yaml"
      command=("${binary[$1]}" run --config "$work/weir.yaml")
      counters=http://127.0.0.1:$port_a/api/v1/status counted='\A.*?"messages":\{"accepted":(\d+)'
      ;;
    dogstatsd)
      cat >"$work/dogstatsd.yaml" <<END
api_key: "$key"
dd_url: "$intake"
hostname: bench
dogstatsd_port: 0
dogstatsd_socket: "$work/dsd.sock"
dogstatsd_stats_port: $port_a
expvar_port: $port_a
use_dogstatsd: true
disable_file_logging: true
enable_metadata_collection: false
inventories_enabled: false
cloud_provider_metadata: []
run_path: "$work"
END
      command=("${binary[$1]}" start -c "$work")
      counters=http://127.0.0.1:$port_a/debug/vars counted='"MetricPackets": (\d+)'
      ;;
    adp)
      [ -s "$work/ipc.pem" ] || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost \
        -keyout "$work/key.pem" -out "$work/cert.pem" 2>/dev/null
      cat "$work/cert.pem" "$work/key.pem" >"$work/ipc.pem"
      cat >"$work/adp.yaml" <<END
api_key: "$key"
dd_url: "$intake"
hostname: bench
dogstatsd_port: 0
dogstatsd_socket: "$work/dsd.sock"
ipc_cert_file_path: "$work/ipc.pem"
aggregate_context_limit: 2000000
dogstatsd_cached_contexts_limit: 2000000
dogstatsd_cached_tagsets_limit: 2000000
serializer_max_metrics_per_payload: 5000
data_plane:
  enabled: true
  standalone_mode: true
  api_listen_address: "tcp://127.0.0.1:$port_b"
  secure_api_listen_address: "tcp://127.0.0.1:$port_c"
  telemetry_enabled: true
  telemetry_listen_addr: "tcp://127.0.0.1:$port_a"
  dogstatsd: {enabled: true}
END
      command=("${binary[$1]}" --config "$work/adp.yaml" run)
      counters=http://127.0.0.1:$port_a/metrics counted='^aggregator__processed\S* (\S+)$'
      ;;
    *) die "$1: unknown program; known are weir, weir-default, dogstatsd, adp" ;;
  esac
}

start() {
  rm -f "$work/dsd.sock"
  curl -sfm 30 -X POST "$intake/_sink/reset" >/dev/null
  configure "$1"
  (cd "$work" && exec env -i PATH="$PATH" HOME="$work" taskset -c 0 "${command[@]}") >"$work/log" 2>&1 &
  agent=$!
  until_true 30 "$1" test -S "$work/dsd.sock"
  until_true 30 "$1" curl -sfm 5 -o /dev/null "$counters"
}

stop() {
  end "$agent"
  agent=
}

# reading [--now]: nanoseconds `at` and `cpu` and kilobytes `resident` before the program was asked for its count; `counted_at` and
# `counted_cpu` when it had `taken` that many messages.
reading() {
  taskset -c 1 rig/scripts/record/reading.py "$agent" "$counters" "$counted" "$@" >"$work/reading" || die "no reading: $(tail -n 3 "$work/log")"
  { read -r at cpu resident && read -r counted_at counted_cpu _ taken; } <"$work/reading"
}

# profile SERIES SIZE: the budget's profile with this number of contexts, or 1000 contexts with this number of tags.
profile() {
  local keys=(-e "s/^contexts: .*/contexts: \"$2\"/")
  [ "$1" = contexts ] || keys=(-e 's/^contexts: .*/contexts: "1000"/' -e "s/^tags_per_msg: .*/tags_per_msg: $2/")
  "$bench" load show budget-100k | sed "${keys[@]}" >"$work/profile.yaml"
}

# Columns of the raw figures: run, program, series, size, verdict, messages taken in the window, its seconds, CPU nanoseconds, share of the
# schedule in %, resident kilobytes, messages sent but never counted, rows at the sink, payloads it refused,
# milliseconds by which 99 % of the datagrams were at most late.
# Verdicts: ok; slow: the program does not take what is due; disturbed: the machine was paused, or the sender late for another reason;
# repeated: slow at the first attempt, which may have been a short pause.
raw() {
  local IFS=$'\t'
  echo "$*" | tee -a "$work/raw" >&2
}

idle() {
  start "$2"
  # One bucket.
  pause 12
  reading --now
  raw "$1" "$2" idle 0 ok 0 0 0 0 "$resident" 0 0 0 0
  stop
}

# attempt NAME SERIES SIZE: `verdict`, and the columns after it in `columns`.
attempt() {
  local name=$1 series=$2 size=$3 contexts=1000 due=$rate seconds=$window
  if [ "$series" = contexts ]; then contexts=$size; else due=$((rate * 8 / (size + 1))); fi
  [ "$contexts" -lt 100000 ] || seconds=$window_large
  # Seconds for a program that takes a third of the rate.
  local first_pass=$((contexts * 3 / due + 10))
  profile "$series" "$size"
  start "$name"
  "$bench" load run --profile "$work/profile.yaml" --seed 7 --rate "$due msg/s" --duration "$((first_pass + seconds + 120))s" \
    --on-backpressure wait --cpu 1 --to "unixgram://$work/dsd.sock" >"$work/sent" 2>"$work/load.log" &
  load=$!
  # The load sends every context once before it repeats any. Before that it builds its table, for seconds with a million contexts.
  local turns=$((2 * (first_pass + 30)))
  taken=0
  while [ "$taken" -lt $((contexts + due)) ] && [ $((turns--)) -gt 0 ] && kill -0 "$load" 2>/dev/null; do
    pause 0.5
    reading --now
  done
  reading
  local from_at=$counted_at from_cpu=$counted_cpu from_taken=$taken
  window "$seconds"
  reading
  # The count is from up to a second later than the CPU time; in between the rate is taken as even.
  local to_at=$at to_cpu=$cpu to_resident=$resident missing sent delivered messages
  messages=$(awk "BEGIN {printf \"%.0f\", ($taken - $from_taken) * ($at - $from_at) / ($counted_at - $from_at)}")
  kill -TERM "$load" 2>/dev/null || true
  wait "$load" || die "the sender failed: $(tail -n 3 "$work/load.log")"
  load=
  sent=$(tail -n 1 "$work/sent" | jq .messages) turns=10
  while reading --now && missing=$((sent - taken)) && [ "$missing" -gt 0 ] && [ $((turns--)) -gt 0 ]; do pause 0.5; done
  delivered=$(curl -sfm 30 "$intake/_sink/stats" | jq -r '.datadog // {} | "\(.points // 0)\t\(.rejected // {} | add // 0)"')
  stop
  local lasted share
  lasted=$(awk "BEGIN {printf \"%.2f\", ($to_at - $from_at) / 1e9}")
  share=$(awk "BEGIN {printf \"%.1f\", 100 * $messages / ($due * ($to_at - $from_at) / 1e9)}")
  # The sender waits, so a program that does not keep up leaves the sender or its own queue behind.
  verdict=ok
  if awk "BEGIN {exit !($share < 95 || $missing > 0.01 * $sent)}"; then
    case $(tail -n 1 "$work/sent" | jq -r .verdict) in
      host-limited | generator-limited) verdict=disturbed ;;
      *) verdict=slow ;;
    esac
  fi
  # One that catches up takes more than is due.
  if [ "$gap" -gt 1500000 ] || awk "BEGIN {exit !($lasted > $seconds + 3 || $share > 105)}"; then verdict=disturbed; fi
  columns=("$messages" "$lasted" $((to_cpu - from_cpu)) "$share" "$to_resident" "$missing" "$delivered"
    "$(tail -n 1 "$work/sent" | jq '.lateness_p99_s * 1000 | round')")
}

# once RUN NAME SERIES SIZE
once() {
  local turn
  for turn in 1 2 3; do
    attempt "${@:2}"
    case $verdict$turn in
      ok* | slow2 | slow3 | disturbed3) raw "$@" "$verdict" "${columns[@]}"; return ;;
      slow1) raw "$@" repeated "${columns[@]}" ;;
      *) raw "$@" disturbed "${columns[@]}" ;;
    esac
  done
}

: >"$work/raw"
for run in $(seq "$runs"); do
  # The size at which a program stopped keeping up in this run.
  declare -A stopped=()
  for name in "${programs[@]}"; do idle "$run" "$name"; done
  for size in "${by_contexts[@]/#/contexts }" "${by_tags[@]/#/tags }"; do
    for name in "${programs[@]}"; do
      [ -z "${stopped[$name ${size% *}]:-}" ] || continue
      # shellcheck disable=SC2086
      once "$run" "$name" $size
      [ "$(tail -n 1 "$work/raw" | cut -f5)" != slow ] || stopped[$name ${size% *}]=1
    done
  done
done

# figure NAME SERIES SIZE WHAT: median, least and most of the runs in which the program kept up, if those are the majority; else `-`.
figure() {
  local idle
  idle=$(awk -v n="$1" '$2 == n && $3 == "idle" {print $10}' "$work/raw" | sort -g | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}')
  awk -v n="$1" -v s="$2" -v z="$3" -v what="$4" -v idle="$idle" '$2 == n && $3 == s && $4 == z && $5 == "slow" {print "slow"}
    $2 == n && $3 == s && $4 == z && $5 == "ok" {
      if (what == "cpu") printf "%.1f\n", $8 / $6; else printf "%.0f\n", ($10 - idle) * 1024 / (s == "contexts" ? z : 1000) }' "$work/raw" |
    sort -g | awk '$1 == "slow" {slow++; next} {v[++n] = $1} END {if (n > slow) print v[int((n + 1) / 2)] " " v[1] " " v[n]; else print "-"}'
}

# cell NAME SERIES SIZE WHAT: a figure as the page shows it.
cell() {
  local shown
  shown=$(figure "$@")
  if [ "$shown" != - ]; then
    awk '{printf "%s (%s to %s)", $1, $2, $3}' <<<"$shown"
  else
    awk -v n="$1" -v s="$2" -v z="$3" '$2 == n && $3 == s && $4 == z && $5 == "slow" {print $9}' "$work/raw" | sort -g |
      awk '{v[NR] = $1} END {if (NR) printf "cannot keep up: %s %% of the messages", v[int((NR + 1) / 2)]; else printf "-"}'
  fi
}

declare -A label=([weir]=weir [weir-default]="weir with scrape and history" [dogstatsd]=dogstatsd [adp]=ADP)
# table SERIES SIZES...
table() {
  local series=$1 name size what
  shift
  printf '| %s |' "$series"
  for what in "ns per message" "bytes per context"; do
    for name in "${programs[@]}"; do printf ' %s, %s |' "${label[$name]}" "$what"; done
  done
  printf '\n| --- |'
  for name in "${programs[@]}"; do printf ' --- | --- |'; done
  echo
  for size in "$@"; do
    printf '| %s |' "$size"
    for what in cpu bytes; do
      for name in "${programs[@]}"; do printf ' %s |' "$(cell "$name" "$series" "$size" "$what")"; done
    done
    echo
  done
}

medians() {
  local name size
  for name in "${programs[@]}"; do
    for size in "${by_contexts[@]/#/contexts }" "${by_tags[@]/#/tags }"; do
      # shellcheck disable=SC2086
      printf '%s/%s\t%s\t%s\t%s\n' "${size% *}" "${label[$name]}" "${size#* }" "$(figure "$name" $size cpu)" "$(figure "$name" $size bytes)"
    done
  done
}

version() {
  case $1 in
    weir | weir-default) echo "commit $commit" ;;
    dogstatsd) echo "${DOGSTATSD_VERSION:-$("${binary[$1]}" version 2>/dev/null | head -1)}" ;;
    adp) echo "${ADP_VERSION:-version not given}" ;;
  esac
}

page=$pages/growth-peers.md
{
  header "Cost by size beside other agents" "$(
    [ "${wanted[*]}" = "weir dogstatsd adp" ] || printf 'PROGRAMS="%s" ' "${wanted[*]}"
    [ "${#by_tags[@]}" = 0 ] || printf 'TAGS="%s" ' "${by_tags[*]}"
    [ "$runs" = 3 ] || printf 'RUNS=%s ' "$runs"
  )rig/scripts/record/growth-peers.sh"
  for name in "${programs[@]}"; do
    echo "* ${label[$name]}: $(version "$name") (sha256 $(sha256sum "${binary[$name]}" | cut -c1-12))"
  done
  echo
  echo "Each program runs alone on core 0, takes $rate messages a second in 8 KiB Unix datagrams and sends its series to a local Datadog intake. The"
  echo "figures are $([ "$runs" = 2 ] && echo the lower || echo medians) of $runs alternating runs (least to most). CPU is that of the whole process with its flushes, by its own count of messages, over"
  echo "$window seconds ($window_large from 100,000 contexts) after every context was seen. Bytes are resident memory above that of the idle program, per context;"
  echo "with few contexts they are what the first messages and the first flush need."
  echo "A program keeps up if it takes at least 95 % of the messages due in that time."
  echo "All programs have buckets of 10 s. weir flushes every 10 s, the others every 15 s. Limits on contexts are raised, and ADP's payloads have half as"
  echo "many metrics, because an intake refuses more points. All other settings are the programs' own$(
    [[ " ${programs[*]} " != *" weir "* ]] || printf ', but weir has neither scrape nor history, which the others do not have'
  )."
  echo
  echo "![CPU per message and resident bytes per context of each program](growth-peers.svg)"
  [ "${#by_contexts[@]}" = 0 ] || printf '\n## 7 tags, mixed kinds\n\n%s\n' "$(table contexts "${by_contexts[@]}")"
  [ "${#by_tags[@]}" = 0 ] || printf '\n## 1000 contexts, mixed kinds\n\n%s\n' "$(table tags "${by_tags[@]}")"
} >"$page"
mkdir -p "$pages/raw"
gzip -9n <"$work/raw" >"$pages/raw/growth-peers.tsv.gz"
medians | rig/scripts/record/growth-chart.py "ns per message" "bytes per context" >"$pages/growth-peers.svg"
echo "$page" >&2
