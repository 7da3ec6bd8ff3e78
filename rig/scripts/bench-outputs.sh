#!/usr/bin/env bash
# The cost of each output: CPU and bytes per series of 100,000 contexts, and the Datadog encoder compared with the cheapest possible one.
# One thread, no network, a minute or two on an idle machine after the build (some minutes with link-time optimisation).
# With --write it writes the figures between the marks in docs/outputs/README.md and docs/outputs/datadog.md; use it
# only on an idle machine.
set -euo pipefail
cd "$(dirname "$0")/../.."
case "$*" in
  "") write= ;;
  --write) write=1 ;;
  *) echo "usage: rig/scripts/bench-outputs.sh [--write]" >&2; exit 2 ;;
esac
cargo build --release --locked -p weir-output --examples
bin="${CARGO_TARGET_DIR:-target}/release/examples"
changed=
[ -z "$(git status --porcelain -- crates Cargo.toml Cargo.lock)" ] || changed=" with changes"
load="$(cut -d' ' -f1 /proc/loadavg)"
machine="Commit $(git rev-parse --short HEAD)$changed, $(nproc) cores of an $(grep -m1 'model name' /proc/cpuinfo | sed 's/.*: *//'), load $load at the start."
figures="$(mktemp -d)"
trap 'rm -rf "$figures"' EXIT
{ "$bin/output_speed"; echo; echo "$machine"; } >"$figures/README.md"
{ "$bin/datadog_speed"; echo "$machine"; } >"$figures/datadog.md"
for page in README.md datadog.md; do
  if [ -z "$write" ]; then
    cat "$figures/$page"
    echo
    continue
  fi
  awk -v figures="$figures/$page" '
    /^<!-- end of figures -->/ { skip = 0; done++ }
    !skip
    /^<!-- figures of scripts\/bench-outputs.sh -->/ { skip = 1; while ((getline line < figures) > 0) print line }
    END { exit done != 1 }
  ' "docs/outputs/$page" >"$figures/page" || { echo "bench-outputs: docs/outputs/$page has no marks for its figures" >&2; exit 1; }
  cat "$figures/page" >"docs/outputs/$page"
  echo "bench-outputs: docs/outputs/$page has the figures of this run"
done
