#!/usr/bin/env bash
# Installs the Debian packages that the tests need beside the language toolchains, the runner of Rust tests, and the jars of the
# broker that some tests start. Does nothing if everything is installed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
jars=$here/../rig/weir-broker/jars.sh
nextest=${XDG_CACHE_HOME:-$HOME/.cache}/weir/nextest

# Outside the sources, and the version that nextest.txt names alone.
install_nextest() {
  cmp -s "$here/nextest.txt" "$nextest/nextest.txt" && return
  rm -rf "$nextest"
  python3 -m venv "$nextest"
  "$nextest/bin/pip" install --quiet --no-deps --retries 10 --require-hashes --requirement "$here/nextest.txt"
  mkdir -p "$nextest/../bin"
  ln -sfn "$nextest/bin/cargo-nextest" "$nextest/../bin/cargo-nextest"
  cp "$here/nextest.txt" "$nextest/nextest.txt"
}

missing=()
need() { # COMMAND-THAT-SUCCEEDS PACKAGE
  bash -c "$1" >/dev/null 2>&1 || missing+=("$2")
}

need 'command -v ruby' ruby
need 'command -v prometheus' prometheus
need 'command -v valgrind' valgrind
need 'command -v podman' podman
need 'command -v runc' runc
need 'command -v containerd' containerd
need 'command -v victoria-metrics' victoria-metrics
need 'command -v influxd' influxdb
# Debian has a separate package for virtual environments.
need 'python3 -c "import ensurepip, venv"' python3-venv
need 'command -v carbon-cache' graphite-carbon
need 'command -v whisper-fetch' python3-whisper
need 'command -v jq' jq
# Renders the pages as a site.
need 'command -v cmark-gfm' cmark-gfm
# Decompresses records for a decoder in Python.
need 'command -v zstd' zstd
need 'command -v systemd-socket-activate' systemd
need 'command -v chromium' chromium
need 'command -v systemd-analyze' systemd
# For the packages and their tests.
need 'command -v rpmbuild' rpm
need 'command -v lintian' lintian
need 'command -v man' man-db
# For the broker: the virtual machine, and the tool that fetches its jars.
need 'command -v java' openjdk-17-jre-headless
need 'command -v mvn' maven
if [ "${#missing[@]}" -eq 0 ]; then
  install_nextest
  "$jars" >/dev/null
  exit
fi

if ! command -v apt-get >/dev/null 2>&1; then
  echo "install-test-deps: missing ${missing[*]}; install them with this system's package manager" >&2
  exit 1
fi
sudo=()
[ "$(id -u)" -eq 0 ] || sudo=(sudo)
# A mirror may not answer for a moment, and another program may be installing.
patient=(-qq -o Acquire::Retries=5 -o DPkg::Lock::Timeout=600)
for attempt in 1 2 3 4 5; do
  # The tests start servers themselves; the package's service files must not.
  if "${sudo[@]}" apt-get "${patient[@]}" update &&
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get "${patient[@]}" install -y --no-install-recommends "${missing[@]}"; then
    install_nextest
    "$jars" >/dev/null
    exit
  fi
  echo "install-test-deps: attempt $attempt failed" >&2
  sleep $((attempt * 5))
done
echo "install-test-deps: ${missing[*]} could not be installed" >&2
exit 1
