#!/usr/bin/env bash
# Known answers on a busy machine: beside two busy loops, RUNS (50) comparisons each of a program beside itself made 4, 10 and 80 % slower, and
# AA (30) of it beside itself. It receives UDP behind a buffer of 4 MiB, so that work may wait there beyond the window. PAIRS (8) per
# comparison, windows of 1 s, intervals of 95 %. 45 minutes. PROGRAM=practice (the practice target) or statsd-exporter.
# Ends after MINUTES (60) and reports the finished part; the next start resumes. `rm -r results/busy` starts over. LOOPS=0 starts no
# loops, where other programs keep all processors busy.
source "$(dirname "$0")/common.sh"
source rig/scripts/record/programs.sh
runs=${RUNS:-50}
aa=${AA:-30}
pairs=${PAIRS:-8}
ends=$((SECONDS + ${MINUTES:-60} * 60))
program=${PROGRAM:-practice}
parts=$results/busy
page=$pages/busy.md
name="the practice target"
programs=$results/programs
if [ "$program" = statsd-exporter ]; then parts+=-exporter page=$pages/busy-exporter.md name=statsd_exporter; fi

# part NAME ROWS ARGS...: begins, continues or keeps a part.
part() {
  local name=$1 rows=$2 folder left code=0
  shift 2
  left=$((ends - SECONDS))
  folder=$(ls -d "$parts/$name"/*/ 2>/dev/null | tail -1 || true)
  if [ -n "$folder" ] && [ "$(jq .incomplete "$folder/report.json" 2>/dev/null)" = false ]; then return; fi
  [ "$left" -gt 60 ] || return 0
  if [ -n "$folder" ]; then
    timeout --preserve-status -s INT "$left" "$bench" run --resume "$folder" >"$work/report" 2>&1 || code=$?
  else
    timeout --preserve-status -s INT "$left" "$bench" compare "$@" --rows "$rows" --pairs "$pairs" --confidence 95 --accept-busy \
      --set measure.warmup=300ms --set measure.duration=1s --results "$parts/$name" >"$work/report" 2>&1 || code=$?
  fi
  # Regressions are the point of this run; 130 is the end of the time.
  [ "$code" -le 1 ] || [ "$code" = 130 ] || { cat "$work/report" >&2; exit "$code"; }
}

# compared PERCENT: the arguments of a comparison with the program made slower.
compared() {
  if [ "$program" = practice ]; then
    echo --baseline target:practice --comparison target:practice "practice-queued${1:+-slower-$1}"
    return
  fi
  local buffer=--statsd.read-buffer=4194304
  echo --library rig/experiments --as statsd-exporter --preset quick --set measure.drain=200ms \
    --baseline "bin:$(filled_up statsd_exporter 0)" --comparison "bin:$(filled_up statsd_exporter "${1:-0}")" \
    --baseline-args=$buffer --comparison-args=$buffer peer-statsd-5k
}

busy

# The paths have no blanks.
part itself "$aa" $(compared "")
for percent in 4 10 80; do
  part slower-$percent "$runs" $(compared $percent)
done

# finished NAME FILTER: a line of a table from the finished comparisons of a part.
finished() {
  jq -rs --argjson pairs "$pairs" --arg name "$1" 'def r: . * 100 | round / 100;
    def half_width: map((.high - .low) / 2) | sort | .[length / 2 | floor] | r;
    [.[].rows[] | select(.change and .pairs == $pairs) | {verdict} + .change] | select(length > 0) | '"$2" "$parts/$1"/*/report.json
}

{
  header "Does the detector tell the truth about $name on a busy machine?" "${LOOPS:+LOOPS=$LOOPS }${PROGRAM:+PROGRAM=$PROGRAM }PAIRS=$pairs rig/scripts/record/busy.sh"
  echo "Beside $beside on $(nproc) processors; load when this was written: $(cut -d' ' -f1-3 /proc/loadavg). $pairs concurrent pairs per comparison, windows of 1 s, UDP with a receive buffer of 4 MiB."
  echo
  echo "| slow-down | comparisons | intervals of 95 % that contain it | intervals above zero | mean of the estimates | half width of an interval, median |"
  echo "| --- | --- | --- | --- | --- | --- |"
  for percent in 4 10 80; do
    finished slower-$percent '($name | ltrimstr("slower-") | tonumber) as $by
      | "| \($by) % | \(length) | \(map(select(.low <= $by and $by <= .high)) | length) | \(map(select(.low > 0)) | length) | \(map(.delta) | add / length | r) % | \(half_width) |"'
  done
  echo
  jq -rs '"\(map(.pairs_done) | add) pairs, \(map(.pairs_discarded) | add) discarded."' "$parts"/slower-*/*/report.json
  echo
  echo "Beside itself:"
  echo
  echo "| comparisons | intervals of 95 % without zero | reported | smallest and largest estimate | half width of an interval, median |"
  echo "| --- | --- | --- | --- | --- |"
  finished itself '"| \(length) | \(map(select(.low > 0 or .high < 0)) | length) | \(map(select(.verdict | test("regression|improvement"))) | length) | \(map(.delta) | min | r), \(map(.delta) | max | r) % | \(half_width) |"'
} >"$page"
jq -s '.[0] + {pairs_done: (map(.pairs_done) | add), rows: (map(.rows) | add), dimensions: (map(.dimensions) | add)}' "$parts"/*/*/report.json >"$work/all"
keep "$page" "$work/all" 'cpu_per_message$'
echo "written: $page; raw data: $parts"
