#!/usr/bin/env python3
"""Prints a file from the objects on standard input: configmap.py NAME, the block below `NAME: |`, without its indentation."""

import sys
import textwrap

block = []
for line in sys.stdin:
    if block and line.strip() and not line.startswith("    "):
        break
    if block or line.strip() == f"{sys.argv[1]}: |":
        block.append(line)
print(textwrap.dedent("".join(block[1:])))
