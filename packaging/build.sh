#!/usr/bin/env bash
# Builds the released programs into a directory: weir, weir-kafka and weir-bench, static and stripped, with separate symbols.
# Two builds of one commit give the same bytes in any directory: names replace the paths of this machine.
set -euo pipefail
cd "$(dirname "$0")/.."
into=${1:?where to}
target=x86_64-unknown-linux-gnu
root=$PWD
cargo_home=${CARGO_HOME:-$HOME/.cargo}
build=${CARGO_TARGET_DIR:-$root/target}/dist-build

# C code that writes a date writes this one. With the commit's date, each commit would compile all C code again.
export WEIR_COMMIT SOURCE_DATE_EPOCH=0 TZ=UTC LC_ALL=C
WEIR_COMMIT=$(git rev-parse HEAD)
# The build differs from the commit, so the name must not claim the commit.
[ -z "$(git status --porcelain)" ] || WEIR_COMMIT+="-changed"

# The C library is linked in, so the binary runs on every Linux and in an empty image. musl would work too,
# but its memory functions are slower; the allocator is ours either way. Relocations are packed: at 24 bytes each they would take 0.7 MB.
names="--remap-path-prefix=$root=/weir --remap-path-prefix=$build=/build --remap-path-prefix=$cargo_home=/cargo"
links="-C link-arg=-Wl,--build-id=sha1 -C link-arg=-Wl,-z,pack-relative-relocs"
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-C target-feature=+crt-static $names $links"

# A wrapper compiles C: OpenSSL writes its compiler flags into the library, and they would contain directories.
mkdir -p "$build/compiler" "$into"
compiler=$(command -v cc)
for name in cc gcc; do
  printf '#!/bin/sh\nexec "%s" "$@" "-ffile-prefix-map=%s=/weir" "-ffile-prefix-map=%s=/build" "-ffile-prefix-map=%s=/cargo"\n' \
    "$compiler" "$root" "$build" "$cargo_home" >"$build/compiler/$name"
  chmod 755 "$build/compiler/$name"
done
export PATH=$build/compiler:$PATH
# The default is a directory of the build, in which OpenSSL would look for modules.
export GNUMAKEFLAGS="ENGINESDIR=/nonexistent MODULESDIR=/nonexistent"

# Only these two packages: packages that are built together share their features, and others enable features for tests.
compile() { # ARGUMENTS...
  cargo build --profile dist --locked --target "$target" --target-dir "$build" --package weir --package weir-bench "$@"
}
give() { # NAME PROGRAM
  local name=$1 built=$build/$target/dist/$2 build_id symbols
  # Debuggers and profilers find the file with symbols by the build id, in a tree of this form. It is the whole program, because
  # profilers need its segments to resolve addresses.
  build_id=$(readelf -n "$built" | sed -n 's/^ *Build ID: //p')
  symbols=$into/symbols/.build-id/${build_id:0:2}
  mkdir -p "$symbols"
  objcopy --compress-debug-sections=zlib "$built" "$symbols/${build_id:2}.debug"
  objcopy --strip-all --remove-section=.comment "$built" "$into/$name"
}
compile --bin weir --bin weir-bench
give weir weir
give weir-bench weir-bench
# The client of Apache Kafka, with OpenSSL, is more than a third of the program, and most agents do not need it.
compile --bin weir --features weir/kafka
give weir-kafka weir
