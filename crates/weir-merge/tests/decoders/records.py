#!/usr/bin/env python3
"""Prints records and results of a fleet: lines "record HEX" or "result HEX" from the standard input.

Written from docs/fleet-records.md alone, so that the page is tested.
"""

import struct
import subprocess
import sys
import zlib
from decimal import Decimal
from fractions import Fraction

KINDS = ["counter", "gauge", "set", "histogram", "timing", "distribution"]


class Bytes:
    def __init__(self, bytes):
        self.bytes, self.at = bytes, 0

    def raw(self, count):
        assert self.at + count <= len(self.bytes), "it ends too early"
        self.at += count
        return self.bytes[self.at - count : self.at]

    def byte(self):
        return self.raw(1)[0]

    def number(self):
        number = shift = 0
        while True:
            byte = self.byte()
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    def signed(self):
        number = self.number()
        return -(number + 1) // 2 if number % 2 else number // 2

    def float(self):
        return struct.unpack("<d", self.raw(8))[0]

    def block(self):
        return self.raw(self.number())

    def text(self):
        return self.block().decode("utf-8")

    def rest(self):
        return self.raw(len(self.bytes) - self.at)


def quoted(text):
    return f'"{text}"'


def plain(value):
    """A float in its shortest digits, without an exponent: 3 and not 3.0."""
    return format(Decimal(repr(float(value))), "f").removesuffix(".0")


def sum_of(of):
    first = of.byte()
    special = [name for bit, name in ((1, "inf"), (2, "-inf"), (4, "nan")) if first & bit]
    if special:
        return "+".join(special)
    if not first & 16:
        return "0"
    exponent = of.signed()
    magnitude = int.from_bytes(of.block(), "little")
    value = Fraction(magnitude) * Fraction(2) ** exponent
    return plain(float(-value if first & 8 else value))


def bins(of):
    found, key = [], 0
    for _ in range(of.number()):
        key += of.signed()
        found.append((key, of.number()))
    extremes = (of.float(), of.float()) if found else None
    shown = " ".join(f"{key}:{count}" for key, count in found)
    return f"bins [{shown}]" + (f" from {plain(extremes[0])} to {plain(extremes[1])}" if extremes else "")


def gauge(of):
    value, received = of.float(), of.signed()
    agent = of.raw(16).hex() if of.byte() else "own"
    return f"{plain(value)} received {received} by {agent} from {plain(of.float())} to {plain(of.float())}"


def members(of):
    form = of.byte()
    if form == 0:
        return "members " + ", ".join(quoted(of.text()) for _ in range(of.number()))
    registers = of.raw(1 << (14 if form == 1 else of.byte()))
    return f"{len(registers)} registers with the sum {sum(registers)}"


def samples(of):
    if of.byte() == 1:
        return f"{bins(of)} sum {sum_of(of)} weight {sum_of(of)} whole {sum_of(of)}"
    shown = []
    for _ in range(of.number()):
        form, value = of.byte(), of.float()
        weight = of.float() if form & 1 else 1
        times = of.number() if form & 2 else 1
        shown.append(f"{plain(value)}*{plain(weight)}*{times}")
    return "samples " + " ".join(shown)


def distribution(of):
    return f"{bins(of)} sum {sum_of(of)} rest {sum_of(of)}"


STATES = [sum_of, gauge, members, samples, samples, distribution]


def series(of, texts):
    kind, name, form = of.byte(), texts[of.number()], of.byte()
    host = quoted(texts[of.number()]) if form & 1 else "own"
    integration = f" integration {quoted(texts[of.number()])}" if form & 2 else ""
    tags = ", ".join(texts[of.number()] for _ in range(of.number()))
    seen = of.signed()
    suffixes = f" suffixes {of.number()}" if form & 4 else ""
    state = STATES[kind](of)
    return f"{KINDS[kind]} {name} [{tags}] host {host}{integration} seen {seen}{suffixes}: {state}"


def record(bytes):
    of = Bytes(bytes)
    version, flags = of.byte(), of.byte()
    assert version in (1, 2), "another version"
    checksum = int.from_bytes(of.raw(4), "little")
    assert checksum == zlib.crc32(bytes[:2] + bytes[6:]), "the checksum"
    words = [f"version {version}", f"tenant {quoted(of.text())}"]
    if version == 2:
        words.append(f"host {quoted(of.text())}")
    words += [f"agent {of.raw(16).hex()}", f"epoch {of.number()}", f"bucket {of.signed()} + {of.number()}"]
    words += [f"sequence {of.number()}", f"part {of.number()} of {of.number()}"]
    if flags & 2:
        words.append("open")
    if flags & 4:
        words.append(f"states before {of.number()}")
        words.append(f"partitions {of.number()}")
        words.append(f"last {of.byte()}")
    length, body = of.number(), of.rest()
    if flags & 1:
        body = subprocess.run(["zstd", "-dcq"], input=body, stdout=subprocess.PIPE, check=True).stdout
    assert len(body) == length, "the length"
    of = Bytes(body)
    texts = [of.text() for _ in range(of.number())]
    lines = [", ".join(words)] + [series(of, texts) for _ in range(of.number())]
    assert not of.rest(), "something follows"
    return lines


def result(bytes):
    of = Bytes(bytes)
    assert of.byte() == 1, "another version"
    words = [f"tenant {quoted(of.text())}", f"bucket {of.signed()} + {of.number()}"]
    if of.byte():
        words.append(f"late through {of.number()}")
    else:
        words.append(f"closed, expected {of.number()}, seen {of.number()}")
    words += [f"states {of.number()}", f"part {of.number()} of {of.number()}"]
    inner = of.block()
    assert not of.rest(), "something follows"
    return [", ".join(words)] + record(inner)


for line in sys.stdin:
    what, digits = line.split()
    print("\n".join((record if what == "record" else result)(bytes.fromhex(digits))))
