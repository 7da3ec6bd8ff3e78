#!/bin/sh
# Prints the folder with the jars of Apache Kafka that pom.xml names. Maven fetches them into it where there is none: the folder is
# outside the sources, and another pom has another one.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
sum=$(cksum <"$here/pom.xml" | cut -d ' ' -f 1)
cache=${WEIR_TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/weir}
jars=$cache/kafka-$sum
if [ ! -d "$jars" ]; then
  mkdir -p "$cache"
  new=$(mktemp -d "$cache/kafka-new.XXXXXX")
  trap 'rm -rf "$new"' EXIT
  # A registry may be out of reach for a moment.
  for attempt in 1 2 3; do
    if mvn -B -q -ntp -f "$here/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$new/jars" >&2; then
      break
    fi
    [ "$attempt" -lt 3 ] || exit 1
    sleep 5
  done
  # Another process may have been faster.
  mv -T "$new/jars" "$jars" 2>/dev/null || [ -d "$jars" ]
fi
echo "$jars"
