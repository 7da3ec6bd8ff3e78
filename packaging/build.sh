#!/usr/bin/env bash
# Builds what is given away, into the directory named: weir and weir-bench, static and stripped, and their symbols apart.
# Two builds of one commit give the same bytes, whatever the directory: paths of this machine are replaced by names.
set -euo pipefail
# Features of the agent in what is given away, as cargo takes them: weir/NAME. Others read them from the binary, which tells its own.
features=()
cd "$(dirname "$0")/.."
into=${1:?where to}
target=x86_64-unknown-linux-gnu
root=$PWD
cargo_home=${CARGO_HOME:-$HOME/.cargo}
build=${CARGO_TARGET_DIR:-$root/target}/dist-build

# C code that writes a date writes this one. That of the commit would have all of it compiled again for each.
export WEIR_COMMIT SOURCE_DATE_EPOCH=0 TZ=UTC LC_ALL=C
WEIR_COMMIT=$(git rev-parse HEAD)
# What is built is not what the commit says: the name must not claim it.
[ -z "$(git status --porcelain)" ] || WEIR_COMMIT+="-changed"

# The C library is linked in, so that the binary runs on every Linux and in an empty image. musl would do, where rustup has it,
# but its memory functions are slower; the allocator is ours either way. Relocations are packed: 24 bytes for each would be 0.7 MB.
names="--remap-path-prefix=$root=/weir --remap-path-prefix=$cargo_home=/cargo"
links="-C link-arg=-Wl,--build-id=sha1 -C link-arg=-Wl,-z,pack-relative-relocs"
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-C target-feature=+crt-static $names $links"
export CFLAGS_x86_64_unknown_linux_gnu="-ffile-prefix-map=$root=/weir -ffile-prefix-map=$cargo_home=/cargo"
cargo build --profile dist --locked --target "$target" --target-dir "$build" --bin weir --bin weir-bench "${features[@]/#/--features=}"

mkdir -p "$into"
for program in weir weir-bench; do
  built=$build/$target/dist/$program
  # Debuggers and profilers find the file with symbols by the build id, in a tree of this form. It is the whole program, because
  # profilers place addresses by what its segments hold.
  build_id=$(readelf -n "$built" | sed -n 's/^ *Build ID: //p')
  symbols=$into/symbols/.build-id/${build_id:0:2}
  mkdir -p "$symbols"
  objcopy --compress-debug-sections=zlib "$built" "$symbols/${build_id:2}.debug"
  objcopy --strip-all --remove-section=.comment "$built" "$into/$program"
done
