#!/usr/bin/env bash
# Throughput of several threads with one Ruby client, for each number of series and threads, beside the peers whose source trees
# STATSD_INSTRUMENT and DOGSTATSD name. SERIES (0,1,10,100), THREADS (1,5), ITERATIONS (1000), FLAGS of the bench (--yjit).
# About two minutes.
WEIR_BENCH=${WEIR_BENCH:-none} WEIR_BIN=${WEIR_BIN:-none} source "$(dirname "$0")/common.sh"
arguments=(--series "${SERIES:-0,1,10,100}" --threads "${THREADS:-1,5}" --iterations "${ITERATIONS:-1000}")
[ -z "${STATSD_INSTRUMENT:-}" ] || arguments+=(--statsd-instrument "$(realpath "$STATSD_INSTRUMENT")")
[ -z "${DOGSTATSD:-}" ] || arguments+=(--dogstatsd "$(realpath "$DOGSTATSD")")
page=$pages/ruby-throughput.md
load=$(cut -d" " -f1 /proc/loadavg)
command="ruby bench/throughput.rb ${arguments[*]:0:6}${flags[*]:+ ${flags[*]}}"
{
  header "Throughput of the Ruby client" "ITERATIONS=${ITERATIONS:-1000} rig/scripts/record/ruby-throughput.sh"
  echo "\`$command\` in \`clients/ruby\`, $(ruby -e 'print RUBY_DESCRIPTION'). In an iteration a thread sends a counter, a timed block and"
  echo "a gauge for each series (0: without its own tag). The time includes the final flush; a separate process receives and counts the messages."
  echo "Compare only neighbouring rows. Load average at the start: $load; it affects calls per second of CPU time least."
  echo
  ruby clients/ruby/bench/throughput.rb "${arguments[@]}" "${flags[@]}"
} >"$page"
echo "written: $page"
