"""Deletion vectors: the rows of a data file that are deleted, as a set of row numbers.

Delta tables and Iceberg's puffin files store the same set of 64-bit numbers: a count, and for each
number of high 32 bits a Roaring bitmap of the low ones (the portable form of RoaringFormatSpec).
"""

from __future__ import annotations

import base64
import struct
import uuid
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.file_info import shown
from streampack.sources.records import DamagedFileError
from streampack.storage.storage import Storage

_DELTA_MAGIC = 1681511377
_ICEBERG_MAGIC = b"\xd1\xd3\x39\x64"
_RUNS, _NO_RUNS = 12347, 12346  # first numbers of a bitmap
_WITHOUT_OFFSETS = 4  # bitmaps with fewer containers and with runs have no offsets
_ARRAY = 4096  # most numbers of a container that lists them
_Z85 = bytes.maketrans(
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
)


def delta_rows(storage: Storage, root: str, vector: Mapping[str, Any]) -> NDArray[np.int64]:
    """Return the deleted rows (K,), ascending, of a descriptor in a Delta log.

    Raises:
        DamagedFileError: the vector is damaged.
    """
    kind, place = vector["storageType"], vector["pathOrInlineDv"]
    if kind == "i":
        data, name = _z85(place), "the inline deletion vector"
    else:
        path = place
        if kind == "u":
            prefix, folder = _z85(place[-20:]), place[:-20]
            file = f"deletion_vector_{uuid.UUID(bytes=prefix)}.bin"
            path = f"{root}/{folder}/{file}" if folder else f"{root}/{file}"
        elif kind != "p":
            raise DamagedFileError(f"a deletion vector is stored in an unknown way, {kind!r:.20}")
        name = shown(path)
        begin, size = int(vector.get("offset") or 0), int(vector["sizeInBytes"])
        framed = storage.read_range(path, begin, begin + size + 8)
        data = framed[4:-4]
        if framed[:4] != struct.pack(">i", size) or framed[-4:] != _crc(data):
            raise DamagedFileError(f"the deletion vector in {name} does not match its checksum")
    if len(data) < 4 or struct.unpack_from("<i", data)[0] != _DELTA_MAGIC:
        raise DamagedFileError(f"{name} has an unknown form of a deletion vector")
    return _checked(data[4:], int(vector["cardinality"]), name)


def iceberg_rows(blob: bytes, cardinality: int, name: str) -> NDArray[np.int64]:
    """Return the deleted rows (K,), ascending, of a blob `deletion-vector-v1` of a puffin file.

    Raises:
        DamagedFileError: the blob is damaged.
    """
    inner = blob[4:-4]
    if blob[:4] != struct.pack(">i", len(inner)) or blob[-4:] != _crc(inner):
        raise DamagedFileError(f"the deletion vector in {name} does not match its checksum")
    if inner[:4] != _ICEBERG_MAGIC:
        raise DamagedFileError(f"{name} has an unknown form of a deletion vector")
    return _checked(inner[4:], cardinality, name)


def _crc(data: bytes) -> bytes:
    return struct.pack(">I", zlib.crc32(data))


def _z85(text: str) -> bytes:
    try:
        return base64.b85decode(text.encode("ascii").translate(_Z85))
    except ValueError as error:
        raise DamagedFileError(f"a deletion vector has a wrong name ({error})") from error


def _checked(data: bytes, cardinality: int, name: str) -> NDArray[np.int64]:
    try:
        rows = _bitmaps(data)
    except (struct.error, ValueError) as error:
        raise DamagedFileError(f"the deletion vector in {name} breaks off ({error})") from error
    if len(rows) != cardinality or (len(rows) and int(np.diff(rows).min(initial=1)) < 1):
        raise DamagedFileError(
            f"the deletion vector in {name} has {len(rows)} rows and should have {cardinality}"
        )
    return rows


def _bitmaps(data: bytes) -> NDArray[np.int64]:
    (count,) = struct.unpack_from("<q", data)
    at, parts = 8, [np.zeros(0, dtype=np.int64)]
    for _ in range(count):
        (high,) = struct.unpack_from("<I", data, at)
        low, at = _bitmap(data, at + 4)
        parts.append(low + (high << 32))
    return np.concatenate(parts)


def _bitmap(data: bytes, at: int) -> tuple[NDArray[np.int64], int]:
    """Read a bitmap of 32-bit numbers; return them and the position after it."""
    (cookie,) = struct.unpack_from("<I", data, at)
    at += 4
    if cookie & 0xFFFF == _RUNS:
        count = (cookie >> 16) + 1
        size = -(-count // 8)
        flags = np.frombuffer(data, np.uint8, size, at)
        is_run = np.unpackbits(flags, count=count, bitorder="little").astype(bool)
        at += size
        has_offsets = count >= _WITHOUT_OFFSETS
    elif cookie == _NO_RUNS:
        (count,) = struct.unpack_from("<I", data, at)
        at += 4
        is_run, has_offsets = np.zeros(min(count, 1 << 16), dtype=bool), True
    else:
        raise ValueError(f"it begins with {cookie}")
    heads = np.frombuffer(data, "<u2", 2 * count, at).reshape(count, 2).astype(np.int64)
    at += 4 * count + 4 * count * has_offsets
    parts = [np.zeros(0, dtype=np.int64)]
    for (key, most), run in zip(heads.tolist(), is_run.tolist(), strict=True):
        low, at = _container(data, at, most + 1, run)
        parts.append(low + (key << 16))
    return np.concatenate(parts), at


def _container(data: bytes, at: int, count: int, run: bool) -> tuple[NDArray[np.int64], int]:
    """Read one container of `count` 16-bit numbers; return them and the position after it."""
    if run:
        (runs,) = struct.unpack_from("<H", data, at)
        pairs = np.frombuffer(data, "<u2", 2 * runs, at + 2).reshape(runs, 2).astype(np.int64)
        lengths = pairs[:, 1] + 1
        within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return np.repeat(pairs[:, 0], lengths) + within, at + 2 + 4 * runs
    if count <= _ARRAY:
        return np.frombuffer(data, "<u2", count, at).astype(np.int64), at + 2 * count
    bits = np.unpackbits(np.frombuffer(data, np.uint8, 8192, at), bitorder="little")
    return np.flatnonzero(bits).astype(np.int64), at + 8192
