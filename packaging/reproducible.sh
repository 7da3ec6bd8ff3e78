#!/usr/bin/env bash
# Checks that the commit alone determines every byte of a release: builds it again from a clone in another directory, and
# compares with the checksums in dist/ from `make dist` of the same commit.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -s dist/SHA256SUMS ] || { echo "reproducible.sh: no dist/SHA256SUMS; run: make dist" >&2; exit 1; }
[ -z "$(git status --porcelain)" ] || { echo "reproducible.sh: there are changes that are not committed" >&2; exit 1; }
commit=$(git rev-parse HEAD)
built=$(dist/weir --version | sed -n 's/^commit  *//p')
[ "$built" = "$commit" ] || { echo "reproducible.sh: dist/ is of commit $built, and this is $commit; run: make dist" >&2; exit 1; }

other=$(mktemp -d /tmp/weir-another-directory-XXXXXX)
trap 'rm -rf "$other"' EXIT
git clone --quiet --no-hardlinks . "$other/clone"
git -C "$other/clone" -c advice.detachedHead=false checkout --quiet "$commit"
# As elsewhere: nothing of this build is used there.
(cd "$other/clone" && env -u CARGO_TARGET_DIR make dist >"$other/log" 2>&1) || { tail -50 "$other/log"; exit 1; }
if diff dist/SHA256SUMS "$other/clone/dist/SHA256SUMS"; then
  echo "reproducible: $(wc -l <dist/SHA256SUMS) files of commit $commit have the same bytes in both directories"
else
  echo "reproducible.sh: the files above differ" >&2
  exit 1
fi
