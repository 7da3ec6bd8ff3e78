#!/usr/bin/env bash
# The long forms of the restart tests: HAND_OVERS (20) in a row under load on four transports, as many stops and starts with sockets
# that a service manager keeps, at 200,000 messages a second (four senders, 66 packets of 750 messages a second each), and KILLS (100) at
# random times; clients that send columns (Go and Ruby) through kills and hand-overs; and a fleet over Kafka through 60 faults. Loopback only.
set -euo pipefail
cd "$(dirname "$0")/../.."
export WEIR_TEST_HAND_OVERS=${HAND_OVERS:-20} WEIR_TEST_KILLS=${KILLS:-100}
cargo build --release --locked --bin weir --bin weir-bench
rig/scripts/soak-hand-overs.py --hand-overs "$WEIR_TEST_HAND_OVERS"
rig/scripts/soak-columns.py --hand-overs "$WEIR_TEST_HAND_OVERS"
rig/scripts/soak-columns.py --hand-overs "$WEIR_TEST_HAND_OVERS" --own-timestamps
tests=(cargo nextest run --locked --workspace --features weir/kafka --run-ignored all --test-threads 1 --success-output final)
"${tests[@]}" -E 'test(/^(hand_over|kills|columns_once)::/)'
WEIR_TEST_RESTARTS=$WEIR_TEST_HAND_OVERS WEIR_TEST_MESSAGES=750 \
  "${tests[@]}" -E 'test(/^kept_sockets::a_restart_loses_nothing/)'
cargo build --locked --workspace --features weir/kafka --bin weir --bin weir-broker
rig/scripts/soak-fleet.py
