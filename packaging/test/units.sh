#!/usr/bin/env bash
# The units: systemd accepts them, and its security analysis rates the service as little exposed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
fail() { echo "units.sh: $*" >&2; exit 1; }
exposure_max=2.0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Neither the program nor its manual is installed here.
for unit in weir.service weir.socket weir-merge.service; do sed 's#/usr/bin/weir#/bin/true#; s#man:weir(1) ##' "$here/../package/$unit" >"$work/$unit"; done
verify() { systemd-analyze verify "$@" 2>&1 | grep "^$work" || true; }
# Before 253 systemd does not know notify-reload, and keeps the type above it.
verify "$work/weir.service" "$work/weir.socket" "$work/weir-merge.service" | grep -v 'Failed to parse service type, ignoring: notify-reload' >"$work/said" || true
[ ! -s "$work/said" ] || { cat "$work/said"; fail "systemd-analyze verify complains"; }
finds() { # UNIT LINE WRONG: the introduced error
  sed "s#^$2=.*#$2=$3#" "$work/$1" >"$work/wrong$1"
  verify "$work/wrong$1" | grep "^$work/wrong$1.*$3" >/dev/null || fail "an error in $1 is not found"
}
finds weir.service ProtectSystem sometimes
finds weir.socket SocketMode everybody
finds weir-merge.service ProtectSystem sometimes
for unit in weir.service weir-merge.service; do
  exposure=$(systemd-analyze security --offline=yes --no-pager "$work/$unit" 2>/dev/null | sed -n 's/.*Overall exposure level[^:]*: \([0-9.]*\).*/\1/p')
  [ -n "$exposure" ] || fail "no exposure level of $unit"
  awk -v is="$exposure" -v max="$exposure_max" 'BEGIN { exit !(is < max) }' || fail "exposure $exposure of $unit, and below $exposure_max is allowed"
  echo "units.sh: $unit: exposure $exposure"
done
echo "units.sh: passed"
