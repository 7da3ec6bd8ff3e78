#!/usr/bin/env bash
# Known answers: a target made slower by 2, 5, 10 and 100 % per message, and one that keeps 10 % more memory. PAIRS (20) pairs
# each with windows of 1 s, both arms of a pair at the same time. About 5 minutes.
source "$(dirname "$0")/common.sh"
detector folder compare --baseline bin:/bin/true --comparison bin:/bin/true --as none --pairs "${PAIRS:-20}" \
  --set measure.warmup=300ms --set measure.duration=1s 'practice-slower-*' practice-larger
page=$pages/slow-downs.md
{
  header "Known slow-downs" "scripts/record/slow-downs.sh"
  echo "The practice target spends a known time on each message. The comparison spends 2, 5, 10 or 100 % more, or keeps 10 % more memory. Receiving"
  echo "costs the same in both, so the true change of CPU per message is the share of that work in the whole, times the slow-down; the share is"
  echo "what 100 % more work adds. Memory: 64 MiB and 70.4 MiB kept, of which the program's own few MiB take away a little."
  echo
  rows "$folder/report.json"
  echo
  echo "| slow-down | true change % | measured % | interval (90 %) | interval holds the truth | excludes zero | verdict |"
  echo "| --- | --- | --- | --- | --- | --- | --- |"
  jq -r 'def r: . * 100 | round / 100; (.rows[] | select(.experiment == "practice-slower-100") | .change.delta / 100) as $share
    | .rows | sort_by(.experiment | ltrimstr("practice-slower-") | tonumber? // 0)[] | select(.experiment | startswith("practice-slower-")) | select(.change)
    | (.experiment | ltrimstr("practice-slower-") | tonumber) as $by | select($by < 100) | ($by * $share) as $true
    | "| \($by) % | \($true | r) | \(.change.delta | r) | \(.change.low | r) to \(.change.high | r) | \(if .change.low <= $true and $true <= .change.high then "yes" else "no" end) | \(if .change.low > 0 then "yes" else "no" end) | \(.verdict) |"' "$folder/report.json"
  echo
  discarded "$folder/report.json"
} >"$page"
echo "written: $page; raw data: $folder"
# Regressions are the point of this run.
[ "$code" -le 1 ]
