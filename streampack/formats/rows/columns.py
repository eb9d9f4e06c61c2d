"""Arrow columns to blocks: lists of token ids as arrays over their buffers, texts as strings.

Columns may be slices, hold nulls, and be of any list or string type. A null, and an id that does
not fit, break their document and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streampack.documents.blocks import Documents, Texts, make_origin, offsets_of
from streampack.files.file_source import ShardBlock
from streampack.sources.base import Block
from streampack.sources.fields import ATTENTION_MASK, with_masks
from streampack.sources.reading import too_long

#: N rows and their indices (N,) in a file, in order.
Rows = tuple[pa.RecordBatch, NDArray[np.int64]]
#: Rows -> blocks, which end at rows and have reached the same rows.
BlockMaker = Callable[[pa.RecordBatch, NDArray[np.int64]], Iterator[ShardBlock]]


def is_text(kind: pa.DataType) -> bool:
    """Return True for any type that holds strings."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or str(kind) == "string_view"
    )


def is_null(kind: pa.DataType) -> bool:
    """Return True for the type of a column that holds nulls only."""
    return bool(pa.types.is_null(kind))


def is_token_list(kind: pa.DataType) -> bool:
    """Return True for lists of integers, of any length or of a fixed one; also if all are empty."""
    return _is_list(kind) and bool(pa.types.is_integer(kind.value_type) or is_null(kind.value_type))


def is_number(kind: pa.DataType) -> bool:
    """Return True for integers, floating-point numbers and booleans."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


def is_number_list(kind: pa.DataType, shape: tuple[int, ...] = ()) -> bool:
    """Return True for lists of integers, floating-point numbers or booleans.

    With a shape, they are lists of lists of this shape, with fixed sizes or not.
    """
    if isinstance(kind, pa.BaseExtensionType):  # an array of datasets
        kind = kind.storage_type
    for size in (None, *shape):
        if not _is_list(kind) or (size and getattr(kind, "list_size", size) != size):
            return False
        kind = kind.value_type
    return is_number(kind)


def is_mask_list(kind: pa.DataType) -> bool:
    """Return True for lists of booleans, or of integers in their place."""
    return is_token_list(kind) or (_is_list(kind) and bool(pa.types.is_boolean(kind.value_type)))


def kinds_of(schema: Iterable[pa.Field]) -> dict[str, str]:
    """Return the kinds of columns by name: "tokens", "mask" (lists of booleans), "text" or ""."""

    def kind_of(kind: pa.DataType) -> str:
        if is_token_list(kind):
            return "tokens"
        return "mask" if is_mask_list(kind) else "text" if is_text(kind) else ""

    return {field.name: kind_of(field.type) for field in schema}


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def cut(sizes: NDArray[np.integer[Any]], limits: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of blocks over N rows; `sizes` (N,) are their bytes.

    A block ends when it has ``limits[0]`` rows or holds ``limits[1]`` bytes; a row is never cut.
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    start, before = 0, 0
    while start < len(sizes):
        full = int(np.searchsorted(ends, before + limits[1])) + 1
        stop = min(len(sizes), start + limits[0], full)
        yield start, stop
        start, before = stop, int(ends[stop - 1])


def _without(
    block: Documents | Texts, origin: NDArray[np.void], problems: Mapping[int, str]
) -> ShardBlock:
    """Return a block of rows (N,) without those with problems."""
    if problems:
        block = block.take(np.setdiff1d(np.arange(len(block)), list(problems)))
    return ended(block, origin, problems)


def ended(block: Block, origin: NDArray[np.void], problems: Mapping[int, str]) -> ShardBlock:
    """Return a block that ends after the last row of `origin`, and has reached that row."""
    end = int(origin["index"][-1]) + 1
    return ShardBlock(block, origin, problems, end, end)


@dataclass(frozen=True, slots=True)
class TextBlocks:
    """Makes blocks of `Texts` from rows with a column of strings.

    Attributes:
        shard: number of the shard.
        column: name of the column.
        limits: rows and bytes per block.
        max_bytes: a larger row is no document.
        fields: columns with a number or, with a conversion to keys, a text per row.
    """

    shard: int
    column: str
    limits: tuple[int, int]
    max_bytes: int
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, rows: pa.RecordBatch, numbers: NDArray[np.int64]) -> Iterator[ShardBlock]:
        """Yield blocks of rows with these indices (N,)."""
        column = plain_text(rows.column(self.column))
        sizes = row_sizes(column)
        large = sizes > self.max_bytes
        if large.any():
            column = pc.if_else(pa.array(large), None, column)
        lacking: dict[int, str] = {}
        fields = _row_fields(rows, self.fields, lacking)
        for start, stop in cut(sizes, self.limits):
            texts = _strings(column.slice(start, stop - start))
            problems = {row - start: lacking[row] for row in lacking if start <= row < stop}
            for i in [i for i, text in enumerate(texts) if not isinstance(text, str)]:
                problems[i] = "is null" if texts[i] is None else "is not UTF-8"
                if large[start + i]:
                    problems[i] = too_long(sizes[start + i], self.max_bytes)
            origin = make_origin(self.shard, numbers[start:stop])
            block = Texts(texts, origin, {n: values[start:stop] for n, values in fields.items()})
            yield _without(block, origin, problems)


def plain_text(column: pa.Array) -> pa.Array:
    """Cast any text column to strings or large strings."""
    if pa.types.is_dictionary(column.type):  # of views, Arrow decodes none
        values = plain_text(column.dictionary)
        column = pa.DictionaryArray.from_arrays(column.indices, values).dictionary_decode()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return column
    return column.cast(pa.large_string())


def row_sizes(column: pa.Array) -> NDArray[np.int64]:
    """Return (N,) bytes per row of a text column, or ids per row of a list column; 0 for nulls."""
    if is_text(column.type):
        sizes = pc.call_function("binary_length", [plain_text(column)])
    else:
        sizes = pc.list_value_length(column)
    filled: NDArray[np.int64] = _filled(sizes, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return filled


def _strings(column: pa.Array) -> list[Any]:
    """Return the strings of a column; bytes for a value that is not UTF-8, None for nulls."""
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        large = pa.types.is_large_string(column.type)
        raw = column.cast(pa.large_binary() if large else pa.binary())
        return [_decoded(value) for value in raw.to_pylist()]


def _decoded(value: bytes | None) -> str | bytes | None:
    try:
        return value if value is None else value.decode()
    except UnicodeDecodeError:
        return value


@dataclass(frozen=True, slots=True)
class _Lists:
    """A list column: row i is ``values[offsets[i]:offsets[i + 1]]``, empty if it is null.

    Attributes:
        values: the flat child array, with null values.
        offsets: (N + 1,) int64 into it.
        nulls: (K,) int64, rows that are null.
    """

    values: pa.Array
    offsets: NDArray[np.int64]
    nulls: NDArray[np.int64]

    @classmethod
    def of(cls, column: Any) -> _Lists:
        """Take a list array apart."""
        column = column.storage if isinstance(column, pa.ExtensionArray) else column
        if is_null(column.type) or is_null(column.type.value_type):
            column = column.cast(pa.list_(pa.uint8()))
        lengths = _filled(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        return cls(column.flatten(), offsets_of(lengths), _nulls(column))

    def rows_of(self, places: NDArray[np.int64]) -> list[int]:
        """Return the rows with these positions of `values`, each row once."""
        if not len(places):
            return []
        rows: list[int] = np.unique(np.searchsorted(self.offsets, places, "right") - 1).tolist()
        return rows


def _nulls(array: Any) -> NDArray[np.int64]:
    """Return the (K,) int64 positions of an array's nulls."""
    if not array.null_count:
        return np.zeros(0, dtype=np.int64)
    positions: NDArray[np.int64] = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))
    return positions


def _filled(array: Any, value: int) -> Any:
    """Return the array with `value` in place of nulls; the array itself if it has no nulls."""
    return array.fill_null(value) if array.null_count else array


@dataclass(frozen=True, slots=True)
class TokenBlocks:
    """Makes blocks of `Documents` from rows with a column of token lists (and one of masks).

    Attributes:
        shard: number of the shard.
        tokens: name of the column of ids.
        loss_masks: names of the columns of masks.
        dtype: dtype of the blocks' ids, uint16 or uint32.
        limits: rows and bytes per block.
        max_bytes: a larger row is no document.
        token_fields: columns with a number per token, or several in lists of this shape;
            document_fields: as `TextBlocks.fields`.
    """

    shard: int
    tokens: str
    loss_masks: Sequence[str]
    dtype: np.dtype[Any]
    limits: tuple[int, int]
    max_bytes: int
    token_fields: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    document_fields: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, rows: pa.RecordBatch, numbers: NDArray[np.int64]) -> Iterator[ShardBlock]:
        """Yield blocks of rows with these indices (N,)."""
        lists = _Lists.of(rows.column(self.tokens))
        reasons: dict[int, str] = dict.fromkeys(lists.nulls.tolist(), "is null")
        ids = self._ids(lists, reasons)

        def beside(name: str, what: str, shape: tuple[int, ...] = ()) -> NDArray[Any]:
            return _token_values(lists, _Lists.of(rows.column(name)), what, reasons, shape)

        masks = {name: beside(name, "mask value") for name in self.loss_masks}
        token_fields = {
            name: beside(name, f'value in "{name}"', shape)
            for name, shape in self.token_fields.items()
        }
        if ATTENTION_MASK in rows.schema.names:
            masks[ATTENTION_MASK] = beside(ATTENTION_MASK, f'value in "{ATTENTION_MASK}"')
        document_fields = _row_fields(rows, self.document_fields, reasons)
        sizes = np.diff(lists.offsets) * self.dtype.itemsize
        for row in np.flatnonzero(sizes > self.max_bytes).tolist():
            reasons.setdefault(row, too_long(sizes[row], self.max_bytes))
        origin = make_origin(self.shard, numbers)
        plain = Documents(ids, lists.offsets, origin, None, token_fields, document_fields)
        whole, of_masks = with_masks(plain, masks)
        reasons = {**of_masks, **reasons}
        for start, stop in cut(sizes, self.limits):
            wrong = [row for row in range(start, stop) if row in reasons] if reasons else []
            problems = {row - start: reasons[row] for row in wrong}
            yield _without(whole[start:stop], origin[start:stop], problems)

    def _ids(self, lists: _Lists, reasons: dict[int, str]) -> NDArray[np.generic]:
        """Return the flat ids as `dtype`, without a copy where their type allows it.

        A document with an invalid id gets a reason.
        """
        values = lists.values
        for row in lists.rows_of(_nulls(values)):
            reasons.setdefault(row, "has an id that is null")
        ids: NDArray[Any] = _filled(values, 0).to_numpy(zero_copy_only=False)
        largest = np.iinfo(self.dtype).max
        certain = len(ids) == 0 or np.can_cast(ids.dtype, self.dtype)
        if not certain and (int(ids.min()) < 0 or int(ids.max()) > largest):
            for row in lists.rows_of(np.flatnonzero((ids < 0) | (ids > largest))):
                reasons.setdefault(row, f"has an id outside of {self.dtype.name}")
        if ids.dtype.itemsize == self.dtype.itemsize:  # ids below zero are in rejected rows only
            return ids.view(self.dtype)
        return ids.astype(self.dtype)


def _token_values(
    lists: _Lists, others: _Lists, what: str, reasons: dict[int, str], shape: tuple[int, ...] = ()
) -> NDArray[Any]:
    """Return the values (T, *shape) of another list column, laid out like the ids.

    A document with a different number of values, or with a null or a list of another length in one
    of them, gets a reason; `what` names one value.
    """
    first, _, place = what.partition(" in ")
    plural = f"{first}s in {place}" if place else f"{first}s"
    lengths, sizes = np.diff(lists.offsets), np.diff(others.offsets)
    for row in others.nulls.tolist():
        reasons.setdefault(row, f"has no {plural}")
    for row in np.flatnonzero(lengths != sizes).tolist():
        reasons.setdefault(row, f"has {lengths[row]} ids and {sizes[row]} {plural}")
    values, wrong = _values_of(others.values, shape)
    for row in others.rows_of(wrong):
        reasons.setdefault(
            row, f"has a {what} that is " + (f"not of shape {shape}" if shape else "null")
        )
    if np.array_equal(lengths, sizes):
        return values
    out = np.zeros((int(lists.offsets[-1]), *shape), dtype=values.dtype)
    fits = lengths == sizes
    out[np.repeat(fits, lengths)] = values[np.repeat(fits, sizes)]
    return out


def _values_of(array: Any, shape: tuple[int, ...]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the numbers (T, *shape) of nested lists, and the positions of invalid ones of T.

    The numbers of an invalid one are 0.
    """
    if not shape:
        return _as_numbers(array), _nulls(array)
    if not _is_list(array.type):  # the column has no value
        return np.zeros((len(array), *shape), np.uint8), np.arange(len(array))
    lengths = _filled(pc.list_value_length(array), -1).to_numpy(zero_copy_only=False)
    fits = lengths == shape[0]
    is_whole = bool(fits.all())
    inner, wrong = _values_of(
        (array if is_whole else array.filter(pa.array(fits))).flatten(), shape[1:]
    )
    values, wrong = inner.reshape(-1, *shape), np.unique(wrong // shape[0])
    if is_whole:
        return values, wrong
    out = np.zeros((len(array), *shape), dtype=values.dtype)
    out[fits] = values
    return out, np.union1d(np.flatnonzero(~fits), np.flatnonzero(fits)[wrong])


def _row_fields(
    rows: pa.RecordBatch, keys: Mapping[str, Any], reasons: dict[int, str]
) -> dict[str, NDArray[Any]]:
    """Return the (N,) numbers of columns by name; a row without a number gets a reason.

    `keys` has the conversion of a column of texts, and None for numbers.
    """
    columns = {name: rows.column(name) for name in keys}
    for name, column in columns.items():
        for row in [] if getattr(keys[name], "optional", False) else _nulls(column).tolist():
            reasons.setdefault(row, f'has no "{name}"')
    return {n: keys[n].of_column(c) if keys[n] else _as_numbers(c) for n, c in columns.items()}


def _as_numbers(array: pa.Array) -> NDArray[Any]:
    """Return the numbers or booleans of an array, 0 for nulls."""
    if is_null(array.type):
        array = array.cast(pa.uint8())
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    numbers: NDArray[Any] = _filled(
        array, False if pa.types.is_boolean(array.type) else 0
    ).to_numpy(zero_copy_only=False)
    return numbers
