#!/usr/bin/env bash
# Profiles of the stripped program: with the separate symbols they name its functions. profile.sh BINARY FOLDER, in a
# network namespace; FOLDER has symbols/ and the program pprof. (`go tool pprof` does not search by build id.)
set -euo pipefail
weir=$1
work=$2
fail() { cat "$work"/{log,top} 2>/dev/null; echo "profile.sh: $*" >&2; exit 1; }
ip link set lo up
"$weir" run --udp 127.0.0.1:8125 --admin 127.0.0.1:8127 2>"$work/log" &
agent=$!
trap 'kill $agent' EXIT
for _ in $(seq 600); do
  "$weir" status --quiet 2>/dev/null && break
  kill -0 "$agent" 2>/dev/null || fail "the agent has ended"
  sleep 0.1
done
# Load for the CPU profile.
python3 -c 'import socket
to = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(2_000_000): to.sendto(b"profile.test:1|c\n" * 400, ("127.0.0.1", 8125))' &
trap "kill $agent $!" EXIT
for profile in heap 'profile?seconds=4'; do
  PPROF_TMPDIR=$work PPROF_BINARY_PATH=$work/symbols/.build-id "$work/pprof" -top -cum "http://127.0.0.1:8127/debug/pprof/$profile" \
    >"$work/top" 2>&1 || fail "pprof does not take $profile"
done
# The heap profile of a nearly idle agent may have no samples.
grep -q 'weir_ingest::' "$work/top" || fail "the profile of the processor has no names of functions"
