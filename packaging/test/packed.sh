#!/usr/bin/env bash
# Packs the program of the other tests, and installs and runs both packages in scratch roots: it finds errors in a package
# without the long build of `make dist`. packed.sh BINARY. Needs root.
set -euo pipefail
binary=$(realpath "${1:?the binary}")
here=$(cd "$(dirname "$0")" && pwd)
if [ "$(id -u)" != 0 ]; then
  echo "packed.sh: left out, because packages are installed by root alone"
  exit
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
strip --strip-all -o "$work/weir" "$binary"
# The program is three times as large as a released one.
COMPRESSION=fast "$here/../packages.sh" "$work/weir" "$work"
"$here/deb.sh" "$work"
"$here/rpm.sh" "$work"
