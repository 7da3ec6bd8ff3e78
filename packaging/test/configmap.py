#!/usr/bin/env python3
"""Prints weir.yaml from the objects on standard input: the block below `weir.yaml: |`, without what it is indented by."""

import sys
import textwrap

block = []
for line in sys.stdin:
    if block and line.strip() and not line.startswith("    "):
        break
    if block or line.strip() == "weir.yaml: |":
        block.append(line)
print(textwrap.dedent("".join(block[1:])))
