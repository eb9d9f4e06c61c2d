"""Columns of MDS shards that hold fields: numbers of tokens, as arrays, and of documents."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Documents, Texts
from streampack.documents.fields import FieldTypes
from streampack.documents.ragged import offsets_of
from streampack.errors import ConfigError
from streampack.reading.integer_arrays import copy_spans
from streampack.sources.mds.index import Column, Layout
from streampack.sources.mds.samples import UNEVEN, array_values

_NUMBERS = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64",
)  # fmt: skip


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
            what = f"with the encoding {encoding!r}" if encoding else "of this name"
            raise ConfigError(
                f"The field {name!r} is declared, and {where} has {'a' if encoding else 'no'} "
                f"column {what}.",
                f"It should be {wanted}.",
                f"Name another column, or make it in a map. The columns are: "
                f"{', '.join(layout.names)}.",
            )
        found.append(made)
    return found


def _array_column(layout: Layout, name: str) -> FieldColumn | None:
    if name not in layout.names:
        return None
    number = layout.names.index(name)
    base, *rest = layout.encodings[number].split(":")
    fits = base == "ndarray" and rest and rest[0] in _NUMBERS
    if not fits or len(rest) > 2 or (len(rest) == 2 and not rest[1].isdecimal()):
        return None
    dtype = np.dtype(rest[0])
    return FieldColumn(name, True, dtype, Column(number, dtype.itemsize, len(rest) < 2))


def _number_column(layout: Layout, name: str) -> FieldColumn | None:
    if name not in layout.names:
        return None
    number = layout.names.index(name)
    encoding = layout.encodings[number]
    if encoding not in ("int", *_NUMBERS):
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
