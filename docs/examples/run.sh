#!/usr/bin/env bash
# Starts the agent and two services that report to it, one in Go and one in Ruby, and prints the page to open.
#
#   docs/examples/run.sh [SECONDS]      60 by default; then, or at Ctrl-C, it stops everything
#
# WEIR_BIN names a built agent; without it, the script builds one.
set -euo pipefail
seconds=${1:-60}
[[ $seconds =~ ^[0-9]+$ && $seconds -gt 0 ]] || { echo "SECONDS must be a whole number above 0, not $seconds" >&2; exit 2; }
root=$(cd "$(dirname "$0")/../.." && pwd)
weir=$("$root/clients/ruby/script/weir-binary.sh")
dir=$(mktemp -d)
services=()
agent=
# The agent outlives the services, which send what they have at their end.
finish() {
  for job in "${services[@]}" $agent; do
    kill "$job" 2>/dev/null || true
    wait "$job" || true
  done
  rm -rf "$dir"
}
trap finish EXIT
trap 'exit 130' INT TERM

(cd "$root/clients/go" && go build -o "$dir/shop" ./examples/shop)
# The program may start later than the look at its log.
: >"$dir/log"
"$weir" run --bucket-width 1s --udp 127.0.0.1:0 --uds "$dir/weir.sock" --admin 127.0.0.1:0 2>"$dir/log" >/dev/null &
agent=$!
until page=$(grep -om1 'admin on http://[^ ]*' "$dir/log"); do
  kill -0 "$agent" 2>/dev/null || { cat "$dir/log" >&2; exit 1; }
  sleep 0.05
done
echo "open ${page#admin on } for the next $seconds seconds"

DD_DOGSTATSD_URL="unixgram://$dir/weir.sock" "$dir/shop" -for "${seconds}s" &
services+=($!)
STATSD_ENV=production STATSD_ADDR="unixgram://$dir/weir.sock" \
  ruby -I "$root/clients/ruby/lib" "$root/clients/ruby/examples/shop.rb" "$seconds" &
services+=($!)
wait "${services[0]}"
wait "${services[1]}"
