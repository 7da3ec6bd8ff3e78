#!/usr/bin/env bash
# The load generator's maximum rate on this machine, beside a simple C sender, and the floor beside a simple C receiver: RUNS (5)
# runs each, about two and a half minutes. Sender on CPU 0, receiver on CPU 1.
source "$(dirname "$0")/common.sh"
runs=${RUNS:-5}
seconds=${SECONDS_EACH:-2}
cc -O3 -march=native -o "$work/floor-c" rig/experiments/floor-c/floor.c
page=$pages/generator.md

# sorted VALUES: least to most, one line, with the median.
sorted() { sort -g | awk '{ v[NR] = $1; s = s (NR > 1 ? ", " : "") $1 } END { print s " | " v[int((NR + 1) / 2)] }'; }

# c_sends TRANSPORT PACKETS BYTES: the rate of the plain C sender with packets built in advance, to a receiver that counts like that of `calibrate`.
c_sends() {
  local where=$work/socket p
  [ "$1" = udp ] && where=18127
  rm -f "$work/socket"
  taskset -c 1 "$work/floor-c" null "$1" "$where" >"$work/out" &
  p=$!
  until grep -q listening "$work/out"; do sleep 0.01; done
  taskset -c 0 "$work/floor-c" send "$1" "$where" "$2" "$3"
  wait "$p"
  tail -1 "$work/out"
}

# in_turn PROFILE FIELD SCALE TRANSPORT PACKETS BYTES: per run our rate, the plain C sender's, their ratio, our sender's share of its core and of
# the time it was blocked.
in_turn() {
  local ours theirs
  for _ in $(seq "$runs"); do
    ours=$("$bench" load calibrate "$1" --cpu 0,1 --duration "${seconds}s" --no-store 2>/dev/null)
    theirs=$(c_sends "$4" "$5" "$6")
    jq -nr --argjson ours "$ours" --argjson theirs "$theirs" "
      def two: . * 100 | round / 100;
      [(\$ours.$2 / $3 | two), (\$theirs.$2 / $3 | two), (\$ours.$2 / \$theirs.$2 | two), (\$ours.cpu_share * 100 | round), (\$ours.blocked_share * 100 | round)] | @tsv"
  done
}

# all_out PROFILE WHAT FIELD SCALE TRANSPORT PACKETS BYTES: rows of the table.
all_out() {
  in_turn "$1" "$3" "$4" "$5" "$6" "$7" >"$work/rows"
  echo "| $2 | $(cut -f1 "$work/rows" | sorted) |"
  echo "| ... a plain C sender of packets built in advance | $(cut -f2 "$work/rows" | sorted) |"
  echo "| ... ratio of the two, run by run | $(cut -f3 "$work/rows" | sorted) |"
  echo "| ... share of our sender's core, % | $(cut -f4 "$work/rows" | sorted) |"
  echo "| ... share of the time it was blocked by the receiver, % | $(cut -f5 "$work/rows" | sorted) |"
}

# paced PROFILE ADDRESS-KIND: share of the sender's core at 200,000 messages/s.
paced() {
  local address
  for _ in $(seq "$runs"); do
    rm -f "$work/socket" "$work/out"
    [ "$2" = udp ] && address=udp://127.0.0.1:0 || address=unixgram://$work/socket
    "$bench" floor --listen "$address" --cpu 1 --until-idle 500ms >"$work/out" &
    local p=$!
    until grep -q listening "$work/out" 2>/dev/null; do sleep 0.01; done
    address=$(sed -n 's/.*"listening":"\([^"]*\)".*/\1/p' "$work/out" | head -1)
    "$bench" load run "$1" --rate '200k msg/s' --to "$address" --duration "${seconds}s" --cpu 0 2>/dev/null |
      jq -r '(.cpu_user_s + .cpu_system_s) / .elapsed_s * 1000 | round / 10'
    wait "$p" || true
  done
}

{
  header "Is the load generator fast enough?" "rig/scripts/record/generator.sh"
  echo "## All-out (\`weir-bench load calibrate PROFILE --cpu 0,1\`), $runs runs of $seconds s"
  echo
  echo "| what | least to most | median |"
  echo "| --- | --- | --- |"
  all_out budget-1k "\`budget-1k\`, Unix datagrams of 8 KiB: GB/s" bytes_per_s 1000000000 unixgram 500000 8192
  all_out small-packets "\`small-packets\`, UDP: million packets/s" packets_per_s 1000000 udp 1000000 100
  echo
  echo "## Share of the sender's core at 200,000 messages/s, %"
  echo
  echo "| what | least to most | median |"
  echo "| --- | --- | --- |"
  echo "| \`small-packets\`, one message per UDP datagram | $(paced small-packets udp | sorted) |"
  echo "| \`budget-paced\`, one message per Unix datagram | $(paced budget-paced unixgram | sorted) |"
  echo "| \`budget-1k\`, Unix datagrams of 8 KiB | $(paced budget-1k unixgram | sorted) |"
  echo
  echo "## The floor against plain C (\`rig/scripts/compare-floor-c.sh\`)"
  echo
  echo '```'
  WEIR_BENCH=$bench RUNS=$runs rig/scripts/compare-floor-c.sh
  echo '```'
} >"$page"
echo "written: $page"
