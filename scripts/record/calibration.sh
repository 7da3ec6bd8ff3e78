#!/usr/bin/env bash
# A/A calibration: weir against itself in ROWS (60) rows of PAIRS (5) pairs with windows of 1 s. About 22 minutes on 2 cores.
source "$(dirname "$0")/common.sh"
count=${ROWS:-60}
pairs=${PAIRS:-5}
detector folder aa --target target:weir --suite calibration --preset quick --rows "$count" --pairs "$pairs" \
  --set measure.warmup=300ms --set measure.duration=1s
page=$pages/calibration.md
{
  header "A/A calibration" "scripts/record/calibration.sh"
  echo "weir against itself, $count rows over the suite \`calibration\`, $pairs pairs each, 0.3 s of warm-up and windows of 1 s, a third of the"
  echo "preset's: many short pairs follow the drift of a shared machine better than few long ones. Goal: CPU per message. Short windows make"
  echo "intervals wider, not wrong: about one row in ten must exclude zero all the same."
  echo
  jq -r '.calibration | "**\(.excluded) of \(.rows) intervals exclude zero, expected \(.rows / 10); accepted \(.low) to \(.high). \(.flagged) would have been reported as a change, accepted at most \([.rows / 60 | floor, 1] | max). \(.state).**"' "$folder/report.json"
  echo
  jq -r '[.rows[].change.mde // empty] | sort | "The median row could tell a change of \(.[length / 2 | floor] | round) % from none. Where that is well above 5 %, the second bound says how noisy the machine is: an interval that excludes zero by accident then nearly always says more than the 5 % from which on a change is reported."' "$folder/report.json"
  echo
  discarded "$folder/report.json"
  echo
  rows "$folder/report.json"
} >"$page"
echo "written: $page; raw data: $folder"
exit "$code"
