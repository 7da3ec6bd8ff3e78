#!/usr/bin/env bash
# All figures of the project's budget, for a quiet machine with two cores: ratios to the floor (RUNS, 5, alternating
# runs per row of 12 million messages), resident memory and idle cost, instructions per message, and cost by size. Writes
# docs/benchmarks/budget.md, growth.md and growth.svg; raw figures go to results/. About an hour.
source "$(dirname "$0")/common.sh"
"$bench" budget --runs "${RUNS:-5}" --messages "${MESSAGES:-12000000}" --json "$results/budget.json" >"$work/budget"
NO_BUILD=1 rig/scripts/measure.sh >"$work/measured"
rig/scripts/instructions.sh >"$work/instructions"
{
  header "The budget" "rig/scripts/record/budget.sh"
  echo "## Ratios to the floor, ${RUNS:-5} alternating runs"
  echo
  cat "$work/budget"
  echo
  echo "## Memory, rates and gaps"
  echo
  echo "| what | measured | aim |"
  echo "| --- | --- | --- |"
  cat "$work/measured"
  echo
  echo "## Instructions per message (callgrind, without AVX-512)"
  echo
  echo '```'
  cat "$work/instructions"
  echo '```'
} >"$pages/budget.md"
rig/scripts/record/growth.sh
