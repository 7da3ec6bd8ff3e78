#!/usr/bin/env bash
# Receivers that no distribution packages yet, built from their sources through the Go module proxy: an OpenTelemetry collector with
# its OTLP receiver, and Prometheus 3 for remote write 2.0, its OTLP receiver and native histograms. Not part of `make test`: the first build takes
# several minutes and gigabytes. Arguments name the tests to run.
set -euo pipefail
cd "$(dirname "$0")/.."
tests=("$@")
[ "${#tests[@]}" -gt 0 ] || tests=(a_real_collector a_real_prometheus a_series_that_a_real_prometheus_refuses version_2_to_a_real_prometheus
  after_an_outage_of_a_current_prometheus a_current_prometheus_has_native_histograms_when_it_asks_for_them)
for test in "${tests[@]}"; do
  case $test in
    version_2_* | after_an_outage_*) target=remote_write ;;
    a_current_prometheus_*) target=prometheus ;;
    *) target=otlp ;;
  esac
  start=$SECONDS
  cargo test --locked -p weir --test "$target" -- --ignored --exact "$test"
  echo "$test: $((SECONDS - start)) s, building included"
done
