#!/usr/bin/env bash
# A/A calibration: weir against itself in ROWS (60) rows of PAIRS (14) pairs, concurrent pairs. About 55 minutes on 2 cores. STATE=quiet
# (nothing else runs) writes the page. STATE=busy (beside LOOPS (2) busy loops; 0: other programs keep all processors busy) adds a section to it.
source "$(dirname "$0")/common.sh"
count=${ROWS:-60}
pairs=${PAIRS:-14}
state=${STATE:-quiet}
in_state "$state"
detector folder aa --target target:weir --suite calibration --preset quick --rows "$count" --pairs "$pairs"
# Pairs that the host disturbed in every attempt get more attempts, at most twice.
for _ in 1 2; do
  [ "$(jq .incomplete "$folder/report.json")" = true ] || break
  code=0
  "$bench" run --resume "$folder" >&2 || code=$?
done
page=$pages/calibration.md
name=calibration
if [ "$state" = quiet ]; then
  : >"$page"
else
  name+=-$state
fi
{
  command="STATE=$state ${LOOPS:+LOOPS=$LOOPS }${ROWS:+ROWS=$ROWS }${PAIRS:+PAIRS=$PAIRS }rig/scripts/record/calibration.sh"
  case $state in
    quiet) header "Does the detector report changes where there are none?" "$command" ;;
    busy)
      echo
      header "Beside $beside" "$command" | sed '1s/^/#/'
      ;;
  esac
  echo "weir against itself, $count rows over the suite \`calibration\`, $pairs pairs each, preset \`quick\`: concurrent pairs,"
  echo "half a second of warm-up, windows of 2 s. Goal: CPU per message. Load at the end: $(cut -d' ' -f1-3 /proc/loadavg)."
  echo
  jq -r '.calibration | "**\(.excluded) of \(.rows) intervals exclude zero, expected \(.rows / 10); accepted \(.low) to \(.high). \(.flagged) would have been reported as a change, accepted at most \([.rows / 60 | floor, 1] | max). \(.state).**"' "$folder/report.json"
  echo
  jq -r '[.rows[].change.mde // empty] | sort | .[length / 2 | floor] | "The median row could detect a change of \(round) %." + if . > 5 then " An interval of that width that excludes zero by accident nearly always shows more than the 5 % from which a change is reported." else "" end' "$folder/report.json"
  echo
  discarded "$folder/report.json"
  echo
  rows "$folder/report.json"
} >>"$page"
keep "$name" "$folder/report.json"
echo "written: $page; raw data: $folder"
exit "$code"
