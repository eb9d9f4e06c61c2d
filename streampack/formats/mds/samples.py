"""The samples of MDS shards: kernels that find values and check every stored number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel_of
from streampack.formats.mds.index import TEXTS, Column
from streampack.sources.reading import ReadOptions
from streampack.sources.records import DamagedFileError
from streampack.storage.files import StoredFile

#: Reasons for broken samples by status; each ends a sentence that begins with a sample's name.
STATUS = {
    1: "has columns with sizes that do not add up to its length",
    2: "has an array header that is cut short",
    3: "has an array that does not hold integers",
    4: "has an array of more than one dimension",
    5: "has an array with bytes that do not match its shape",
    6: "has a loss mask or a field that is not as long as its tokens",
    7: "is longer than max_document_bytes",
    8: "has an array with another shape for each token than its field",
}
UNEVEN, TOO_LONG = 6, 7


@kernel_of(lambda *call: 10 * call[2].size * min(call[6] - call[5], call[10].size))
def scan_samples(
    data: NDArray[np.uint8],
    table: NDArray[np.uint32],
    sizes: NDArray[np.int64],
    wanted: NDArray[np.int64],
    counted: NDArray[np.bool_],
    start: int,
    stop: int,
    max_bytes: int,
    value_starts: NDArray[np.int64],
    value_sizes: NDArray[np.int64],
    status: NDArray[np.uint8],
) -> int:
    """Find the values of columns `wanted` (W,) in samples start, start + 1, ...

    `table` has been checked against the length of `data`; no other number is trusted: each size is
    compared with the remaining bytes of its sample before it is added. Fills value_starts and
    value_sizes (W, N) and status (N,), and returns the number of scanned samples: up to `stop`, N
    samples, or until the wanted columns that are `counted` (W,) have reached `max_bytes`.
    """
    variable = 0
    for c in range(len(sizes)):
        if sizes[c] == 0:
            variable += 1
    total = 0
    n = 0
    while n < len(status) and start + n < stop and total < max_bytes:
        begin = np.int64(table[start + n])
        end = np.int64(table[start + n + 1])
        at = begin + 4 * variable
        head = begin
        status[n] = 0
        if at > end:
            status[n] = 1
        else:
            for c in range(len(sizes)):
                size = sizes[c]
                if size == 0:
                    size = (
                        np.int64(data[head])
                        | np.int64(data[head + 1]) << 8
                        | np.int64(data[head + 2]) << 16
                        | np.int64(data[head + 3]) << 24
                    )
                    head += 4
                if size > end - at:
                    status[n] = 1
                    break
                for w in range(len(wanted)):
                    if wanted[w] == c:
                        value_starts[w, n] = at
                        value_sizes[w, n] = size
                at += size
            if at != end:
                status[n] = 1
            if status[n] == 0:
                for w in range(len(wanted)):
                    if counted[w]:
                        total += value_sizes[w, n]
        n += 1
    return n


@kernel_of(lambda data, starts, *_: 20 * starts.size)
def array_values(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    kind: int,
    has_shape: bool,
    shape: NDArray[np.int64],
    counts: NDArray[np.int64],
    kinds: NDArray[np.uint8],
    status: NDArray[np.uint8],
) -> None:
    """Read the headers of N arrays: `starts` moves to the values, counts and kinds are filled.

    Arrays are (count, *shape).

    Samples with a status other than 0 are skipped; broken ones get one of `STATUS`.
    """
    width = np.int64(1)
    for size in shape:
        width *= size
    for i in range(len(starts)):
        if status[i] != 0:
            continue
        at = starts[i]
        end = at + sizes[i]
        array_kind = np.int64(kind)
        if array_kind == 0:
            if at >= end:
                status[i] = 2
                continue
            code = data[at]
            at += 1
            array_kind = np.int64(code >> 3) | np.int64(code & 1) << 4
            if code & 6 or (code >> 3) not in (1, 2, 4, 8):
                status[i] = 3
                continue
        item = (array_kind & 15) * width
        if has_shape:
            if at >= end:
                status[i] = 2
                continue
            if data[at] >> 2 != 1 + len(shape):
                status[i] = 8 if len(shape) else 4
                continue
            digits = np.int64(1) << np.int64(data[at] & 3)  # bytes per number of the shape
            at += 1
            if at + digits * (1 + len(shape)) > end:
                status[i] = 2
                continue
            count = np.uint64(0)
            for b in range(digits):
                count |= np.uint64(data[at + b]) << np.uint64(8 * b)
            at += digits
            for size in shape:
                length = np.uint64(0)
                for b in range(digits):
                    length |= np.uint64(data[at + b]) << np.uint64(8 * b)
                if length != np.uint64(size):
                    status[i] = 8
                at += digits
            if status[i] != 0:
                continue
            # Compared before it is multiplied: a count of 2**63 must not wrap around.
            if count > np.uint64(end - at) or np.int64(count) * item != end - at:
                status[i] = 5
                continue
        elif (end - at) % item != 0:
            status[i] = 5
            continue
        starts[i] = at
        counts[i] = (end - at) // item
        kinds[i] = array_kind


def array_headers(
    data: NDArray[np.uint8],
    columns: list[Column],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    status: NDArray[np.uint8],
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Read the headers of the arrays and numbers in N samples; texts have none.

    Args:
        data: (B,) bytes of the shard.
        columns: C columns, the document's first; the others are as long, or a number.
        starts, sizes: (C, N) first byte and size of each value; `starts` moves to its first number.
        status: (N,) receives a key of `STATUS` for a broken sample.

    Returns:
        (C, N) counts of numbers, or of tokens with several numbers, and (C, N) their kinds as keys
        of `INTEGER_DTYPES`.
    """
    counts = np.zeros_like(starts)
    kinds = np.zeros(counts.shape, dtype=np.uint8)
    for row, column in enumerate(columns):
        if column.setting not in (*TEXTS, "image"):
            header = (counts[row], kinds[row])
            shape = np.array(column.shape, dtype=np.int64)
            array_values(
                data, starts[row], sizes[row], column.kind, column.has_shape, shape, *header, status
            )
            expected = 1 if column.setting == "document_fields" else counts[0]
            status[(status == 0) & (counts[row] != expected)] = UNEVEN
    return counts, kinds


def problems_of(status: NDArray[np.uint8]) -> dict[int, str]:
    """Return the reasons for broken samples, by index."""
    return {i: STATUS[int(status[i])] for i in np.flatnonzero(status).tolist()}


def head_bytes(samples: Any) -> Any:
    """Return the bytes of a shard before its samples: a count, and their n + 1 offsets."""
    return 4 * (samples + 2)


def sample_table(file: StoredFile, samples: int) -> NDArray[np.uint32]:
    """Return the (n + 1,) uint32 offsets of the n samples that a shard should have.

    Raises:
        DamagedFileError: an entry is wrong.
    """
    head = head_bytes(samples)
    if file.num_bytes < head:
        raise DamagedFileError(
            f"its {file.num_bytes} bytes cannot hold a table of {samples} samples"
        )
    data = file.array(0, head)
    count = int(data[:4].view(np.uint32)[0])
    if count != samples:
        raise DamagedFileError(f"it has {count} samples, and its index declares {samples}")
    table = data[4:head].view(np.uint32)
    wrong = np.flatnonzero(table[1:] < table[:-1])
    if len(wrong):
        raise DamagedFileError(f"sample {wrong[0]} ends before it begins")
    if table[0] < head or table[-1] > file.num_bytes:
        raise DamagedFileError(
            f"its table puts samples at bytes {table[0]} to {table[-1]}, and there is room from "
            f"{head} to {file.num_bytes}"
        )
    return table


def read_samples(
    file: StoredFile,
    table: NDArray[np.uint32],
    start: int,
    stop: int,
    columns: Sequence[Column],
    stored_sizes: Sequence[int],
    reading: ReadOptions,
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """Return a block of the samples [start, stop).

    Args:
        file: content of the shard.
        table: (n + 1,) offsets of its samples.
        start, stop: indices of samples; at least one is read.
        columns: the W wanted columns, with the document's first.
        stored_sizes: bytes of each stored column, 0 where it varies.
        reading: limits of the block.

    Returns:
        Bytes that hold the samples, and in these (W, N) starts and (W, N) sizes of the wanted
        columns, and (N,) statuses.
    """
    # The document's bytes limit a block, and those of fields with several numbers per token.
    counted = np.array([bool(column.shape) for column in columns])
    counted[0] = True
    room = min(reading.documents_per_block, stop - start)
    most = reading.block_bytes
    while True:
        # Other columns may be larger than the wanted ones, and make a block exceed its limit.
        end = start + room
        if not file.mapped:
            end = int(np.searchsorted(table, int(table[start]) + most, "right"))
            end = min(max(end, start + 1), start + room)
        begin, last = (0, file.num_bytes) if file.mapped else map(int, table[[start, end]])
        data = file.array(begin, last)
        starts = np.zeros((len(columns), end - start), dtype=np.int64)
        sizes = np.zeros_like(starts)
        status = np.zeros(end - start, dtype=np.uint8)
        n = scan_samples(
            data,
            table[start : end + 1] - np.uint32(begin) if begin else table[start : end + 1],
            np.array(stored_sizes, dtype=np.int64),
            np.array([column.number for column in columns], dtype=np.int64),
            counted,
            0,
            end - start,
            reading.block_bytes,
            starts,
            sizes,
            status,
        )
        if (
            n == room
            or n < end - start
            or sizes[counted][:, status == 0].sum() >= reading.block_bytes
        ):
            return data, starts[:, :n], sizes[:, :n], status[:n]
        most *= 2
