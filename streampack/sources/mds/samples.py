"""The samples of MDS shards: kernels that find values and trust no number; columns of fields."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.documents.blocks import Documents, Texts, offsets_of
from streampack.documents.fields import FieldTypes
from streampack.errors import ConfigError
from streampack.sources.mds.index import NUMBERS, Column, Layout, array_of
from streampack.sources.raw_bytes import copy_spans

#: What is wrong with a sample, by its status; ends a sentence that begins with its name.
STATUS = {
    1: "has columns whose sizes do not add up to its length",
    2: "has an array header that is cut short",
    3: "has an array that does not hold integers",
    4: "has an array of more than one dimension",
    5: "has an array whose bytes do not match its shape",
    6: "has a loss mask or a field that is not as long as its tokens",
    7: "is longer than max_document_bytes of Reading",
}
UNEVEN, TOO_LONG = 6, 7


@kernel
def scan_samples(
    data: NDArray[np.uint8],
    table: NDArray[np.uint32],
    sizes: NDArray[np.int64],
    wanted: NDArray[np.int64],
    start: int,
    stop: int,
    max_bytes: int,
    value_starts: NDArray[np.int64],
    value_sizes: NDArray[np.int64],
    status: NDArray[np.uint8],
) -> int:
    """Find the values of columns `wanted` (W,) in samples start, start + 1, ...

    `table` has been checked against the length of `data`; no other number is trusted: each size is
    compared with what is left of its sample before it is added. Fills value_starts and value_sizes
    (W, N) and status (N,), and returns how many samples were scanned: up to `stop`, N samples, or
    until the first wanted column has reached `max_bytes`.
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
                total += value_sizes[0, n]
        n += 1
    return n


@kernel
def array_values(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    kind: int,
    has_shape: bool,
    counts: NDArray[np.int64],
    kinds: NDArray[np.uint8],
    status: NDArray[np.uint8],
) -> None:
    """Read the headers of N arrays: `starts` moves to the values, counts and kinds are filled.

    Samples whose status is not 0 are skipped; broken ones get theirs (see `STATUS`).
    """
    for i in range(len(starts)):
        if status[i] != 0:
            continue
        at = starts[i]
        end = at + sizes[i]
        of = np.int64(kind)
        if of == 0:
            if at >= end:
                status[i] = 2
                continue
            code = data[at]
            at += 1
            of = np.int64(code >> 3) | np.int64(code & 1) << 4
            if code & 6 or (code >> 3) not in (1, 2, 4, 8):
                status[i] = 3
                continue
        item = of & 15
        if has_shape:
            if at >= end:
                status[i] = 2
                continue
            if data[at] >> 2 != 1:
                status[i] = 4
                continue
            width = np.int64(1) << np.int64(data[at] & 3)
            at += 1
            if at + width > end:
                status[i] = 2
                continue
            count = np.uint64(0)
            for b in range(width):
                count |= np.uint64(data[at + b]) << np.uint64(8 * b)
            at += width
            # Compared before it is multiplied: a count of 2**63 must not wrap around.
            if count > np.uint64(end - at) or np.int64(count) * item != end - at:
                status[i] = 5
                continue
        elif (end - at) % item != 0:
            status[i] = 5
            continue
        starts[i] = at
        counts[i] = (end - at) // item
        kinds[i] = of


def array_headers(
    data: NDArray[np.uint8],
    columns: list[Column],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    status: NDArray[np.uint8],
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Read the headers of the token arrays (row 0) and masks (rows 1, ...) of N samples.

    `starts` (C or more, N) moves to the first value of each array; `status` (N,) says which samples
    are broken (see `STATUS`).

    Returns:
        (N,) ids of each token array, and (C, N) the kinds of all arrays as in `INTEGER_DTYPES`.
    """
    counts = np.zeros_like(starts[: len(columns)])
    kinds = np.zeros(counts.shape, dtype=np.uint8)
    for row, column in enumerate(columns):
        array_values(
            data,
            starts[row],
            sizes[row],
            column.kind,
            column.has_shape,
            counts[row],
            kinds[row],
            status,
        )
    status[(status == 0) & (counts != counts[0]).any(axis=0)] = UNEVEN
    return counts[0], kinds


def problems_of(status: NDArray[np.uint8]) -> dict[int, str]:
    """What is wrong with samples, by their number."""
    return {i: STATUS[int(status[i])] for i in np.flatnonzero(status).tolist()}


@dataclass(frozen=True, slots=True)
class FieldColumn:
    """A column with a field.

    Attributes:
        name: of the field and the column.
        of_tokens: True if samples have an array in it, False if they have one number.
        dtype: of the numbers; column: where they are.
    """

    name: str
    of_tokens: bool
    dtype: np.dtype[Any]
    column: Column


def field_columns(
    layout: Layout, types: FieldTypes, tokenized: bool, where: str
) -> list[FieldColumn]:
    """The columns that hold the fields of a run; those of tokens only beside token ids.

    Raises:
        ConfigError: there is no such column, and no map that might make it, or its encoding is
            another one.
    """
    found = []
    for name, of_tokens in [
        *((name, True) for name in types.token if tokenized),
        *((name, False) for name in types.document),
    ]:
        encoding = ""
        if name in layout.names:
            encoding = layout.encodings[layout.names.index(name)]
        elif types.optional:
            continue
        made = _array_column(layout, name) if of_tokens else _number_column(layout, name)
        if not encoding or made is None:
            wanted = "`ndarray:<dtype>`" if of_tokens else "`int`, `float32` or another number"
            what = f"one with the encoding {encoding!r}" if encoding else "none"
            raise ConfigError(
                f"The field {name!r} needs a column of {wanted}, and {where} has {what}.",
                f"Name another of the columns {', '.join(layout.names)}, or make it in a map.",
                setting="token_fields" if of_tokens else "document_fields",
                path=where,
            )
        found.append(made)
    return found


def _array_column(layout: Layout, name: str) -> FieldColumn | None:
    found = array_of(layout, name)
    if found is None or found[1] is None:
        return None
    return FieldColumn(name, True, found[1], Column(found[0], found[1].itemsize, found[2]))


def _number_column(layout: Layout, name: str) -> FieldColumn | None:
    if name not in layout.names:
        return None
    number = layout.names.index(name)
    encoding = layout.encodings[number]
    if encoding not in ("int", *NUMBERS):
        return None
    dtype = np.dtype("int64" if encoding == "int" else encoding)
    return FieldColumn(name, False, dtype, Column(number, dtype.itemsize, False))


def field_values(
    data: NDArray[np.uint8],
    fields: list[FieldColumn],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    expected: NDArray[np.int64],
    status: NDArray[np.uint8],
) -> None:
    """Find the numbers of F fields in N samples: `starts` (F, N) moves to the first of each.

    Args:
        data: (B,) bytes of the shard.
        fields: F columns.
        starts, sizes: (F, N) where their values lie, and their bytes.
        expected: (N,) token ids of each sample.
        status: (N,) gets what is wrong (see `STATUS`).
    """
    for row, field in enumerate(fields):
        counts = np.zeros_like(expected)
        kinds = np.zeros(len(expected), dtype=np.uint8)
        column = field.column
        array_values(
            data, starts[row], sizes[row], column.kind, column.has_shape, counts, kinds, status
        )
        wanted = expected if field.of_tokens else np.ones_like(expected)
        status[(status == 0) & (counts != wanted)] = UNEVEN


def with_fields(
    block: Documents | Texts,
    data: NDArray[np.uint8],
    fields: list[FieldColumn],
    starts: NDArray[np.int64],
) -> Documents | Texts:
    """A block of N documents with their fields, whose numbers begin at `starts` (F, N)."""
    token: dict[str, NDArray[Any]] = {}
    document: dict[str, NDArray[Any]] = {}
    for field, begin in zip(fields, starts, strict=True):
        if field.of_tokens:
            assert isinstance(block, Documents)
            lengths = block.lengths
        else:
            lengths = np.ones(len(block), dtype=np.int64)
        offsets = offsets_of(lengths) * field.dtype.itemsize
        values = np.empty(int(offsets[-1]), dtype=np.uint8)
        copy_spans(data, begin, offsets, values)
        (token if field.of_tokens else document)[field.name] = values.view(field.dtype)
    if isinstance(block, Documents):
        return replace(block, token_fields=token, document_fields=document)
    return replace(block, document_fields=document)
