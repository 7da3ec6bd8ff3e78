#!/usr/bin/env bash
# The unit: systemd takes it, and finds that it leaves little to do harm with.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
fail() { echo "units.sh: $*" >&2; exit 1; }
exposure_max=2.0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Neither the program nor its manual need be installed here.
sed 's#/usr/bin/weir#/bin/true#; s#man:weir(1) ##' "$here/../package/weir.service" >"$work/weir.service"
# Before 253 systemd does not know notify-reload, and keeps the type above it.
systemd-analyze verify "$work/weir.service" 2>&1 | grep "^$work" | grep -v 'Failed to parse service type, ignoring: notify-reload' >"$work/said" || true
[ ! -s "$work/said" ] || { cat "$work/said"; fail "systemd-analyze verify complains"; }
sed 's/^ProtectSystem=.*/ProtectSystem=sometimes/' "$work/weir.service" >"$work/weirwrong.service"
systemd-analyze verify "$work/weirwrong.service" >"$work/said" 2>&1 || true
grep -q "^$work/weirwrong.service.*sometimes" "$work/said" || fail "a fault in the unit is not found"
exposure=$(systemd-analyze security --offline=yes --no-pager "$work/weir.service" 2>/dev/null | sed -n 's/.*Overall exposure level[^:]*: \([0-9.]*\).*/\1/p')
[ -n "$exposure" ] || fail "no exposure level"
awk -v is="$exposure" -v max="$exposure_max" 'BEGIN { exit !(is < max) }' || fail "exposure $exposure, and below $exposure_max is allowed"
echo "units.sh: exposure $exposure, passed"
