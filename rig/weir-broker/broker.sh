#!/bin/sh
# broker.sh JARS DIRECTORY: runs the broker of DIRECTORY/server.properties, until it ends, or standard input does. The holder of
# the other end may die in any way: the broker ends too, and the directory is removed. What stands in
# DIRECTORY/format are further arguments for the storage tool, one a line.
set -eu
jars=$1
directory=$2
exec 3<&0
java="java -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp $jars/*
  -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info"
set -f
if [ ! -e "$directory/data" ]; then
  set -- format --cluster-id weir-test-cluster-000 --config "$directory/server.properties"
  while read -r argument; do
    set -- "$@" "$argument"
  done <"$directory/format"
  $java kafka.tools.StorageTool "$@" >>"$directory/log" 2>&1 </dev/null
fi
$java kafka.Kafka "$directory/server.properties" >>"$directory/log" 2>&1 </dev/null 3<&- &
broker=$!
echo "$broker" >"$directory/pid.new"
mv "$directory/pid.new" "$directory/pid"
(
  # Nobody writes: this ends with standard input.
  read -r _ <&3 || true
  kill -9 "$broker" 2>/dev/null || true
  rm -rf "$directory"
) &
watch=$!
exec 3<&-
status=0
wait "$broker" 2>/dev/null || status=$?
if [ ! -d "$directory" ]; then
  wait "$watch"
else
  kill "$watch" 2>/dev/null || true
fi
exit "$status"
