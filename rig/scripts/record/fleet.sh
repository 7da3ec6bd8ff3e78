#!/usr/bin/env bash
# The cost of fleets: publishing and merging in one thread; lag and recovery with 1,000 agents, a real broker and two owners; and, if
# GOSTATSD_BIN names one (`go build ./cmd/gostatsd` in its checkout), one centre beside gostatsd's on the same samples. About 5 minutes
# after the build. SERIES (of each agent on the broker: 1000), BUCKETS (11, 10 or more), SECONDS_OF_LOAD (20).
source "$(dirname "$0")/common.sh"
if [ -z "${FLEET_EXAMPLES:-}" ]; then
  cargo build --release --locked -q --workspace --features weir/kafka --example merge_speed --example fleet_on_kafka
fi
examples=${FLEET_EXAMPLES:-$PWD/${CARGO_TARGET_DIR:-target}/release/examples}
gostatsd=${GOSTATSD_BIN:-$(command -v gostatsd || true)}
load() { cut -d' ' -f1-3 /proc/loadavg; }
page=$pages/fleet.md
{
  header "A fleet" "rig/scripts/record/fleet.sh"
  echo "CPU time is the scheduler's count per thread, so other programs disturb it less than lag and recovery. Load at the start: $(load)."
  echo
  echo "## Publishing and merging, one thread"
  echo
  for shape in "100 5000 4" "1000 1000 4"; do
    echo '```text'
    read -ra words <<<"$shape"
    "$examples/merge_speed" "${words[@]}"
    echo '```'
  done
  echo
  echo "## 1,000 agents, one broker, two owners"
  echo
  echo "\`cargo run --release -p weir-log --features kafka --example fleet_on_kafka -- 1000 ${SERIES:-1000} 8 2 ${BUCKETS:-11}\`, load $(load). One process publishes for 1,000 agents, each at its own moment of the 10 s; the broker and the owners are separate processes."
  echo
  echo '```text'
  "$examples/fleet_on_kafka" 1000 "${SERIES:-1000}" 8 2 "${BUCKETS:-11}"
  echo '```'
  echo
  echo "## One centre, three agents"
  echo
  if [ -n "$gostatsd" ]; then
    echo "Three agents of each kind get the same samples and forward them to one centre: \`rig/scripts/record/fleet-peer.py\`. Load $(load)."
    echo
    echo "| centre | CPU per series state | idle, of a core | peak memory | counters sent | counters delivered | p99 series |"
    echo "| --- | --- | --- | --- | --- | --- | --- |"
    for kind in weir gostatsd; do
      program=$WEIR_BIN
      [ "$kind" = weir ] || program=$gostatsd
      rig/scripts/record/fleet-peer.py "$kind" "$bench" "$program" "${SECONDS_OF_LOAD:-20}" | tee "$results/fleet-$kind.json" |
        jq -r '"| \(.program) | \(.cpu_us_per_state) us | \(.idle_cpu_percent) % | \(.memory_mib) MiB | \(.sent) | \(.counted) | \(.p99_series) |"'
    done
  else
    echo "Not recorded: gostatsd was not found."
  fi
} >"$page.new"
mv "$page.new" "$page"
echo "written: $page"
