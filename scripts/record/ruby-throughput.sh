#!/usr/bin/env bash
# Throughput of several threads with one Ruby client, for each number of series and threads, beside the peers whose source trees
# are given: STATSD_INSTRUMENT and DOGSTATSD. SERIES (0,1,10,100), THREADS (1,5), ITERATIONS (1000), FLAGS of the bench (--yjit).
# About two minutes.
WEIR_BENCH=${WEIR_BENCH:-none} WEIR_BIN=${WEIR_BIN:-none} source "$(dirname "$0")/common.sh"
arguments=(--series "${SERIES:-0,1,10,100}" --threads "${THREADS:-1,5}" --iterations "${ITERATIONS:-1000}")
[ -z "${STATSD_INSTRUMENT:-}" ] || arguments+=(--statsd-instrument "$(realpath "$STATSD_INSTRUMENT")")
[ -z "${DOGSTATSD:-}" ] || arguments+=(--dogstatsd "$(realpath "$DOGSTATSD")")
page=$pages/ruby-throughput.md
load=$(cut -d" " -f1 /proc/loadavg)
command="ruby bench/throughput.rb ${arguments[*]:0:6}${flags[*]:+ ${flags[*]}}"
{
  header "Throughput of the Ruby client" "ITERATIONS=${ITERATIONS:-1000} scripts/record/ruby-throughput.sh"
  echo "\`$command\` in \`clients/ruby\`, $(ruby -e 'print RUBY_DESCRIPTION'). An iteration of a thread is a counter, a timed block and"
  echo "a gauge for each series (0: without a tag of its own). The final flush is in the time; the receiver is another process, which counts what arrives."
  echo "Only ratios of neighbouring rows mean anything elsewhere. Load average at the start: $load; calls per second of the processor depend on it least."
  echo
  ruby clients/ruby/bench/throughput.rb "${arguments[@]}" "${flags[@]}"
} >"$page"
echo "written: $page"
