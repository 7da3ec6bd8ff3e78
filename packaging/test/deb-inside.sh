#!/usr/bin/env bash
# The part of deb.sh that runs in the scratch root.
set -euo pipefail
fail() { echo "deb.sh: $*" >&2; exit 1; }
dpkg="env DEBIAN_FRONTEND=noninteractive dpkg --force-confold"
name=$(dpkg-deb -f /tmp/now.deb Package)

# The service manager does not run here, so this does its work as the unit describes.
unit=/usr/lib/systemd/system/weir.service
start() {
  grep -q '^User=weir$' "$unit" && grep -q '^StateDirectory=weir$' "$unit" || fail "the unit is another one"
  install -d -o weir -g weir -m 700 /var/lib/weir
  local command
  command=$(sed -n 's/^ExecStart=//p' "$unit")
  # shellcheck disable=SC2086
  setpriv --reuid=weir --regid=weir --init-groups --no-new-privs --bounding-set=-all env WEIR_STATE_PATH=/var/lib/weir RUNTIME_DIRECTORY=/run/weir $command 2>>/tmp/log &
  agent=$!
  for _ in $(seq 600); do
    weir status --quiet 2>/dev/null && return
    kill -0 "$agent" 2>/dev/null || { cat /tmp/log; fail "the agent has ended"; }
    sleep 0.1
  done
  cat /tmp/log
  fail "the agent is not ready after a minute"
}
stop() {
  kill -TERM "$agent"
  wait "$agent" || fail "the agent ended with $?"
}
# For a process that is not a child of this shell.
end() {
  kill -TERM "$agent"
  for _ in $(seq 600); do
    kill -0 "$agent" 2>/dev/null || return 0
    sleep 0.1
  done
  fail "the agent does not end"
}
# The packages' scripts use a simulated service manager that logs its requests.
printf '#!/bin/sh\necho "$*" >>/tmp/systemctl.log\n' >/usr/local/bin/systemctl
chmod 755 /usr/local/bin/systemctl
mkdir -p /run/systemd/system
# Otherwise each installation reads all manual pages of this machine.
rm -f /var/lib/man-db/auto-update
# A machine that builds images may forbid the start of services.
rm -f /usr/sbin/policy-rc.d
accepted() { weir status --json | jq .total.messages.accepted; }
is_accepted() { # NUMBER
  for _ in $(seq 600); do
    [ "$(accepted)" = "$1" ] && return
    sleep 0.1
  done
  fail "$(accepted) messages were accepted, and $1 sent"
}

$dpkg -i /tmp/before.deb >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; fail "the package cannot be installed"; }
id weir >/dev/null || fail "there is no user weir"
[ "$(stat -c '%U %a' /run/weir)" = "weir 755" ] || fail "/run/weir: $(stat -c '%U %a' /run/weir)"
[ "$(stat -c '%U:%G %a' /etc/weir/weir.yaml)" = "root:weir 640" ] || fail "weir.yaml: $(stat -c '%U:%G %a' /etc/weir/weir.yaml)"
! grep -qv '^#\|^$' /etc/weir/weir.yaml || fail "weir.yaml has more than comments"
# The commented-out lines are a valid configuration too.
grep -E '^#([a-z_]+:|  )' /etc/weir/weir.yaml | sed 's/^#//' >/tmp/example.yaml
sed -i 's#/etc/weir/datadog.key#/tmp/key#' /tmp/example.yaml
echo 0123456789abcdef0123456789abcdef >/tmp/key
weir check --config /tmp/example.yaml >/tmp/check 2>&1 || { cat /tmp/example.yaml /tmp/check; fail "the comments in weir.yaml are no configuration"; }
man --pager=cat weir | grep 'weir' >/dev/null || fail "there is no manual page"
bash -n /usr/share/bash-completion/completions/weir || fail "the completions"

start
[ "$(stat -c %a /run/weir/admin)" = 644 ] && [ "$(cat /run/weir/admin)" = 127.0.0.1:8127 ] || fail "/run/weir/admin: $(cat /run/weir/admin)"
weir send 'package.installed:1|c' 'package.installed:1|c'
is_accepted 2
weir doctor --no-send --config /etc/weir/weir.yaml --state-path /var/lib/weir || fail "the doctor finds errors"

# The upgrade hands over: the process is new, and the counts continue.
upgrade_to() { # PACKAGE
  $dpkg -i "$1" >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; fail "the package cannot be upgraded"; }
}
process() { weir status --json | jq .pid; }
restarts() { grep -c 'restart .*weir.service' /tmp/systemctl.log || true; }
before=$(process)
printf 'uds: [/run/weir/dsd.socket]\n' >>/etc/weir/weir.yaml
upgrade_to /tmp/now.deb
[ "$(process)" != "$before" ] || { cat /tmp/dpkg.log /tmp/log; fail "the version before goes on"; }
wait "$agent" || fail "the version before ended with $? after the hand-over"
agent=$(process)
grep -q '^uds:' /etc/weir/weir.yaml || fail "the upgrade overwrote the configuration"
[ "$(dpkg-query -W -f '${Version}' "$name")" != 0.0.9-1 ] || fail "it was not upgraded"
weir send 'package.upgraded:1|c'
weir send 'package.upgraded:1|c' --to unixgram:///run/weir/dsd.socket
is_accepted 4
[ "$(restarts)" = 0 ] || fail "it was restarted: $(cat /tmp/systemctl.log)"

# The new version refuses the configuration: the old one continues.
printf 'wrong: 1\n' >>/etc/weir/weir.yaml
upgrade_to /tmp/before.deb
[ "$(process)" = "$agent" ] || fail "an agent was ended for one that cannot start"
grep -q 'it is not restarted' /tmp/dpkg.log || { cat /tmp/dpkg.log; fail "the upgrade does not say that the version before goes on"; }
[ "$(restarts)" = 0 ] || fail "it was restarted: $(cat /tmp/systemctl.log)"
sed -i '$d' /etc/weir/weir.yaml
end
# No process answers, and the configuration is valid: a restart.
upgrade_to /tmp/now.deb
[ "$(restarts)" = 1 ] || fail "it was not restarted: $(cat /tmp/systemctl.log)"

start
is_accepted 4

# The other package replaces this one: the agent hands over to the other's agent, which keeps configuration and state, even after
# this package is purged.
if [ -e /tmp/other.deb ]; then
  before=$(process)
  was=$(weir --version | grep '^features')
  restarted=$(restarts)
  upgrade_to /tmp/other.deb
  [ "$(weir --version | grep '^features')" != "$was" ] || fail "both packages have the same program"
  [ "$(process)" != "$before" ] || { cat /tmp/dpkg.log /tmp/log; fail "the other package's agent does not take over"; }
  wait "$agent" || fail "the agent ended with $? after the hand-over to the other package"
  agent=$(process)
  $dpkg -P "$name" >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; fail "the rest of $name cannot be purged"; }
  grep -q '^uds:' /etc/weir/weir.yaml || fail "the other package has no configuration"
  weir send 'package.other:1|c'
  is_accepted 5
  [ "$(restarts)" = "$restarted" ] && ! grep -qw stop /tmp/systemctl.log || fail "it was ended: $(cat /tmp/systemctl.log)"
  end
  name=$(dpkg-deb -f /tmp/other.deb Package)
else
  stop
fi

$dpkg -r "$name" >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; fail "the package cannot be removed"; }
[ ! -e /usr/bin/weir ] && [ -e /etc/weir/weir.yaml ] && [ -d /var/lib/weir ] || fail "a removal leaves configuration and state, and nothing else"
$dpkg -P "$name" >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; fail "the package cannot be purged"; }
left=$(find /etc/weir /var/lib/weir /run/weir /usr/share/weir /usr/share/doc/weir* 2>/dev/null || true)
[ -z "$left" ] || fail "a purge leaves $left"
echo "deb.sh: passed"
