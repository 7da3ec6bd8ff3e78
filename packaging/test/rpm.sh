#!/usr/bin/env bash
# The packages for Red Hat: complete, with the files of the Debian package, and each installs into a scratch root. Needs root.
set -euo pipefail
dist=$(realpath "${1:-dist}")
fail() { echo "rpm.sh: $*" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
check() { # RPM
  local rpm=$1 name
  name=$(rpm -qp --nosignature --queryformat '%{NAME}' "$rpm")
  rm -rf "$work/tree"
  rpm --checksig --nosignature "$rpm" | grep 'digests OK' >/dev/null || fail "it is damaged"
  mkdir "$work/tree"
  rpm --root "$work/tree" --initdb
  rpm --root "$work/tree" --nodeps --noscripts --nosignature -i "$rpm"
  "$work/tree/usr/bin/weir" --version >/dev/null || fail "the binary does not run"
  [ "$(rpm --root "$work/tree" -V --nodeps "$name")" = "" ] || fail "what was installed differs"
  dpkg-deb --fsys-tarfile "$dist/${name}"_*_amd64.deb | tar -t | sed 's#^\.##; /\/$/d' | grep -v 'lintian\|changelog.Debian' | sort >"$work/deb"
  (cd "$work/tree" && find etc/weir usr -type f -printf '/%p\n' | grep -v '/var/lib/rpm\|/sysimage/' | sort) >"$work/rpm"
  diff "$work/deb" "$work/rpm" || fail "the packages have other files"
  rpm -qp --nosignature --configfiles "$rpm" | grep -x /etc/weir/weir.yaml >/dev/null || fail "weir.yaml is no configuration file"
  echo "rpm.sh: $name: passed"
}
rpms=("$dist"/weir*.x86_64.rpm)
for one in "${rpms[@]}"; do check "$one"; done
# Both have the program under the same name, so only one can be installed.
if [ "${#rpms[@]}" = 2 ]; then
  ! rpm --root "$work/tree" --nosignature --test -i "${rpms[@]}" >"$work/log" 2>&1 || fail "both can be installed"
  grep conflicts "$work/log" >/dev/null || { cat "$work/log"; fail "the refusal names no conflict"; }
fi
