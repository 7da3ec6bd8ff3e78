#!/usr/bin/env bash
# Installs, from Debian's packages, what the tests need and a fresh machine with the
# language toolchains lacks. Does nothing when everything is there.
set -euo pipefail

declare -A package_of=(
  [ruby]=ruby
  [prometheus]=prometheus
  [valgrind]=valgrind
  [podman]=podman
  [runc]=runc
  [containerd]=containerd
  [victoria-metrics]=victoria-metrics
  [python3]=python3-venv
  [carbon-cache]=graphite-carbon
  [whisper-fetch]=python3-whisper
)
missing=()
for program in "${!package_of[@]}"; do
  command -v "$program" >/dev/null 2>&1 || missing+=("${package_of[$program]}")
done
[ "${#missing[@]}" -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null 2>&1; then
  echo "install-test-deps: missing ${missing[*]}; install them with this system's package manager" >&2
  exit 1
fi
sudo=()
[ "$(id -u)" -eq 0 ] || sudo=(sudo)
"${sudo[@]}" apt-get update -qq
# Servers are started by the tests themselves, never by the package's service files.
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
