#!/usr/bin/env bash
set -euo pipefail
echo "fuzz: nothing here yet" >&2
exit 1
