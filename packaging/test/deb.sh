#!/usr/bin/env bash
# Installs, runs, upgrades, removes and purges the Debian package in a scratch root: an overlay over this machine's files, which
# keeps no change. With both packages it also installs one in place of the other. A network namespace
# separates the ports. Needs root.
set -euo pipefail
dist=$(realpath "${1:-dist}")
here=$(cd "$(dirname "$0")" && pwd)
fail() { echo "deb.sh: $*" >&2; exit 1; }

if [ -z "${SCRATCH:-}" ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  SCRATCH=$work unshare --mount --net --pid --fork --kill-child "$0" "$dist"
  exit
fi

work=$SCRATCH
debs=("$dist"/weir*_amd64.deb)
deb=${debs[-1]}
dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$work" ./usr/bin/weir
# Released programs are static, so the package depends on no C library. `make test` packs its own program, which is not static.
lintian_allows=()
! readelf -lW "$work/usr/bin/weir" | grep INTERP >/dev/null || lintian_allows=(--suppress-tags missing-dependency-on-libc)
lintian --allow-root --fail-on error,warning --tag-display-limit 0 "${lintian_allows[@]}" "${debs[@]}" || fail "lintian complains"

# The previous version, for the upgrade: the same files under a lower number.
dpkg-deb -R "$deb" "$work/before"
sed -i 's/^Version: .*/Version: 0.0.9-1/' "$work/before/DEBIAN/control"
dpkg-deb --root-owner-group -Zgzip -z1 --build "$work/before" "$work/before.deb" >/dev/null

mount -t tmpfs -o size=1g tmpfs "$work"/before
mkdir "$work"/before/{above,work,root}
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/before/above,workdir=$work/before/work" "$work/before/root"
root=$work/before/root
mount -t proc proc "$root/proc"
# The package sets limits of the kernel, which would change this machine.
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
ip link set lo up
cp "$deb" "$root/tmp/now.deb"
cp "$work/before.deb" "$root/tmp/before.deb"
[ "${#debs[@]}" = 1 ] || cp "${debs[0]}" "$root/tmp/other.deb"
cp "$here/deb-inside.sh" "$root/tmp/"
env -u SCRATCH chroot "$root" /tmp/deb-inside.sh
