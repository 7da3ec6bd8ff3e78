#!/usr/bin/env bash
# Rules about the repository that no compiler checks.
set -euo pipefail
cd "$(dirname "$0")/.."
bad=0
large=$(git ls-files -z | xargs -0 -r stat -c '%s %n' | awk '$1 > 1048576 {print $2}')
[ -z "$large" ] || { echo "files over 1 MiB do not belong here:"; echo "$large"; bad=1; }
for file in README.md ARCHITECTURE.md CHANGELOG.md; do
  [ -s "$file" ] || { echo "$file is missing or empty"; bad=1; }
done
# A newcomer reads it whole.
words=$(wc -w <ARCHITECTURE.md)
[ "$words" -le 3000 ] || { echo "ARCHITECTURE.md has $words words, at most 3000: figures belong in docs/decisions"; bad=1; }
for script in $(git ls-files '*.sh' '.ci/run'); do
  bash -n "$script" || bad=1
  [ -x "$script" ] || { echo "$script is not executable"; bad=1; }
done
# "Where is ..." in ARCHITECTURE.md: each file exists and contains its symbol.
while IFS='|' read -r _ _ file symbol _; do
  file=$(tr -d ' `' <<<"$file"); symbol=$(sed 's/^ *`//; s/` *$//' <<<"$symbol")
  grep -qF -- "$symbol" "$file" 2>/dev/null || { echo "ARCHITECTURE.md: there is no $symbol in $file"; bad=1; }
done < <(grep -E '^\|[^|]+\| `[a-z][^|]*/[^|]*` \| `' ARCHITECTURE.md)
# Commands that pages and CI name are targets of the Makefile.
for verb in $({ grep -ohE '(^|`|run: |&& )make [a-z][a-z-]*' README.md CONTRIBUTING.md .github/workflows/*.yml .ci/run; sed -n 's/^ *verb: \[\(.*\)\]$/\1/p' .github/workflows/*.yml | tr -d ','; } | sed 's/.*make //'); do
  grep -qE "^$verb:" Makefile || { echo "there is no target $verb in the Makefile"; bad=1; }
done
# Subjects of commits, as CONTRIBUTING says; older ones are in the history for good.
long=$(git log --no-merges --since=2026-11-27T22:15:00Z --format='%h %s' | awk 'NF > 13')
[ -z "$long" ] || { echo "subjects of commits with more than 12 words:"; echo "$long"; bad=1; }
scripts/check-shape.py || bad=1
exit $bad
