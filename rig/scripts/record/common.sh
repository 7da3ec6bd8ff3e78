#!/usr/bin/env bash
# Sourced by the recorded runs. Each measures with release builds of this checkout and writes one page in docs/benchmarks with
# machine and commit. Variables, all with defaults:
#
#   WEIR_BENCH, WEIR_BIN   binaries to use instead of building the checkout's
#   RECORD_COMMIT          the commit of those binaries
#   RECORD_DIR             where pages go (docs/benchmarks)
#   RESULTS                where raw results go (results); the figures of each pair also go to docs/benchmarks/raw, compressed
#   FLAGS                  further flags of the detector; `--accept-busy` on a machine that others use
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
command -v jq >/dev/null || { echo "record: jq is missing (scripts/install-test-deps.sh)" >&2; exit 1; }
if [ -z "${WEIR_BENCH:-}" ] || [ -z "${WEIR_BIN:-}" ]; then
  cargo build --release --locked -q -p weir -p weir-bench
fi
bench=${WEIR_BENCH:-$PWD/${CARGO_TARGET_DIR:-target}/release/weir-bench}
# weir would read it as a setting.
export -n WEIR_BENCH
export WEIR_BIN=${WEIR_BIN:-$PWD/${CARGO_TARGET_DIR:-target}/release/weir}
pages=${RECORD_DIR:-docs/benchmarks}
results=${RESULTS:-results}
read -ra flags <<<"${FLAGS:-}"
mkdir -p "$pages" "$results"
work=$(mktemp -d)
loops=()
trap 'kill "${loops[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT

# Pages that earlier runs wrote do not change the measured program.
commit=${RECORD_COMMIT:-}
if [ -z "$commit" ]; then
  commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
  git diff --quiet HEAD -- . ':!docs/benchmarks' 2>/dev/null || commit+=-dirty
fi

# busy: starts LOOPS (2) busy loops, until the script ends; 0: other programs keep all processors busy. Names them in `beside`.
busy() {
  beside="${LOOPS:-2} busy loops"
  [ "${LOOPS:-2}" != 0 ] || beside="other programs"
  for _ in $(seq "${LOOPS:-2}"); do
    sh -c 'while :; do :; done' &
    loops+=($!)
  done
}

# in_state STATE: prepares for `quiet` (nothing else runs) or `busy`.
in_state() {
  beside="nothing else"
  case $1 in
    quiet) ;;
    busy)
      flags+=(--accept-busy)
      busy
      ;;
    *)
      echo "record: STATE=$1: allowed are quiet and busy" >&2
      exit 1
      ;;
  esac
}

machine() {
  echo "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | sort -u | head -1), $(nproc) CPUs, Linux $(uname -r)"
}

# header TITLE COMMAND: the first lines of a page: its question and how it was recorded. Write the answer between them by hand; scripts/check-prose.py
# asks for it.
header() {
  echo "# $1"
  echo
  echo "Recorded by \`$2\` on $(date -u +'%Y-%m-%d %H:%M') UTC, commit $commit, $(machine)."
  case " ${flags[*]} " in *" --accept-busy "*) echo "**The machine was allowed to be busy.**" ;; esac
  echo
}

# detector OUT ARGS...: runs a comparison, stores the folder of its results in OUT and its exit code in `code`.
detector() {
  local -n out_folder=$1
  shift
  local before=$work/before
  ls -1 "$results" >"$before" 2>/dev/null || true
  code=0
  "$bench" "$@" --results "$results" "${flags[@]}" >"$work/detector" 2>&1 || code=$?
  cat "$work/detector" >&2
  out_folder=$results/$(ls -1 "$results" | grep -vxFf "$before" | tail -1)
  [ -f "$out_folder/report.json" ] || { echo "record: no report, code $code" >&2; exit 1; }
}

# rows REPORT: the table of a report's rows.
rows() {
  echo "| experiment | goal | baseline | comparison | Δ % | interval ($(jq '.run.confidence * 100 | round' "$1") %) | pairs | MDE | verdict |"
  echo "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
  jq -r 'def r: . * 100 | round / 100; def big: if . == null then "-" elif . >= 100 then round else r end;
    .rows[] | if .change == null then "| \(.experiment) | \(.goal) | - | - | - | - | \(.pairs) | - | \(.verdict)\(if .reason then ": " + .reason else "" end) |"
    else "| \(.experiment) | \(.goal) | \(.baseline.mean | big) | \(.comparison.mean | big) | \(.change.delta | r) | \(.change.low | r) to \(.change.high | r) | \(.pairs) | \(.change.mde | r) | \(.verdict) |" end' "$1"
}

# discarded REPORT: the number of pairs, and why some were discarded.
discarded() {
  jq -r '"\(.pairs_done) pairs, \(.pairs_discarded) discarded" + (if (.discarded | length) > 0 then ":" else "." end),
    (.discarded | (if type == "array" then . else to_entries end) | .[] | "* \(if type == "object" and has("key") then "\(.value) x \(.key)" elif type == "object" then tojson elif type == "array" then "\(.[1]) x \(.[0])" else . end)")' "$1"
}

# keep PAGE REPORT [GOALS]: stores the figures of each pair compressed beside the page, all goals or those of the regular expression.
keep() {
  mkdir -p "$pages/raw"
  jq -c --arg goals "${3:-.}" '{run: .run | {created_unix, seed, preset, confidence, host, programs: [.baseline, .comparison | {target, version, sha256}]},
    pairs_done, discarded, rows: [.rows[], .dimensions[] | select(.goal | test($goals)) | {experiment, goal, pairs, change, values}]}' "$2" |
    gzip -9n >"$pages/raw/$(basename "$1" .md).json.gz"
}
