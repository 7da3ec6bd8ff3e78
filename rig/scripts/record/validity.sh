#!/usr/bin/env bash
# Invalid runs are detected, and losses under UDP overload are counted. PAIRS (5) pairs, about 2 minutes.
source "$(dirname "$0")/common.sh"
page=$pages/validity.md
detector past compare --baseline target:practice --comparison target:practice --pairs 2 practice-past
past_code=$code
detector over compare --baseline target:weir --comparison target:weir --preset quick --pairs "${PAIRS:-5}" dsd-udp-overload
over_code=$code
{
  header "Does the detector refuse invalid runs?" "rig/scripts/record/validity.sh"
  echo "## A load that misses the target"
  echo
  echo "The load goes to the sink, so everything arrives and the target does nothing. Exit code $past_code (3: no valid data):"
  echo
  jq -r '.rows[] | "* \(.experiment): \(.verdict)\(if .reason then " (" + .reason + ")" else "" end)"' "$past/report.json"
  discarded "$past/report.json" | tail -n +2
  echo
  echo "## UDP overload"
  echo
  echo "\`counted-packets\` (one distribution per datagram) all-out over UDP at weir on one core, both programs the same. Exit code $over_code. Messages per run: sent, dropped"
  echo "by the kernel at the socket, delivered, and unexplained (accepted: 0.1 % of those sent)."
  echo
  echo "| run | sent | kernel drops | delivered | unexplained | % of sent | valid |"
  echo "| --- | --- | --- | --- | --- | --- | --- |"
  for verdict in "$over"/dsd-udp-overload/*/*/verdict.json; do
    name=$(echo "$verdict" | sed 's|.*/\([a-z]*\)/\([0-9]*\)/verdict.json|\1 \2|')
    jq -r --arg n "$name" '.books as $b | "| \($n) | \($b.sent) | \($b.kernel_dropped_packets) | \($b.delivered) | \($b.unexplained) | \($b.unexplained / $b.sent * 100000 | round / 1000) | \(if (.invalid | length) == 0 then "yes" else (.invalid | join("; ")) end) |"' "$verdict"
  done
} >"$page"
echo "written: $page"
[ "$past_code" = 3 ]
