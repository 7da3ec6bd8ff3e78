#!/usr/bin/env bash
# Makes the packages for Debian and Red Hat: packages.sh BINARY INTO [LICENCES]. Both have the same tree of files, with the
# date of the commit, so two runs give the same bytes. A program with the client of Apache Kafka becomes the package weir-kafka, which
# replaces weir: the same files under the same names. COMPRESSION=fast makes them larger, in a tenth of the time.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath "${1:?the binary}")
into=$(realpath "${2:?where to}")
licences=${3:-}
case ${COMPRESSION:-small} in
  small) of_deb=6 of_rpm=19 ;;
  fast) of_deb=0 of_rpm=1 ;;
  *) echo "packages.sh: COMPRESSION is small or fast, not $COMPRESSION" >&2; exit 2 ;;
esac
export SOURCE_DATE_EPOCH TZ=UTC LC_ALL=C
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$here" log -1 --format=%ct)}
version=$("$binary" --version | sed -n '1s/^weir //p')
if "$binary" --version | grep '^features .*kafka' >/dev/null; then name=weir-kafka other=weir; else name=weir other=weir-kafka; fi
documents=usr/share/doc/$name
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022

put() { # MODE FILE PLACE
  install -D -m "$1" "$2" "$work/tree/$3"
}
packed() { # FILE PLACE
  gzip -9n <"$1" >"$work/packed"
  put 644 "$work/packed" "$2"
}
# A file of package/ for the current package. Lines that begin with "weir-kafka alone: " are only for weir-kafka.
named() { # FILE
  if [ "$name" = weir-kafka ]; then sed 's/^weir-kafka alone: //' "$here/package/$1"; else sed '/^weir-kafka alone: /d' "$here/package/$1"; fi |
    sed "s/@NAME@/$name/g; s/@OTHER@/$other/g; s/@VERSION@/$version/g"
}

put 755 "$binary" usr/bin/weir
put 644 "$here/package/weir.yaml" etc/weir/weir.yaml
for unit in weir.service weir.socket weir-merge.service; do put 644 "$here/package/$unit" "usr/lib/systemd/system/$unit"; done
put 644 "$here/package/sysctl.conf" usr/lib/sysctl.d/60-weir.conf
put 644 "$here/package/sysusers.conf" usr/lib/sysusers.d/weir.conf
put 644 "$here/package/tmpfiles.conf" usr/lib/tmpfiles.d/weir.conf
put 644 "$here/helm/weir/files/overview.json" usr/share/weir/overview.json
put 644 "$here/helm/weir/files/dashboard.json" usr/share/weir/dashboard.json
put 644 "$here/helm/weir/files/alerts.yaml" usr/share/weir/alerts.yaml
for shell in bash:bash-completion/completions/weir zsh:zsh/vendor-completions/_weir fish:fish/vendor_completions.d/weir.fish; do
  "$binary" completions "${shell%%:*}" >"$work/completions"
  put 644 "$work/completions" "usr/share/${shell#*:}"
done
mkdir "$work/manual"
"$binary" manual "$work/manual"
for page in "$work"/manual/*; do packed "$page" "usr/share/man/man1/$(basename "$page").gz"; done
put 644 "$here/package/copyright" "$documents/copyright"
[ -z "$licences" ] || packed "$licences" "$documents/third-party-licences.txt.gz"
packed "$here/../CHANGELOG.md" "$documents/changelog.gz"

rpm_package() {
  cp -a "$work/tree" "$work/rpm-tree"
  named weir.spec >"$work/weir.spec"
  find "$work/rpm-tree" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
  rpmbuild -bb --quiet --target x86_64-linux --buildroot "$work/buildroot" \
    --define "_topdir $work/rpm" --define "_tree $work/rpm-tree" \
    --define "_rpmdir $work/rpms" --define '_build_id_links none' --define '__os_install_post %nil' \
    --define 'use_source_date_epoch_as_buildtime 1' --define 'clamp_mtime_to_source_date_epoch 1' \
    --define '_buildhost localhost' --define "_binary_payload w$of_rpm.zstdio" "$work/weir.spec"
  cp "$work"/rpms/*/*.rpm "$into/$name-$version.x86_64.rpm"
}

deb_package() {
  local tree=$work/tree
  mkdir "$tree/DEBIAN"
  named lintian-overrides >"$work/overrides"
  put 644 "$work/overrides" "usr/share/lintian/overrides/$name"
  printf '%s (%s-1) unstable; urgency=medium\n\n  * See changelog.gz.\n\n -- The authors of weir <weir@weir.invalid>  %s\n' \
    "$name" "$version" "$(date -Rud "@$SOURCE_DATE_EPOCH")" >"$work/changelog"
  packed "$work/changelog" "$documents/changelog.Debian.gz"
  printf '/etc/weir/weir.yaml\n' >"$tree/DEBIAN/conffiles"
  for script in postinst prerm postrm; do
    named "$script" >"$work/script"
    install -m 755 "$work/script" "$tree/DEBIAN/$script"
  done
  (cd "$tree" && find . -type f ! -path './DEBIAN/*' ! -path './etc/*' -printf '%P\n' | sort | xargs md5sum) >"$work/md5sums"
  install -m 644 "$work/md5sums" "$tree/DEBIAN/md5sums"
  named control | sed "s/@SIZE@/$(du -sk --apparent-size "$tree" | cut -f1)/" >"$tree/DEBIAN/control"
  find "$tree" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
  dpkg-deb --root-owner-group -Zxz "-z$of_deb" --build "$tree" "$into/${name}_$version-1_amd64.deb" >"$work/log" || { cat "$work/log" >&2; exit 1; }
}

if command -v rpmbuild >/dev/null; then rpm_package; else echo "packages.sh: no rpmbuild (Debian's package rpm): no package for Red Hat" >&2; fi
deb_package
