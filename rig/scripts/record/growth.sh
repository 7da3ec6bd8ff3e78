#!/usr/bin/env bash
# Cost by size, in process and without sockets: CPU per message, bytes per context and CPU per row of a flush, from 100 to 1,000,000
# contexts and from 1 to 2048 tags, as medians of RUNS (5) alternating runs. Writes docs/benchmarks/growth.md and a chart beside
# it, and the figures of each run to raw/growth.tsv.gz. Eight minutes after the builds, and 5 GB. INGEST_BENCH, FLUSH_BENCH: benchmarks to use instead of building
# the checkout's.
WEIR_BENCH=${WEIR_BENCH:-none} WEIR_BIN=${WEIR_BIN:-none} source "$(dirname "$0")/common.sh"
# built PACKAGE BENCHMARK: its program.
built() {
  cargo bench --no-run --locked --message-format=json -q -p "$1" --bench "$2" |
    jq -r --arg name "$2" 'select(.reason == "compiler-artifact" and .target.name == $name) | .executable'
}
INGEST_BENCH=${INGEST_BENCH:-$(built weir-ingest ingest)}
FLUSH_BENCH=${FLUSH_BENCH:-$(built weir flush)}
runs=${RUNS:-5}
read -ra by_contexts <<<"${CONTEXTS:-100 300 1000 3000 10000 30000 100000 300000 1000000}"
read -ra by_tags <<<"${TAGS:-1 2 4 8 16 32 64 128 256 512 1024 2048}"

# once SERIES SIZE ARGUMENTS...: one line of raw figures: the median packet and slice of a run.
once() {
  local series=$1 size=$2
  shift 2
  "$INGEST_BENCH" "$@" |
    sed -nE "s/^median packet ([0-9.]+) ns per message, median slice ([0-9.]+) ns per context, ([0-9]+) bytes per context\$/$series\t$size\t\1\t\3\t\2/p"
}

for _ in $(seq "$runs"); do
  for size in "${by_contexts[@]}"; do
    # Ten messages per context and bucket, so that every flush has rows of the same size.
    once contexts "$size" "$size" $((10 * size)) $((size < 3000 ? 60 : 3))
    "$FLUSH_BENCH" "$size" $((size < 3000 ? 60 : 3)) |
      sed -nE "s/^[0-9]+ contexts: worker ([0-9]+), scrape ([0-9]+), history ([0-9]+) .*/flush\t$size\t\1\t\2\t\3/p"
  done
  for size in "${by_tags[@]}"; do
    once tags "$size" 1000 10000 6 "tags=$size"
  done
  for values in short floats integers exponents; do
    once values "$values" 1000 10000 60 "values=$values"
    once packed "$values" 1000 10000 60 dist "values=$values"
  done
  for size in 100 1000 10000; do
    once interner "$size" "$size" $((10 * size)) $((size < 3000 ? 60 : 3)) values=interner
  done
done >"$work/raw"

# medians: of each size, in the order of the sizes.
medians() {
  local size column
  while read -r series size; do
    printf '%s\t%s' "$series" "$size"
    for column in 3 4 5; do
      printf '\t%s' "$(awk -v s="$series" -v n="$size" -v c="$column" '$1 == s && $2 == n {print $c}' "$work/raw" |
        sort -g | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)] " " v[1] " " v[NR]}')"
    done
    echo
  done < <(cut -f1,2 "$work/raw" | awk '!seen[$0]++')
}
medians >"$work/medians"

# table SERIES WHAT FIGURE FIGURE FIGURE
table() {
  echo "| $2 | $3 | $4 | $5 |"
  echo "| --- | --- | --- | --- |"
  awk -F'\t' -v s="$1" 'function shown(v, p) { split(v, p, " "); return p[1] " (" p[2] " to " p[3] ")" }
    $1 == s { print "| " $2 " | " shown($3) " | " shown($4) " | " shown($5) " |" }' "$work/medians"
}

figures=("ns per message" "bytes per context" "ns per row of a flush")
{
  header "Cost by size" "rig/scripts/record/growth.sh"
  echo "From packet to bucket in process (\`cargo bench -p weir-ingest\`), median packet and median slice of 256 contexts of $runs alternating"
  echo "runs (least to most). Bytes are those of the memory report, with the samples of a bucket: ten messages per context. A flush copies strings into its rows."
  echo "[The whole agent beside others](peers.md) has CPU and resident memory with sockets and outputs."
  echo
  echo "![CPU per message, bytes per context and CPU per row by number of contexts and of tags](growth.svg)"
  echo
  echo "## 7 tags, mixed kinds"
  echo
  table contexts contexts "${figures[@]}"
  echo
  echo "## 1000 contexts, mixed kinds"
  echo
  table tags tags "${figures[@]}"
  echo
  echo "## 1000 contexts, by the numbers in messages: three digits, floats with all their digits, integers of 64 bits, floats with an exponent"
  echo
  table values numbers "${figures[@]}"
  echo
  echo "## The same, distributions of one to nine packed values"
  echo
  table packed numbers "${figures[@]}"
  echo
  echo "## The string interner's experiments: names of up to 200 bytes, 2 to 50 tags of up to 201, 64-bit numbers"
  echo
  echo "Messages of 2.8 kB, whose bytes a look-up has to hash and compare: [the budget](README.md#weir-alone) has the cost of the cheapest receiver beside them (row \`budget-interner\`)."
  echo
  table interner contexts "${figures[@]}"
  echo
  echo "## A flush by its steps: ns per row"
  echo
  echo "\`cargo bench -p weir-agent --bench flush\`: whole flushes of the first table, in one thread, so that each step finds what the others have left of the"
  echo "cache. A worker closes the bucket; the scrape output adds the rows to its sums, with its default settings; the history keeps them for the live page."
  echo
  table flush contexts worker scrape history
} >"$pages/growth.md"
mkdir -p "$pages/raw"
gzip -9n <"$work/raw" >"$pages/raw/growth.tsv.gz"
grep -E '^(contexts|tags)' "$work/medians" | rig/scripts/record/growth-chart.py "${figures[@]}" >"$pages/growth.svg"
echo "$pages/growth.md" >&2
