#!/usr/bin/env bash
# The binary that is given away: small, stripped, static, runs in an empty root, and finds names there.
set -euo pipefail
# (`grep -q` ends at the first match, and a process that still writes to it fails the pipe.)
dist=$(realpath "${1:-dist}")
fail() { echo "binary.sh: $*" >&2; exit 1; }
bytes_max=$((15 * 1024 * 1024))
for program in weir weir-bench; do
  file=$dist/$program
  size=$(stat -c %s "$file")
  [ "$size" -lt "$bytes_max" ] || fail "$program has $size bytes, and at most $bytes_max are allowed"
  if readelf -d "$file" | grep NEEDED >/dev/null; then fail "$program needs libraries: $(readelf -d "$file" | grep NEEDED)"; fi
  if readelf -lW "$file" | grep INTERP >/dev/null; then fail "$program needs a loader"; fi
  if readelf -SW "$file" | grep -E ' \.(symtab|debug_info) ' >/dev/null; then fail "$program has symbols"; fi
  readelf -hW "$file" | grep 'DYN ' >/dev/null || fail "$program is not independent of its address"
  if LC_ALL=C grep -aEq '/(root|home|work)/[^ ]*(\.cargo|weir)/' "$file"; then fail "$program names directories of the machine that built it"; fi
  echo "$program: $size bytes"
done
"$dist/weir" --version --json | jq -e '.is_static and .is_optimised and .has_page and (.commit | length >= 40)' >/dev/null || fail "--version --json"

features=$(sed -n 's/^features=(\(.*\))$/\1/p' "$(dirname "$0")/../build.sh" | tr ' ' '\n' | sed 's#^weir/##' | sort)
[ "$("$dist/weir" --version --json | jq -r '.features[]')" = "$features" ] || fail "the agent has other features than build.sh lists"

# The symbols fit the binary, by build id.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar -C "$work" -xzf "$dist"/weir-*-symbols.tar.gz
for program in weir weir-bench; do
  build_id=$(readelf -n "$dist/$program" | sed -n 's/^ *Build ID: //p')
  symbols=$work/symbols/.build-id/${build_id:0:2}/${build_id:2}.debug
  [ -e "$symbols" ] || fail "there are no symbols of $program"
  readelf -SW "$symbols" | grep debug_line >/dev/null || fail "the symbols of $program have no lines"
done

# Who calls what the C library has and the linker did not take calls address 0. The standard library asks first, and does without
# these; weir-bench calls none of the others.
nm "$(gcc -print-file-name=libc.a)" 2>/dev/null | awk '$2 ~ /[TWi]/ { print $3 }' | sort -u >"$work/has"
build_id=$(readelf -n "$dist/weir" | sed -n 's/^ *Build ID: //p')
nm "$work/symbols/.build-id/${build_id:0:2}/${build_id:2}.debug" | sed -n 's/^ *w //p' |
  grep -vx '__cxa_finalize\|__cxa_thread_atexit_impl\|posix_spawn_file_actions_addchdir_np' | sort >"$work/weak"
left=$(comm -12 "$work/weak" "$work/has")
[ -z "$left" ] || fail "weir refers weakly to what the C library has, and the linker left it out:" $left

(cd "$(dirname "$0")/../tools" && go build -o "$work/pprof" github.com/google/pprof)
unshare --user --map-root-user --net "$(dirname "$0")/profile.sh" "$dist/weir" "$work" >"$work/told" 2>&1 || { cat "$work/told"; fail "the profiles"; }

# A static C library must not load modules of the machine: names come from /etc/hosts and DNS whatever nsswitch.conf says.
root=$work/root
mkdir -p "$root/etc" "$root/lib"
cp "$dist/weir" "$root/weir"
printf '127.0.0.1 backend.example\n' >"$root/etc/hosts"
printf 'hosts: mymachines resolve [!UNAVAIL=return] myhostname\n' >"$root/etc/nsswitch.conf"
unshare --user --map-root-user --root="$root" /weir check --udp backend.example:8125 | grep '127.0.0.1\|backend.example' >/dev/null || fail "a name in /etc/hosts is not found"
python3 "$(dirname "$0")/resolver.py" "$root" || fail "a name that DNS knows is not found"
echo "binary.sh: passed"
