#!/usr/bin/env bash
# Throughput of several threads with one Ruby client, for each number of series and threads, beside the peers whose source trees
# STATSD_INSTRUMENT and DOGSTATSD name. SERIES (0,1,10,100), THREADS (1,5), ITERATIONS (1000), FLAGS of the bench (--yjit).
# About two minutes. Then a profile of the sending threads, with ten series, five threads and PROFILE_ITERATIONS (10000), in another minute; it needs
# stackprof (Debian's ruby-stackprof), and is left out without. PROFILE=only replaces the profile and leaves the rest of the page.
WEIR_BENCH=${WEIR_BENCH:-none} WEIR_BIN=${WEIR_BIN:-none} source "$(dirname "$0")/common.sh"
peers=()
[ -z "${STATSD_INSTRUMENT:-}" ] || peers+=(--statsd-instrument "$(realpath "$STATSD_INSTRUMENT")")
[ -z "${DOGSTATSD:-}" ] || peers+=(--dogstatsd "$(realpath "$DOGSTATSD")")
arguments=(--series "${SERIES:-0,1,10,100}" --threads "${THREADS:-1,5}" --iterations "${ITERATIONS:-1000}")
page=$pages/ruby-throughput.md
load=$(cut -d" " -f1 /proc/loadavg)

throughput() {
  header "Throughput of the Ruby client" "ITERATIONS=${ITERATIONS:-1000} rig/scripts/record/ruby-throughput.sh"
  echo "\`ruby bench/throughput.rb ${arguments[*]}${flags[*]:+ ${flags[*]}}\` in \`clients/ruby\`, $(ruby -e 'print RUBY_DESCRIPTION'). In an iteration a thread sends a counter, a timed block and"
  echo "a gauge for each series (0: without its own tag). The time includes the final flush; a separate process receives and counts the messages."
  echo "Compare only neighbouring rows. Load average at the start: $load; it affects calls per second of CPU time least."
  echo
  ruby clients/ruby/bench/throughput.rb "${arguments[@]}" "${peers[@]}" "${flags[@]}"
}

profile() {
  local iterations=${PROFILE_ITERATIONS:-10000}
  echo
  header "# Where the sending threads spend their CPU time" "PROFILE=only rig/scripts/record/ruby-throughput.sh" | sed '1s/^# # /## /'
  echo "stackprof $(ruby -rstackprof -e 'print StackProf::VERSION') in CPU mode on the same calls, $iterations iterations, until the last thread has sent: the method that ran,"
  echo "in the threads that send; what ran in others is one row. Methods below 2 % are left out. \`block in <main>\` is the benchmark itself."
  ruby clients/ruby/bench/throughput.rb --profile --series 10 --threads 5 --iterations "$iterations" "${peers[@]}" "${flags[@]}"
}

if [ "${PROFILE:-}" != only ]; then
  throughput >"$work/page"
else
  # Up to the profile.
  awk '/^## Where the sending threads/ {exit} {print}' "$page" | sed -e :a -e '/^\n*$/{$d;N;ba' -e '}' >"$work/page"
fi
if ruby -rstackprof -e '' 2>/dev/null; then
  profile >>"$work/page"
elif [ "${PROFILE:-}" = only ]; then
  echo "record: stackprof is missing (ruby-stackprof)" >&2
  exit 1
fi
cp "$work/page" "$page"
echo "written: $page"
