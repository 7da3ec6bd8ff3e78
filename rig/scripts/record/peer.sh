#!/usr/bin/env bash
# weir against another agent: PEER names an entry of rig/experiments/targets.yaml (statsd-exporter), found in PATH or by its variable
# (STATSD_EXPORTER_BIN, DOGSTATSD_BIN). CASES (all of the suite `peers`), PAIRS (10). About 3 minutes; agents with buckets of 10 s take
# four times as long per case.
source "$(dirname "$0")/common.sh"
peer=${PEER:-statsd-exporter}
read -ra cases <<<"${CASES:-peer-statsd-plain peer-budget-1k idle}"
detector folder compare --baseline "target:$peer" --comparison target:weir --allow-profile-mismatch --preset quick --pairs "${PAIRS:-10}" "${cases[@]}"
page=$pages/peer-$peer.md
{
  echo "# weir against $peer"
  echo
  jq -r 'def size: if . < 0 then -. else . end | round; def names: {cpu_per_message: "CPU per message"}[.] // gsub("_"; " ");
    [.rows[] | select(.change) | "\(.change.delta | size) % \(if .change.delta < 0 then "less" else "more" end) \(.goal | names) (\(.experiment); \([.change.low, .change.high] | map(size) | "\(min) to \(max)"))"] | "weir takes \(join(", "))."' "$folder/report.json"
  echo
  header "weir against $peer" "PEER=$peer rig/scripts/record/peer.sh" | tail -n +3
  jq -r '"Baseline: \(.baseline.version) (sha256 \(.baseline.sha256[0:12])); comparison: \(.comparison.version) (sha256 \(.comparison.sha256[0:12])). Preset `quick`. Both programs run concurrently on core 0, each with its own stream of the same bytes at the same rate."' "$folder/run.json"
  echo
  rows "$folder/report.json"
  echo
  discarded "$folder/report.json"
  echo
  echo "## The detector's own report"
  echo
  sed -n '/^### Interesting changes/,/^### Reproduction/p' "$folder/report.md" | sed '$d'
} >"$page"
keep "$page" "$folder/report.json"
echo "written: $page; raw data: $folder"
[ "$code" -le 1 ]
