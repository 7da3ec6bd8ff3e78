#!/usr/bin/env bash
# Fuzzes every target for SECONDS_PER_TARGET (60) and adds new inputs to fuzz/corpus, minimised. Arguments name targets.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${SECONDS_PER_TARGET:-60}
targets=("$@")
[ "${#targets[@]}" -gt 0 ] || mapfile -t targets < <(basename --suffix .txt fuzz/corpus/*.txt)

command -v cargo-fuzz >/dev/null 2>&1 || cargo install --locked cargo-fuzz
# No address sanitizer: the agent's allocator replaces malloc, and the two do not start together. Panics, overflows and
# broken invariants are found without it.
sanitizer=(--sanitizer none)
# The coverage flags are unstable. A nightly toolchain allows them; a stable one needs a variable.
if rustup toolchain list 2>/dev/null | grep -q '^nightly'; then
  toolchain=(+nightly)
else
  toolchain=()
  export RUSTC_BOOTSTRAP=1
fi
for target in "${targets[@]}"; do
  kept=$(mktemp -d) found=$(mktemp -d)
  fuzz/corpus.py unpack "$target" "$kept"
  # One program has all targets; an input that it reports is repeated with the same variable.
  export WEIR_FUZZ=$target
  echo "fuzzing WEIR_FUZZ=$target for ${seconds}s"
  cargo "${toolchain[@]}" fuzz run "${sanitizer[@]}" any "$found" "$kept" -- \
    -max_total_time="$seconds" -max_len=4096 -timeout=10 -print_final_stats=1
  cargo "${toolchain[@]}" fuzz run "${sanitizer[@]}" any "$kept" "$found" -- -merge=1 -max_len=4096
  fuzz/corpus.py pack "$target" "$kept"
  rm -rf "$kept" "$found"
done
