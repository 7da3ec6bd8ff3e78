#!/usr/bin/env bash
# Instructions per message from packet to bucket, counted by callgrind: the same on a busy and on a quiet machine. The
# difference between a run of 7 rounds and one of 2 excludes start and warm-up; each round flushes every context once.
set -euo pipefail
cd "$(dirname "$0")/../.."
messages=50000
cargo build --release --locked --benches -p weir-ingest 2>/dev/null
bench=$(find "${CARGO_TARGET_DIR:-target}"/release/deps -maxdepth 1 -name 'ingest-*' -executable -type f -printf '%T@ %p\n' | sort -rn | head -1 | cut -d' ' -f2)
count() {
  valgrind --tool=callgrind --callgrind-out-file=/dev/null "$bench" "$@" 2>&1 | sed -n 's/.*Collected : //p'
}
printf '%-42s %s\n' workload 'instructions per message'
for workload in '1000' '10000' '1000 permute' '1000 noalias' '1000 dist' '1000 values=short' '1000 values=floats' '1000 values=integers' '1000 values=exponents' '1000 values=interner' '1000 dist values=short' '1000 dist values=floats' '1000 origin' '10000 rules=10' '10000 rules=1000' '10000 rules=10000'; do
  read -r contexts mode <<<"$workload"
  many=$(count "$contexts" "$messages" 7 ${mode:-})
  few=$(count "$contexts" "$messages" 2 ${mode:-})
  printf '%-42s %s\n' "$contexts contexts ${mode:-}" $(((many - few) / (5 * messages)))
done
