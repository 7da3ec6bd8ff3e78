#!/usr/bin/env bash
# weir against an earlier build of itself: EARLIER=path/to/weir, or EARLIER_COMMIT=revision to build one. CASES (three cases),
# PAIRS (14), PAGE (commits). About 3 minutes after the build.
source "$(dirname "$0")/common.sh"
if [ -n "${EARLIER:-}" ]; then
  baseline=bin:$EARLIER
else
  baseline=git:${EARLIER_COMMIT:?set EARLIER or EARLIER_COMMIT}
fi
read -ra cases <<<"${CASES:-dsd-real-web dsd-contexts-10k dsd-dist-heavy}"
detector folder compare --baseline "$baseline" --comparison "bin:$WEIR_BIN" --allow-profile-mismatch --preset quick --pairs "${PAIRS:-14}" "${cases[@]}"
page=$pages/${PAGE:-commits}.md
{
  header "weir against an earlier commit of itself" "${FLAGS:+FLAGS='$FLAGS' }${CASES:+CASES='$CASES' }${PAIRS:+PAIRS=$PAIRS }${PAGE:+PAGE=$PAGE }rig/scripts/record/commits.sh"
  echo "Baseline: ${EARLIER_COMMIT:-$(basename "${EARLIER}")}; comparison: this commit. Preset \`quick\`, ${PAIRS:-14} pairs, concurrent pairs."
  echo
  rows "$folder/report.json"
  echo
  discarded "$folder/report.json"
} >"$page"
keep "$page" "$folder/report.json"
echo "written: $page; raw data: $folder"
[ "$code" -le 1 ]
