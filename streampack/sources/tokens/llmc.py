"""The header of token files that llm.c writes, as modded-nanogpt does.

256 little-endian int32: a magic number, a version, how many ids follow; the rest is 0. The magic
number says how many bytes an id takes. See ``write_datafile`` of https://github.com/karpathy/llm.c
"""

from __future__ import annotations

import numpy as np

from streampack.reading.integer_arrays import integer_kind
from streampack.reading.records import DamagedFileError

HEADER_BYTES = 1024
_DTYPES = {20240520: "uint16", 20240801: "uint32"}  # by the magic number


def is_llmc(head: bytes) -> bool:
    """True if a file begins as one of them does."""
    return int.from_bytes(head[:4], "little") in _DTYPES and not any(head[12:HEADER_BYTES])


def llmc_kind(head: bytes, num_bytes: int) -> int:
    """The kind of the ids after the header; `DamagedFileError` where they are not as it says."""
    if num_bytes < HEADER_BYTES:
        raise DamagedFileError(f"it has {num_bytes} bytes, and its header {HEADER_BYTES}")
    magic, _, count = np.frombuffer(head[:12], "<i4").tolist()
    dtype = _DTYPES[magic]
    there = num_bytes - HEADER_BYTES
    if there != count * np.dtype(dtype).itemsize:
        raise DamagedFileError(
            f"its header says {count} ids of {dtype}, and {max(there, 0)} bytes follow"
        )
    return integer_kind(dtype)
