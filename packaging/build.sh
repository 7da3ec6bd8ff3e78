#!/usr/bin/env bash
# Builds what is given away, into the directory named: weir, weir-kafka and weir-bench, static and stripped, and their symbols apart.
# Two builds of one commit give the same bytes, whatever the directory: paths of this machine are replaced by names.
set -euo pipefail
cd "$(dirname "$0")/.."
into=${1:?where to}
target=x86_64-unknown-linux-gnu
root=$PWD
cargo_home=${CARGO_HOME:-$HOME/.cargo}
build=${CARGO_TARGET_DIR:-$root/target}/dist-build

# C code that writes a date writes this one. That of the commit would have all of it compiled again for each.
export WEIR_COMMIT SOURCE_DATE_EPOCH=0 TZ=UTC LC_ALL=C
WEIR_COMMIT=$(git rev-parse HEAD)
# The build differs from the commit, so the name must not claim the commit.
[ -z "$(git status --porcelain)" ] || WEIR_COMMIT+="-changed"

# The C library is linked in, so that the binary runs on every Linux and in an empty image. musl would do, where rustup has it,
# but its memory functions are slower; the allocator is ours either way. Relocations are packed: 24 bytes for each would be 0.7 MB.
names="--remap-path-prefix=$root=/weir --remap-path-prefix=$build=/build --remap-path-prefix=$cargo_home=/cargo"
links="-C link-arg=-Wl,--build-id=sha1 -C link-arg=-Wl,-z,pack-relative-relocs"
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-C target-feature=+crt-static $names $links"

# C is compiled by this: OpenSSL writes its compiler flags into the library, and those would name directories.
mkdir -p "$build/compiler" "$into"
compiler=$(command -v cc)
for name in cc gcc; do
  printf '#!/bin/sh\nexec "%s" "$@" "-ffile-prefix-map=%s=/weir" "-ffile-prefix-map=%s=/build" "-ffile-prefix-map=%s=/cargo"\n' \
    "$compiler" "$root" "$build" "$cargo_home" >"$build/compiler/$name"
  chmod 755 "$build/compiler/$name"
done
export PATH=$build/compiler:$PATH
# OpenSSL looks for modules there, and would in the directory that it was built in.
export GNUMAKEFLAGS="ENGINESDIR=/nonexistent MODULESDIR=/nonexistent"

# Of these two packages alone: what is built together has the features that any of it asks for, and others ask for some of tests.
compile() { # ARGUMENTS...
  cargo build --profile dist --locked --target "$target" --target-dir "$build" --package weir --package weir-bench "$@"
}
give() { # NAME PROGRAM
  local name=$1 built=$build/$target/dist/$2 build_id symbols
  # Debuggers and profilers find the file with symbols by the build id, in a tree of this form. It is the whole program, because
  # profilers place addresses by what its segments hold.
  build_id=$(readelf -n "$built" | sed -n 's/^ *Build ID: //p')
  symbols=$into/symbols/.build-id/${build_id:0:2}
  mkdir -p "$symbols"
  objcopy --compress-debug-sections=zlib "$built" "$symbols/${build_id:2}.debug"
  objcopy --strip-all --remove-section=.comment "$built" "$into/$name"
}
compile --bin weir --bin weir-bench
give weir weir
give weir-bench weir-bench
# The client of Apache Kafka, with OpenSSL, is more than a third of it, and most agents need none.
compile --bin weir --features weir/kafka
give weir-kafka weir
