#!/usr/bin/env bash
# Each image: its layout and layer are correct, and its root file system runs, read-only, as its user. Needs root.
set -euo pipefail
dist=$(realpath "${1:-dist}")
here=$(cd "$(dirname "$0")" && pwd)
fail() { echo "image.sh: $*" >&2; exit 1; }
if [ -z "${SCRATCH:-}" ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  for image in "$dist"/weir*-image.tar; do
    mkdir "$work/image"
    SCRATCH=$work/image unshare --mount --net --pid --fork --kill-child "$0" "$dist" "$image"
    rm -rf "$work/image"
  done
  exit
fi
work=$SCRATCH
image=$2
"$here/layout.py" "$image" "$work" || fail "the layout"

# Like a runtime: the root read-only, /proc, and nothing else.
mount --bind "$work/tree" "$work/tree"
mkdir -p "$work/tree/proc"
mount -o remount,bind,ro "$work/tree"
mount -t proc proc "$work/tree/proc"
ip link set lo up
user=$(jq -r .config.User "$work/config.json")
mapfile -t variables < <(jq -r '.config.Env[]' "$work/config.json")
mapfile -t command < <(jq -r '(.config.Entrypoint + .config.Cmd)[]' "$work/config.json")
mapfile -t health < <(jq -r '.config.Healthcheck.Test[1:][]' "$work/config.json")
chroot=$(command -v chroot)
# Each of these programs executes the next, so the started process is the agent.
inside=(env -i "${variables[@]}" "$chroot" --userspec="$user" --groups= "$work/tree")
inside() { "${inside[@]}" "$@"; }

! touch "$work/tree/file" 2>/dev/null || fail "the root can be written"
if inside "${health[@]}" 2>/dev/null; then fail "healthy without an agent"; fi
"${inside[@]}" "${command[@]}" 2>"$work/log" &
agent=$!
for _ in $(seq 600); do
  if inside "${health[@]}" 2>/dev/null; then break; fi
  kill -0 "$agent" 2>/dev/null || { cat "$work/log"; fail "the agent has ended"; }
  sleep 0.1
done
inside "${health[@]}" || { cat "$work/log"; fail "it is not healthy after a minute"; }
inside /usr/bin/weir send 'image.runs:1|c'
for _ in $(seq 600); do
  accepted=$(inside /usr/bin/weir status --json | jq .total.messages.accepted)
  [ "$accepted" = 1 ] && break
  sleep 0.1
done
[ "$accepted" = 1 ] || fail "the message did not arrive"
# Process numbers are those of the namespace, and so is this /proc.
runs_as=$(stat -c %u "$work/tree/proc/$agent")
[ "$runs_as" = "${user%:*}" ] || fail "it runs as $runs_as"
kill -TERM "$agent"
wait "$agent" || { cat "$work/log"; fail "it ended with $?"; }
echo "image.sh: $(basename "$image"): passed"
