#!/usr/bin/env python3
"""The inputs that the fuzzer keeps: one file per target, one input per line, in which other bytes than visible ASCII are escapes.

    corpus.py unpack TARGET DIRECTORY   writes each input to a file of its own
    corpus.py pack TARGET DIRECTORY     replaces the target's inputs by those of the directory
"""

import hashlib
import sys
from pathlib import Path

CORPUS = Path(__file__).resolve().parent / "corpus"


def unpack(target, directory):
    for line in (CORPUS / f"{target}.txt").read_text(encoding="ascii").splitlines():
        data = line.encode("ascii").decode("unicode_escape").encode("latin-1")
        (directory / hashlib.sha1(data).hexdigest()).write_bytes(data)


def pack(target, directory):
    inputs = [file.read_bytes().decode("latin-1").encode("unicode_escape").decode("ascii") for file in directory.iterdir()]
    # Sorted, so that a change shows the new inputs alone.
    (CORPUS / f"{target}.txt").write_text("".join(f"{line}\n" for line in sorted(set(inputs))), encoding="ascii")


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in ("unpack", "pack"):
        sys.exit(__doc__)
    {"unpack": unpack, "pack": pack}[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))
