#!/usr/bin/env bash
# Installs from Debian's packages what the checks and tests need and this machine lacks.
# Nothing comes from a gem server. Does nothing when everything is there.
# With the argument "jruby": what the tests on JRuby need besides, a Java runtime and Maven.
set -euo pipefail

missing=()
need() { # COMMAND-THAT-SUCCEEDS PACKAGE...
  local probe=$1
  shift
  bash -c "$probe" >/dev/null 2>&1 || missing+=("$@")
}

need 'command -v ruby' ruby
need 'ruby -e "require %q(minitest)"' ruby-minitest
need 'command -v rspec' ruby-rspec
need 'command -v rubocop' rubocop
need 'command -v yard' yard
need 'ruby -rrack -e ""' ruby-rack
need 'ruby -rsidekiq -e ""' ruby-sidekiq
need 'ruby -ractive_support -e ""' ruby-activesupport
need 'ruby -rmkmf -e "exit File.exist?(RbConfig::CONFIG[%q(rubyhdrdir)] + %q(/ruby.h))"' ruby-dev
need 'command -v cc' gcc libc6-dev
need 'command -v make' make
if [ "${1:-}" = jruby ]; then
  need 'command -v java' default-jre-headless
  need 'command -v mvn' maven
fi

[ "${#missing[@]}" -eq 0 ] && exit 0
if ! command -v apt-get >/dev/null 2>&1; then
  echo "install-deps: missing ${missing[*]}; install them with this system's package manager" >&2
  exit 1
fi
sudo=()
[ "$(id -u)" -eq 0 ] || sudo=(sudo)
# A mirror may be out of reach for a moment, and another program may be installing.
patient=(-qq -o Acquire::Retries=5 -o DPkg::Lock::Timeout=600)
for attempt in 1 2 3 4 5; do
  if "${sudo[@]}" apt-get "${patient[@]}" update &&
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get "${patient[@]}" install -y --no-install-recommends "${missing[@]}"; then
    exit 0
  fi
  echo "install-deps: attempt $attempt failed" >&2
  sleep $((attempt * 5))
done
echo "install-deps: ${missing[*]} could not be installed" >&2
exit 1
