#!/usr/bin/env bash
# Known answers: a target beside itself made 2, 5 and 10 % slower, RUNS (50) comparisons of each with PAIRS (8) pairs, about 20 s per
# comparison, and one of a target that keeps 10 % more memory. How many of the intervals contain the truth? Nine of ten is the aim, so they are
# intervals of CONFIDENCE (95) %: of 50 correct intervals of 90 %, fewer than 45 contain it in two of five recordings.
# Ends after MINUTES (60) and reports the finished part; the next start resumes. `rm -r results/slow-downs` starts over.
source "$(dirname "$0")/common.sh"
runs=${RUNS:-50}
pairs=${PAIRS:-8}
confidence=${CONFIDENCE:-95}
short=(--set measure.warmup=300ms --set measure.duration=1s)
practice=(compare --confidence "$confidence" --baseline target:practice --comparison target:practice)

folder=$(ls -d "$results"/slow-downs/*/ 2>/dev/null | tail -1 || true)
code=0
if [ -n "$folder" ]; then
  timeout --preserve-status -s INT "${MINUTES:-60}m" "$bench" run --resume "$folder" >"$work/report" || code=$?
else
  timeout --preserve-status -s INT "${MINUTES:-60}m" "$bench" "${practice[@]}" --rows $((3 * runs)) --pairs "$pairs" "${short[@]}" \
    --results "$results/slow-downs" "${flags[@]}" 'practice-slower-*' >"$work/report" || code=$?
  folder=$(ls -d "$results"/slow-downs/*/ | tail -1)
fi
# Regressions are the point of this run; 130 is the end of the time.
[ "$code" -le 1 ] || [ "$code" = 130 ] || { cat "$work/report" >&2; exit "$code"; }
detector larger "${practice[@]}" --pairs "$pairs" "${short[@]}" practice-larger

report=$folder/report.json
page=$pages/slow-downs.md
{
  header "Does the detector find known changes?" "rig/scripts/record/slow-downs.sh"
  jq -r '"The practice target measures its own CPU time and fills it up to 20 us per message, the comparison to 2, 5 or 10 % more, so the true change of CPU per message is known.",
    "\(.run.row_pairs) concurrent pairs per comparison, windows of 1 s. Of the intervals, \(.run.confidence * 100 | round) % are expected to contain the truth.",
    "Load of the machine when this was written: '"$(cut -d' ' -f1-3 /proc/loadavg)"'."' "$report"
  for goal in cpu_per_message life_cpu_per_message; do
    echo
    case $goal in
      cpu_*) echo "CPU per message in the window, the goal of most cases:" ;;
      life_*) echo "CPU per message over the whole life, from ready to the end, in the same runs. Ending, about 1 % of it, is not slowed down, so the true changes are up to 0.1 points smaller:" ;;
    esac
    echo
    echo "| slow-down | comparisons | intervals that contain the true change | intervals that exclude zero | mean of the estimates | half width of an interval, median |"
    echo "| --- | --- | --- | --- | --- | --- |"
    jq -r --arg goal $goal 'def r: . * 100 | round / 100; .run.row_pairs as $pairs
      | [.rows[], .dimensions[] | select(.goal == $goal and .change and .pairs == $pairs)
        | {by: (.experiment | capture("slower-(?<n>[0-9]+)").n | tonumber)} + .change]
      | group_by(.by)[] | .[0].by as $by | map(.delta) as $d | ($d | add / length) as $m
      | (($d | map((. - $m) * (. - $m)) | add) / (length - 1) / length | sqrt) as $error
      | "| \($by) % | \(length) | \(map(select(.low <= $by and $by <= .high)) | length) | \(map(select(.low > 0)) | length) | \($m | r) % ± \(1.68 * $error | r) | \(map((.high - .low) / 2) | sort | .[length / 2 | floor] | r) |"' "$report"
  done
  echo
  discarded "$report"
  echo
  echo "10 % more memory, 70.4 MiB instead of 64; the program's own few MiB make the change slightly smaller:"
  echo
  rows "$larger/report.json"
} >"$page"
keep "$page" "$report" 'cpu_per_message$'
echo "written: $page; raw data: $folder"
