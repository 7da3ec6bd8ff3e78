#!/usr/bin/env bash
# Builds what is given away, into the directory named: weir and weir-bench, static and stripped, and their symbols apart.
# Two builds of one commit give the same bytes, whatever the directory: paths of this machine are replaced by names.
set -euo pipefail
cd "$(dirname "$0")/.."
into=${1:?where to}
target=x86_64-unknown-linux-gnu
root=$PWD
cargo_home=${CARGO_HOME:-$HOME/.cargo}
build=${CARGO_TARGET_DIR:-$root/target}/dist-build

export WEIR_COMMIT SOURCE_DATE_EPOCH TZ=UTC LC_ALL=C
WEIR_COMMIT=$(git rev-parse HEAD)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
# What is built is not what the commit says: the name must not claim it.
[ -z "$(git status --porcelain)" ] || WEIR_COMMIT+="-changed"

# The C library is linked in, so that the binary runs on every Linux and in an empty image. musl would do, where rustup has it,
# but its memory functions are slower; the allocator is ours either way.
names="--remap-path-prefix=$root=/weir --remap-path-prefix=$cargo_home=/cargo"
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-C target-feature=+crt-static $names -C link-arg=-Wl,--build-id=sha1"
export CFLAGS_x86_64_unknown_linux_gnu="-ffile-prefix-map=$root=/weir -ffile-prefix-map=$cargo_home=/cargo"
cargo build --profile dist --locked --target "$target" --target-dir "$build" --bin weir --bin weir-bench

mkdir -p "$into"
for program in weir weir-bench; do
  built=$build/$target/dist/$program
  objcopy --only-keep-debug --compress-debug-sections=zlib "$built" "$into/$program.debug"
  # The name of the file with symbols is found by debuggers beside the binary, or by build id.
  objcopy --strip-all --remove-section=.comment "$built" "$into/$program"
  (cd "$into" && objcopy --add-gnu-debuglink="$program.debug" "$program")
done
