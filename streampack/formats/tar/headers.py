"""Tar archives scanned in bulk: samples of a WebDataset shard, without a Python object per member.

Steps: read headers one after the other (ustar, GNU long names, the path of pax; checksums are
verified), put consecutive files with the same name up to the first dot into one sample, and record
the position of each sample's wanted file. Cost: about 0.2 microseconds per member; file contents
are not read.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel, kernel_of
from streampack.storage.files import StoredFile

#: Outcomes of a scan: a full block, the end of the archive, or a key of `FAULTS`.
MORE, ENDED = 0, 1
FAULTS = {
    2: "it breaks off",
    3: "a header has a wrong checksum or makes no sense",
    4: "a file in it is sparse, and only whole files are read; write it without --sparse",
}
_CUT, _BAD, _SPARSE = 2, 3, 4
#: Status of a sample: 0 is good.
MISSING, DUPLICATE, TOO_LONG = 1, 2, 3

#: A number above any byte offset and any number of samples.
ALL = int(np.iinfo(np.int64).max)

_BLOCK_BYTES = 256 << 10  # of remote files
_WINDOW_BYTES = 4 * _BLOCK_BYTES  # initial window on an archive that is not mapped

Index: TypeAlias = Any  # an int or an np.int64, which are the same in compiled code

_NAME_LIMIT = 4096
_PATH = np.frombuffer(b" path=", dtype=np.uint8)
_HOLES = np.frombuffer(b" GNU.sparse.", dtype=np.uint8)
_USTAR = np.frombuffer(b"ustar\0", dtype=np.uint8)


@kernel_of(lambda data, offset, *_: (data.size - offset) / 4)
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
        offset: first byte to scan: 0, or the offset that an earlier call returned.
        extension: extension of the wanted files, in lower case, without the dot.
        max_bytes: stop when the wanted files together reach this many bytes.
        starts: (N,) receives the first byte of each sample's wanted file,
        sizes: (N,) its bytes,
        status: (N,) 0, or the reason for a missing file: `MISSING`, `DUPLICATE`; and
        ends: (N,) the byte at which the headers of the next sample begin.

    Returns:
        The number of samples found (N at most), the byte at which the next one begins, and the
        outcome: `MORE`, `ENDED` or a key of `FAULTS` (the second number is then the fault's byte).
        A sample with its wanted file after the fault is not counted.
    """
    name = np.empty(_NAME_LIMIT, dtype=np.uint8)
    key = np.empty(_NAME_LIMIT, dtype=np.uint8)
    name_length = -1  # length of the name from an extra header; -1: no such header
    key_length = -1  # -1: no sample is open
    end = len(data)
    at = np.int64(offset)
    group = at  # the byte at which the headers of the current member begin
    closed = False  # True if the last block was zero: archives end with such blocks
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
            name_length = -1
            continue
        closed = False
        size = _number(data, at + 124, 12)
        kind = data[at + 156]
        body = at + 512
        if size < 0 or not _checksum_fits(data, at):
            outcome = _BAD
            break
        if kind == 83:  # S: a sparse file of GNU
            outcome = _SPARSE
            break
        if kind == 120 or kind == 103 or kind == 76 or kind == 75:  # x, g, L, K
            if size > end - body:
                outcome = _CUT
                break
            first, last = _long_name(data, kind, body, body + size)
            if last - first > _NAME_LIMIT or last < 0:
                outcome = _BAD if last != -2 else _SPARSE
                break
            if last > 0:
                name_length = last - first
                for i in range(name_length):
                    name[i] = data[first + i]
            at = body + (size + 511) // 512 * 512
            continue
        if name_length < 0:
            name_length = _header_name(data, at, name)
        # Links, devices and folders have no data.
        stored = size if not 49 <= kind <= 54 else np.int64(0)
        known = 49 <= kind <= 54 or 65 <= kind <= 90  # as above, and types reserved for vendors
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
                for i in range(stem):
                    key[i] = name[i]
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
        name_length = -1
    if key_length >= 0 and (outcome == ENDED or status[n] != MISSING):
        ends[n] = at
        n += 1
    return n, at, outcome


class Scanned(NamedTuple):
    """Samples of an archive.

    Attributes:
        data: bytes that hold the samples; base: bytes of the archive before `data`.
        starts, sizes, status: (N,) of the wanted files, in `data`; see `scan_tar`.
        ends: (N,) bytes of the archive at which the sample after each begins.
        end, outcome: byte of the archive at which the next sample begins, and the scan's outcome.
    """

    data: NDArray[np.uint8]
    base: int
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    status: NDArray[np.uint8]
    ends: NDArray[np.int64]
    end: int
    outcome: int


def scan_file(
    file: StoredFile,
    offset: int,
    extension: NDArray[np.uint8],
    max_bytes: int,
    most: int,
    *,
    few: bool = False,
) -> Scanned:
    """Find the next samples of an archive, `most` at most; see `scan_tar`.

    A file that is not mapped is read in a window, which grows until it holds all of these samples,
    or at least one if `few` may be returned.
    """
    size = file.num_bytes + 1 if file.mapped else _WINDOW_BYTES - offset % _BLOCK_BYTES
    base = 0 if file.mapped else offset
    while True:
        data = file.array(base, base + size)
        is_end = len(data) < size
        starts, sizes, ends = np.zeros((3, most), dtype=np.int64)
        status = np.zeros(most, dtype=np.uint8)
        n, end, outcome = scan_tar(
            data, offset - base, extension, max_bytes, starts, sizes, status, ends
        )
        if few and outcome == _CUT and n > 1 and not is_end:
            n, end, outcome = n - 1, int(ends[n - 2]), MORE  # the last sample may be longer
        if outcome in (MORE, _BAD, _SPARSE) or is_end:
            columns = (starts[:n], sizes[:n], status[:n], ends[:n] + base)
            return Scanned(data, base, *columns, end + base, outcome)
        size *= 2


def is_header(data: NDArray[np.uint8]) -> bool:
    """Return True if data (B,) begin with the header of a member of any name."""
    return len(data) >= 512 and bool(_checksum_fits(data, 0))


@kernel
def _is_zero(data: NDArray[np.uint8], start: Index, stop: Index) -> bool:
    for i in range(start, stop):  # noqa: SIM110
        if data[i] != 0:
            return False
    return True


@kernel
def _number(data: NDArray[np.uint8], at: Index, width: Index) -> Index:
    """Parse a header field in octal digits; -1 if it has other characters."""
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
    """Return True if the checksum is the sum of a header, with the checksum's field as spaces."""
    block = data[at : at + 512]
    unsigned = np.uint32(0)
    for i in range(512):
        unsigned += np.uint32(block[i])
    total = np.int64(unsigned)
    for i in range(148, 156):
        total += 32 - np.int64(block[i])
    return bool(_number(data, at + 148, 8) == total)


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
def _long_name(data: NDArray[np.uint8], kind: Index, at: Index, end: Index) -> tuple[Index, Index]:
    """Return [first, last) of the next member's name in the extra header [at, end); 0 without one.

    GNU's header holds the name up to a zero; a pax header holds records
    ``<length> <key>=<value>\\n``. The second number is -1 if the header makes no sense, and -2 if
    that member is a sparse file.
    """
    first, last = np.int64(0), np.int64(0)
    if kind == 76:  # L
        first, last = np.int64(at), np.int64(at)
        while last < end and data[last] != 0:
            last += 1
    while kind == 120 and at < end and data[at] != 0:  # x
        digits = np.int64(at)
        length = np.int64(0)
        while digits < end and 48 <= data[digits] <= 57 and length < 1 << 30:
            length = 10 * length + np.int64(data[digits]) - 48
            digits += 1
        stop = at + length
        if stop > end or stop <= digits:
            return np.int64(0), np.int64(-1)
        if _matches(data, digits, stop, _HOLES):
            return np.int64(0), np.int64(-2)
        if _matches(data, digits, stop, _PATH):
            first, last = digits + 6, np.int64(stop - 1)
        at = stop
    return first, last


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
    """Return a name's length up to the first dot of its last part; -1 if it is in no sample.

    Names without a dot or with nothing before it belong to no sample, nor do WebDataset's own
    records, which have ``__something__`` as first part.
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
    """Return True if name[start:stop] is the extension, in either case."""
    if stop - start != len(extension):
        return False
    for i in range(len(extension)):
        c = name[start + i]
        if 65 <= c <= 90:
            c += 32
        if c != extension[i]:
            return False
    return True
