#!/usr/bin/env bash
set -euo pipefail
echo "soak: nothing here yet" >&2
exit 1
