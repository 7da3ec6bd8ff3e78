#!/usr/bin/env python3
"""Prints weir.yaml, or the file that is named, from the objects on standard input: the block below `weir.yaml: |`, without what it is indented by."""

import sys
import textwrap

name = sys.argv[1] if len(sys.argv) > 1 else "weir.yaml"
block = []
for line in sys.stdin:
    if block and line.strip() and not line.startswith("    "):
        break
    if block or line.strip() == f"{name}: |":
        block.append(line)
print(textwrap.dedent("".join(block[1:])))
