"""Tar archives scanned in bulk: samples of a WebDataset shard, without a Python object per member.

Steps: read headers one after the other (ustar, GNU long names, pax path and size; checksums are
verified), put consecutive files whose names agree up to the first dot into one sample, and record
where the wanted file of each sample is. Cost: about 0.2 microseconds per member; file contents are
not read.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel

#: How a scan ended: a full block, or the end of the archive, or one of `FAULTS`.
MORE, ENDED = 0, 1
FAULTS = {
    2: "it breaks off",
    3: "a header has a wrong checksum or makes no sense",
    4: "a header uses a feature that is not supported (sparse files, names of over 4096 bytes)",
}
_CUT, _BAD, _UNSUPPORTED = 2, 3, 4
#: Status of a sample: 0 is good.
MISSING, DUPLICATE, TOO_LONG = 1, 2, 3

#: Beyond any byte and any number of samples.
ALL = int(np.iinfo(np.int64).max)

Index: TypeAlias = Any  # compiled, an int and an np.int64 are the same

_NAME_LIMIT = 4096
_EXTRA_LIMIT = 1 << 20  # bytes of a pax or GNU header
_PATH = np.frombuffer(b"path", dtype=np.uint8)
_SIZE = np.frombuffer(b"size", dtype=np.uint8)
_SPARSE = np.frombuffer(b"GNU.sparse", dtype=np.uint8)
_USTAR = np.frombuffer(b"ustar\0", dtype=np.uint8)


@kernel
def scan_tar(
    data: NDArray[np.uint8],
    offset: Index,
    extension: NDArray[np.uint8],
    max_bytes: Index,
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    status: NDArray[np.uint8],
    ends: NDArray[np.int64],
) -> tuple[Index, Index, Index]:
    """Find the next samples of an archive.

    Args:
        data: (B,) the whole archive.
        offset: where to begin: 0, or what an earlier call returned.
        extension: the wanted file's, in lower case, without the dot.
        max_bytes: stop when the wanted files together reach this many bytes.
        starts: (N,) is filled with where each wanted file begins,
        sizes: (N,) with its bytes,
        status: (N,) with 0, or why there is none: `MISSING`, `DUPLICATE`; and
        ends: (N,) with where the headers of the sample after it begin.

    Returns:
        The number of samples found (N at most), where the next one begins, and how the scan
        ended: `MORE`, `ENDED` or a key of `FAULTS` (the second number is where that is). A sample
        whose wanted file is after the fault is not counted.
    """
    name = np.empty(_NAME_LIMIT, dtype=np.uint8)
    key = np.empty(_NAME_LIMIT, dtype=np.uint8)
    name_length = -1  # of a name that an extra header gave
    key_length = -1  # -1: no sample is open
    real_size = np.int64(-1)  # a size that a pax header gave
    end = len(data)
    at = np.int64(offset)
    group = at  # where the headers of the current member begin
    closed = False  # whether the last block was zero: archives end with such blocks
    n = 0
    total = np.int64(0)
    while True:
        if at + 512 > end:
            outcome = ENDED if closed and _is_zero(data, at, end) else _CUT
            break
        if data[at] == 0 and _is_zero(data, at, at + 512):
            # Zero blocks are skipped everywhere, so that archives in one file are all read.
            closed = True
            at += 512
            group = at
            name_length, real_size = -1, np.int64(-1)
            continue
        closed = False
        size = _number(data, at + 124, 12)
        kind = data[at + 156]
        body = at + 512
        if size < 0 or not _checksum_fits(data, at):
            outcome = _BAD
            break
        if kind == 120 or kind == 103 or kind == 76 or kind == 75:  # x, g, L, K
            fault, path_length, pax_size = _read_extra(data, kind, body, size, name)
            if fault != 0:
                outcome = fault
                break
            if path_length >= 0:
                name_length = path_length
            if pax_size >= 0:
                real_size = pax_size
            at = body + (size + 511) // 512 * 512
            continue
        if kind == 83:  # S: a sparse file, whose content is stored differently
            outcome = _UNSUPPORTED
            break
        if name_length < 0:
            name_length = _header_name(data, at, name)
        if real_size >= 0:
            size = real_size
        stored = size if not 49 <= kind <= 54 else np.int64(0)  # links, devices, folders: no data
        known = 49 <= kind <= 54 or 65 <= kind <= 90  # those, and what is some vendor's own
        regular = not known and (kind != 0 or name[max(name_length - 1, 0)] != 47)
        stem = _stem(name, name_length) if regular else -1
        if stem >= 0:
            if not _same(key, key_length, name, stem):
                if key_length >= 0:
                    total += sizes[n] if status[n] == 0 else 0
                    ends[n] = group
                    n += 1
                    if n == len(starts) or total >= max_bytes:
                        return n, group, MORE
                key_length = stem
                key[:stem] = name[:stem]
                status[n] = MISSING
            if _has_extension(name, stem + 1, name_length, extension):
                if status[n] != MISSING:
                    status[n] = DUPLICATE
                elif stored > end - body:
                    outcome = _CUT
                    break
                else:
                    starts[n] = body
                    sizes[n] = stored
                    status[n] = 0
        if stored > end - body:
            outcome = _CUT
            break
        at = body + (stored + 511) // 512 * 512
        group = at
        name_length, real_size = -1, np.int64(-1)
    if key_length >= 0 and (outcome == ENDED or status[n] != MISSING):
        ends[n] = at
        n += 1
    return n, at, outcome


def is_header(data: NDArray[np.uint8]) -> bool:
    """True if data (B,) begin with the header of a member, of whatever name."""
    return len(data) >= 512 and bool(_checksum_fits(data, 0))


@kernel
def _is_zero(data: NDArray[np.uint8], start: Index, stop: Index) -> bool:
    for i in range(start, stop):  # noqa: SIM110
        if data[i] != 0:
            return False
    return True


@kernel
def _number(data: NDArray[np.uint8], at: Index, width: Index) -> Index:
    """A header field: octal digits, or GNU's binary form. -1 if it is neither or too large."""
    if data[at] == 128:
        value = np.int64(0)
        for i in range(1, width):
            if value >= np.int64(1) << 54:
                return np.int64(-1)
            value = value << 8 | np.int64(data[at + i])
        return value
    value = np.int64(0)
    digits = 0
    for i in range(width):
        c = data[at + i]
        if 48 <= c <= 55:
            value = value << 3 | np.int64(c - 48)
            digits += 1
        elif (c == 32 or c == 0) and digits == 0:
            continue
        elif c == 32 or c == 0:
            break
        else:
            return np.int64(-1)
    return value


@kernel
def _checksum_fits(data: NDArray[np.uint8], at: Index) -> bool:
    """True if the checksum is the sum of a header, with its own field as spaces.

    Old writers added signed bytes.
    """
    block = data[at : at + 512]
    unsigned = np.uint32(0)
    for i in range(512):
        unsigned += np.uint32(block[i])
    total = np.int64(unsigned)
    for i in range(148, 156):
        total += 32 - np.int64(block[i])
    stored = _number(data, at + 148, 8)
    if stored == total:
        return True
    high = 0
    for i in range(512):
        if block[i] > 127 and not 148 <= i < 156:
            high += 1
    return bool(stored == total - 256 * high)


@kernel
def _header_name(data: NDArray[np.uint8], at: Index, name: NDArray[np.uint8]) -> Index:
    """Copy the name a header holds, with ustar's prefix in front, and return its length."""
    n = 0
    if data[at + 345] != 0 and _matches(data, at + 257, at + 512, _USTAR):
        while n < 155 and data[at + 345 + n] != 0:
            name[n] = data[at + 345 + n]
            n += 1
        name[n] = 47
        n += 1
    for i in range(100):
        if data[at + i] == 0:
            break
        name[n] = data[at + i]
        n += 1
    return n


@kernel
def _read_extra(
    data: NDArray[np.uint8], kind: Index, body: Index, size: Index, name: NDArray[np.uint8]
) -> tuple[Index, Index, Index]:
    """Read an extra header, of pax or GNU, that describes the next member.

    Returns a fault or 0; the length of the name in it, copied to `name`, or -1; the size in it or
    -1.
    """
    if size > _EXTRA_LIMIT:
        return _UNSUPPORTED, np.int64(-1), np.int64(-1)
    if size > len(data) - body:
        return _CUT, np.int64(-1), np.int64(-1)
    if kind == 75:  # K: where a link leads
        return 0, np.int64(-1), np.int64(-1)
    if kind == 76:  # L: a long name
        length: Index = np.int64(0)
        while length < size and data[body + length] != 0:
            if length == _NAME_LIMIT:
                return _UNSUPPORTED, np.int64(-1), np.int64(-1)
            name[length] = data[body + length]
            length += 1
        return 0, length, np.int64(-1)
    fault, path_length, pax_size = _read_pax(data, body, body + size, name)
    if fault == 0 and kind == 103 and (path_length >= 0 or pax_size >= 0):
        fault = _UNSUPPORTED  # one name or size for all later members makes no sense
    return fault, path_length, pax_size


@kernel
def _read_pax(
    data: NDArray[np.uint8], at: Index, end: Index, name: NDArray[np.uint8]
) -> tuple[Index, Index, Index]:
    """Read the records ``<length> <key>=<value>\\n`` of a pax header.

    Returns a fault or 0; the length of the path, copied to `name`, or -1; the size or -1.
    """
    path_length: Index = np.int64(-1)
    size: Index = np.int64(-1)
    while at < end and data[at] != 0:
        length: Index = np.int64(0)
        begin = at
        while at < end and 48 <= data[at] <= 57 and length < 1 << 30:
            length = 10 * length + data[at] - 48
            at += 1
        stop = begin + length
        if at == begin or at >= end or data[at] != 32 or stop > end or stop <= at + 1:
            return _BAD, path_length, size
        at += 1
        equals = at
        while equals < stop and data[equals] != 61:
            equals += 1
        if equals >= stop or data[stop - 1] != 10:
            return _BAD, path_length, size
        if _matches(data, at, equals, _SPARSE):
            return _UNSUPPORTED, path_length, size
        first, last = equals + 1, stop - 1
        if equals - at == 4 and _matches(data, at, equals, _PATH):
            if last - first >= _NAME_LIMIT:
                return _UNSUPPORTED, path_length, size
            path_length = last - first
            name[:path_length] = data[first:last]
        elif equals - at == 4 and _matches(data, at, equals, _SIZE):
            size = np.int64(0)
            for i in range(first, last):
                if not 48 <= data[i] <= 57 or size >= np.int64(1) << 58:
                    return _BAD, path_length, size
                size = 10 * size + data[i] - 48
        at = stop
    return 0, path_length, size


@kernel
def _matches(
    data: NDArray[np.uint8], start: Index, stop: Index, expected: NDArray[np.uint8]
) -> bool:
    if stop - start < len(expected):
        return False
    for i in range(len(expected)):  # noqa: SIM110
        if data[start + i] != expected[i]:
            return False
    return True


@kernel
def _same(a: NDArray[np.uint8], a_length: Index, b: NDArray[np.uint8], b_length: Index) -> bool:
    if a_length != b_length:
        return False
    for i in range(a_length):  # noqa: SIM110
        if a[i] != b[i]:
            return False
    return True


@kernel
def _stem(name: NDArray[np.uint8], length: Index) -> Index:
    """Length of a name up to the first dot of its last part; -1 if it is not part of a sample.

    Names without a dot or with nothing before it are not, nor are WebDataset's own records, whose
    first part is ``__something__``.
    """
    slash = -1
    first_slash = length
    for i in range(length):
        if name[i] == 47:
            slash = i
            first_slash = min(first_slash, i)
    f = first_slash
    if f >= 4 and name[0] == 95 and name[1] == 95 and name[f - 1] == 95 and name[f - 2] == 95:
        return -1
    for i in range(slash + 1, length):
        if name[i] == 46:
            return i if i > slash + 1 else -1
    return -1


@kernel
def _has_extension(
    name: NDArray[np.uint8], start: Index, stop: Index, extension: NDArray[np.uint8]
) -> bool:
    """True if name[start:stop] is the extension, in either case."""
    if stop - start != len(extension):
        return False
    for i in range(len(extension)):
        c = name[start + i]
        if 65 <= c <= 90:
            c += 32
        if c != extension[i]:
            return False
    return True
