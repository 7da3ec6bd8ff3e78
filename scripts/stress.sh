#!/usr/bin/env bash
# Runs the Rust tests of changed files up to 20 times beside two busy loops, eight at a time: a test that depends on the machine shows
# it here, not in a later run. `make check` calls it.
#
#   stress.sh               the tests of files that changed since the tree that passed last, or since the previous commit
#   stress.sh FILTERSET     the tests of a filter set of nextest, such as 'test(/^hand_over::/)'
#
# STRESS_ROUNDS (20) and STRESS_SECONDS (120) bound it. A round of many tests has parts of about a hundred, which take a minute or more;
# no part begins, but for the first, if it would end after that time when it takes as long as the one before. The tree says which part is
# first, so that each change begins with another one.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${STRESS_ROUNDS:-20} seconds=${STRESS_SECONDS:-120}
cargo=${CARGO:-cargo}
# As scripts/gate.py builds.
export RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__
run=("$cargo" nextest run --workspace --features weir/kafka --locked --tests --no-tests=pass)

if [ $# -gt 0 ]; then
  filter=$1
else
  since=$(scripts/tree.sh last)
  since=${since:-$(git rev-parse -q --verify HEAD~1 || git rev-parse HEAD)}
  filter=
  # Of a file or a folder below crates/X/tests or rig/X/tests: the module of that name. Shared helpers and whole programs are not
  # run: nearly every test would be.
  while IFS=/ read -r _ crate _ module rest; do
    module=${module%.rs}
    case $module in all | support | counting | machine | golden*) continue ;; esac
    [ -n "$rest" ] || [ -e "crates/$crate/tests/$module.rs" ] || [ -e "rig/$crate/tests/$module.rs" ] || continue
    one="(package($crate) and test(/^$module::/))"
    # A program of its own.
    ! grep -qs "^name = \"$module\"" "crates/$crate/Cargo.toml" "rig/$crate/Cargo.toml" || one="(package($crate) and binary($module))"
    case $filter in *"$one"*) ;; *) filter="${filter:+$filter or }$one" ;; esac
  done < <(git diff --name-only --diff-filter=AMR "$since" -- 'crates/*/tests/*.rs' 'rig/*/tests/*.rs'; git ls-files --others --exclude-standard -- 'crates/*/tests/*.rs' 'rig/*/tests/*.rs')
  if [ -z "$filter" ]; then
    echo "stress: no test file changed since $since"
    exit
  fi
fi

# A test in quarantine fails the gate nowhere.
filter="($filter)$(sed -n 's/^name = "\(.*\)"$/ and not test(=\1)/p' tests/quarantine.toml | tr -d '\n')"

"${run[@]}" --no-run
tests=$("$cargo" nextest list --workspace --features weir/kafka --locked --tests --message-format oneline -E "$filter" | wc -l)
parts=$(((tests + 99) / 100))
tree=$(scripts/tree.sh)
first=$((parts > 0 ? 0x${tree:0:4} % parts : 0))
loops=()
trap 'kill "${loops[@]}" 2>/dev/null || true' EXIT
for _ in 1 2; do
  while :; do :; done &
  loops+=($!)
done
start=$SECONDS
done=0 last=0
while [ "$done" -lt $((rounds * parts)) ] && [ $((SECONDS - start + last)) -le "$seconds" ]; do
  began=$SECONDS
  part=$(((first + done) % parts + 1))
  "${run[@]}" --test-threads 8 --status-level fail --final-status-level fail --show-progress none \
    --partition "slice:$part/$parts" -E "$filter" || {
    echo "stress: failed in part $part of $parts, after $done that passed" >&2
    exit 1
  }
  done=$((done + 1)) last=$((SECONDS - began))
done
echo "stress: $tests tests in $parts parts, $done parts run in $((SECONDS - start)) s beside two busy loops: $filter"
