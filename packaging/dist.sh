#!/usr/bin/env bash
# Makes all release files in dist/: binaries, their symbols, packages, image, chart, bill of materials, licences,
# checksums. `make dist` builds the page first.
set -euo pipefail
cd "$(dirname "$0")/.."
into=$PWD/dist
export SOURCE_DATE_EPOCH TZ=UTC LC_ALL=C
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
rm -rf "$into"
mkdir -p "$into"

packaging/build.sh "$into"
for program in weir weir-kafka weir-bench; do
  "$into/$program" --version >/dev/null || { echo "dist.sh: $program was built and does not run" >&2; exit 1; }
  packaging/bill.py "$into/$program" "$into"
done
for agent in weir weir-kafka; do
  licences=$into/$agent-third-party-licences.txt
  packaging/packages.sh "$into/$agent" "$into" "$licences"
  packaging/image.py "$into/$agent" "$into" "$licences" >/dev/null
done

# One date and one owner for each file, in one order.
archive() { # FOLDER NAME, the folder in the archive has the name's
  tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=ustar \
    -C "$(dirname "$1")" -c "$(basename "$1")" | gzip -9n >"$into/$2"
}
version=$(sed -n 's/^version: //p' packaging/helm/weir/Chart.yaml)
archive packaging/helm/weir "weir-chart-$version.tgz"
cp packaging/helm/weir/files/{overview.json,dashboard.json,alerts.yaml} "$into"
archive "$into/symbols" "weir-$version-symbols.tar.gz"
rm -r "$into/symbols"

(cd "$into" && sha256sum -- * >SHA256SUMS)
ls -l "$into"
