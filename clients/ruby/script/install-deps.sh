#!/usr/bin/env bash
# Installs from Debian's packages what the checks and tests need and this machine lacks.
# Nothing comes from a gem server. Does nothing when everything is there.
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
need 'ruby -rmkmf -e "exit File.exist?(RbConfig::CONFIG[%q(rubyhdrdir)] + %q(/ruby.h))"' ruby-dev
need 'command -v cc' gcc libc6-dev
need 'command -v make' make

[ "${#missing[@]}" -eq 0 ] && exit 0
if ! command -v apt-get >/dev/null 2>&1; then
  echo "install-deps: missing ${missing[*]}; install them with this system's package manager" >&2
  exit 1
fi
sudo=()
[ "$(id -u)" -eq 0 ] || sudo=(sudo)
"${sudo[@]}" apt-get update -qq
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
