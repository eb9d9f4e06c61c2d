"""Damage to the bytes of a file, as an accident or an attacker would do it."""

from __future__ import annotations

import random
import struct
from pathlib import Path

__all__ = ["EXTREME", "damaged"]

#: Numbers at which sums, shifts and products of 32 and 64 bits turn over.
EXTREME = [0, 1, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**61, 2**62 - 1, 2**62, 2**63 - 1, 2**64 - 1]


def _with_checksums(data: bytearray) -> None:
    """Let every header of a tar have the checksum of what it says, as an attacker would."""
    for at in range(0, len(data) - 511, 512):
        if data[at + 257 : at + 262] == b"ustar":
            data[at + 148 : at + 156] = b" " * 8
            data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])


def damaged(rng: random.Random, whole: bytes, path: Path) -> bytes:
    data = bytearray(whole)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data))
        if path.suffix == ".json" and (places := [i for i, b in enumerate(data) if 48 <= b <= 57]):
            at = rng.choice(places)
            data[at : at + 1] = str(rng.choice(EXTREME)).encode()
            continue
        kind = rng.choice(["bit", "number", "digits", "cut", "copy"])
        if kind == "bit":
            data[at] ^= 1 << rng.randrange(8)
        elif kind == "number":
            data[at : at + 8] = struct.pack(rng.choice("<>") + "Q", rng.choice(EXTREME))
        elif kind == "digits":
            data[at : at + 11] = b"%011o" % rng.randrange(8**11)
        elif kind == "copy":
            source = rng.randrange(len(data))
            data[at : at + 16] = data[source : source + 16]
        elif rng.random() < 0.3:
            del data[at:]
        if not data:
            break
    if path.suffix == ".tar" and rng.random() < 0.7:
        _with_checksums(data)
    return bytes(data)
