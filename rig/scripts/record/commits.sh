#!/usr/bin/env bash
# weir against an earlier build of itself: EARLIER=path/to/weir, or EARLIER_COMMIT=revision to build one. CASES (three cases),
# PAIRS (14), NAME of the section that is added to commits.md. About 3 minutes after the build.
source "$(dirname "$0")/common.sh"
if [ -n "${EARLIER:-}" ]; then
  baseline=bin:$EARLIER
else
  baseline=git:${EARLIER_COMMIT:?set EARLIER or EARLIER_COMMIT}
fi
read -ra cases <<<"${CASES:-dsd-real-web dsd-contexts-10k dsd-dist-heavy}"
detector folder compare --baseline "$baseline" --comparison "bin:$WEIR_BIN" --allow-profile-mismatch --preset quick --pairs "${PAIRS:-14}" "${cases[@]}"
name=${NAME:-$(git rev-parse --short HEAD)}
page=$pages/commits.md
{
  echo
  header "# $name" "${FLAGS:+FLAGS='$FLAGS' }${CASES:+CASES='$CASES' }${PAIRS:+PAIRS=$PAIRS }${NAME:+NAME=$NAME }rig/scripts/record/commits.sh" | sed '1s/^# # /## /'
  echo "Baseline: ${EARLIER_COMMIT:-$(basename "${EARLIER}")}; comparison: this commit. Preset \`quick\`, ${PAIRS:-14} pairs, concurrent pairs."
  echo
  rows "$folder/report.json"
  echo
  discarded "$folder/report.json"
} >>"$page"
keep "commits-$name" "$folder/report.json"
echo "written: $page; raw data: $folder"
[ "$code" -le 1 ]
