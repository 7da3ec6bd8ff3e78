#!/usr/bin/env bash
# The released binaries: small, stripped, static, run in an empty root, and resolve names there.
set -euo pipefail
# (`grep -q` ends at the first match, and a process that still writes then fails the pipe.)
here=$(cd "$(dirname "$0")" && pwd)
dist=$(realpath "${1:-dist}")
fail() { echo "binary.sh: $*" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar -C "$work" -xzf "$dist"/weir-*-symbols.tar.gz
nm "$(gcc -print-file-name=libc.a)" 2>/dev/null | awk '$2 ~ /[TWi]/ { print $3 }' | sort -u >"$work/has"
(cd "$here/../tools" && go build -o "$work/pprof" github.com/google/pprof)

# The symbols are found by the build id.
symbols_of() { # PROGRAM
  local build_id
  build_id=$(readelf -n "$dist/$1" | sed -n 's/^ *Build ID: //p')
  echo "$work/symbols/.build-id/${build_id:0:2}/${build_id:2}.debug"
}
program() { # NAME BYTES_MAX
  local name=$1 file=$dist/$1 size symbols
  size=$(stat -c %s "$file")
  [ "$size" -lt "$2" ] || fail "$name has $size bytes, and fewer than $2 are allowed"
  if readelf -d "$file" | grep NEEDED >/dev/null; then fail "$name needs libraries: $(readelf -d "$file" | grep NEEDED)"; fi
  if readelf -lW "$file" | grep INTERP >/dev/null; then fail "$name needs a loader"; fi
  if readelf -SW "$file" | grep -E ' \.(symtab|debug_info) ' >/dev/null; then fail "$name has symbols"; fi
  readelf -hW "$file" | grep 'DYN ' >/dev/null || fail "$name is not independent of its address"
  if LC_ALL=C grep -aEq '/(root|home|work)/[^ ]*(\.cargo|weir)/' "$file"; then fail "$name names directories of the machine that built it"; fi
  symbols=$(symbols_of "$name")
  [ -e "$symbols" ] || fail "there are no symbols of $name"
  readelf -SW "$symbols" | grep debug_line >/dev/null || fail "the symbols of $name have no lines"
  echo "$name: $size bytes"
}
agent() { # NAME FEATURES
  local name=$1 root=$work/tree left
  "$dist/$name" --version --json >"$work/about" || fail "$name --version --json"
  jq -e '.is_static and .is_optimised and .has_page and (.commit | length >= 40)' "$work/about" >/dev/null || fail "$name: $(cat "$work/about")"
  [ "$(jq -r '.features | join(",")' "$work/about")" = "$2" ] || fail "the features of $name: $(jq -c .features "$work/about")"
  for what in "components[].name" "dependencies[].ref"; do
    if jq -r ".$what" "$dist/$name"-[0-9]*.cdx.json | grep rdkafka >/dev/null; then found=kafka; else found=; fi
    [ "$found" = "$2" ] || fail "the bill of $name: ${found:-no kafka} in $what"
  done

  # A call of a weak symbol of the C library that the linker did not include goes to address 0. The standard library checks first, and works without
  # these; weir-bench calls none of the others. OpenSSL checks for getentropy, and uses the system call without it.
  nm "$(symbols_of "$name")" | sed -n 's/^ *w //p' |
    grep -vx '__cxa_finalize\|__cxa_thread_atexit_impl\|posix_spawn_file_actions_addchdir_np\|getentropy' | sort >"$work/weak"
  left=$(comm -12 "$work/weak" "$work/has")
  [ -z "$left" ] || fail "$name refers weakly to what the C library has, and the linker left it out:" $left

  unshare --user --map-root-user --net "$here/profile.sh" "$dist/$name" "$work" >"$work/told" 2>&1 || { cat "$work/told"; fail "the profiles of $name"; }

  # A static C library must not load modules of the machine: it resolves names with /etc/hosts and DNS, and ignores nsswitch.conf.
  rm -rf "$root"
  mkdir -p "$root/etc" "$root/lib"
  cp "$dist/$name" "$root/weir"
  printf '127.0.0.1 backend.example\n' >"$root/etc/hosts"
  printf 'hosts: mymachines resolve [!UNAVAIL=return] myhostname\n' >"$root/etc/nsswitch.conf"
  unshare --user --map-root-user --root="$root" /weir check --udp backend.example:8125 | grep '127.0.0.1\|backend.example' >/dev/null || fail "a name in /etc/hosts is not found"
  python3 "$here/resolver.py" "$root" || fail "a name in DNS is not found"
}
program weir 15000000
# OpenSSL and librdkafka are more than a third of it.
program weir-kafka 25000000
program weir-bench 15000000
agent weir ''
agent weir-kafka kafka
echo "binary.sh: passed"
