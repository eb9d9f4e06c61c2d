"""Arrow columns to blocks: lists of token ids as views of their buffers, strings as strings.

Arrays may be slices, hold nulls, and be of any list or string type; a null, and an id that does
not fit, break their document and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streampack.documents import Documents, make_origin

if TYPE_CHECKING:
    from streampack.reading.base import Block

__all__ = ["BlockMaker", "Broken", "TokenBlocks", "is_text", "is_token_list", "text_blocks"]

#: Rows of a page and the number of the first -> blocks, each with the rows it consumed so far.
BlockMaker = Callable[[pa.RecordBatch, int], "Iterator[tuple[Block, int]]"]
#: Called with the number of a row and the end of the sentence "row N ...".
Broken = Callable[[int, str], None]


def is_text(kind: pa.DataType) -> bool:
    """True for any type that holds strings."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or str(kind) == "string_view"
    )


def is_token_list(kind: pa.DataType) -> bool:
    """True for lists of integers, of any length or of a fixed one."""
    lists = (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )
    return bool(lists and pa.types.is_integer(kind.value_type))


def cut(sizes: NDArray[np.int64], limits: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """(start, stop) of blocks over rows of `sizes` (N,) bytes.

    A block ends when it has ``limits[0]`` rows or holds ``limits[1]`` bytes; a row is never cut.
    """
    ends = np.cumsum(sizes)
    start, before = 0, 0
    while start < len(sizes):
        full = int(np.searchsorted(ends, before + limits[1])) + 1
        stop = min(len(sizes), start + limits[0], full)
        yield start, stop
        start, before = stop, int(ends[stop - 1])


def text_blocks(
    column: pa.Array, first: int, limits: tuple[int, int], broken: Broken
) -> Iterator[tuple[list[str], NDArray[np.int64], int]]:
    """(texts, their row numbers (N,), rows consumed) block by block."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        column = column.cast(pa.large_string())
    sizes = pc.fill_null(pc.call_function("binary_length", [column]), 0).to_numpy(
        zero_copy_only=False
    )
    for start, stop in cut(sizes.astype(np.int64), limits):
        piece = column.slice(start, stop - start)
        rows = np.arange(first + start, first + stop, dtype=np.int64)
        try:
            texts: list[Any] = piece.to_pylist()
        except UnicodeDecodeError:
            texts = [_decoded(value) for value in piece.cast(_bytes_like(piece.type)).to_pylist()]
        wrong = [i for i, text in enumerate(texts) if not isinstance(text, str)]
        if wrong:
            for i in wrong:
                broken(int(rows[i]), "is null" if texts[i] is None else "is not UTF-8")
            rows = np.delete(rows, wrong)
            texts = [text for text in texts if isinstance(text, str)]
        yield texts, rows, stop


def _bytes_like(kind: pa.DataType) -> pa.DataType:
    return pa.large_binary() if pa.types.is_large_string(kind) else pa.binary()


def _decoded(value: bytes | None) -> str | bytes | None:
    try:
        return value if value is None else value.decode()
    except UnicodeDecodeError:
        return value


@dataclass(frozen=True, slots=True)
class _Lists:
    """A list column: row i is ``values[offsets[i]:offsets[i + 1]]`` unless it is null.

    Attributes:
        values: the flat child array, nulls included.
        offsets: (N + 1,) int64 into it.
        valid: (N,) bool.
    """

    values: pa.Array
    offsets: NDArray[np.int64]
    valid: NDArray[np.bool_]

    @classmethod
    def of(cls, column: Any) -> _Lists:
        """The parts of a list array, cut to the rows it covers."""
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        if pa.types.is_fixed_size_list(column.type):
            width = column.type.list_size
            offsets = np.arange(len(column) + 1, dtype=np.int64) * width + column.offset * width
        else:
            offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        low, high = int(offsets[0]), int(offsets[-1])
        return cls(column.values.slice(low, high - low), offsets - low, valid)

    def rows_of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows that hold these places in `values`, each once."""
        rows = np.searchsorted(self.offsets, positions, side="right") - 1
        found: NDArray[np.int64] = np.unique(rows).astype(np.int64)
        return found


@dataclass(frozen=True, slots=True)
class TokenBlocks:
    """Turns rows with a column of token lists (and one of masks) into blocks of `Documents`.

    Attributes:
        shard: number of the shard.
        tokens: name of the column of ids.
        loss_mask: name of the column of masks, or None.
        dtype: uint16 or uint32, what the ids become.
        limits: rows and bytes per block.
        broken: told of every row that is no document.
    """

    shard: int
    tokens: str
    loss_mask: str | None
    dtype: np.dtype[Any]
    limits: tuple[int, int]
    broken: Broken

    def __call__(self, rows: pa.RecordBatch, first: int) -> Iterator[tuple[Block, int]]:
        """Blocks of these rows, `first` being the number of the first one."""
        lists = _Lists.of(rows.column(self.tokens))
        reasons: dict[int, str] = dict.fromkeys(np.flatnonzero(~lists.valid).tolist(), "is null")
        ids = self._ids(lists, reasons)
        mask = None
        if self.loss_mask is not None:
            mask = self._mask(lists, _Lists.of(rows.column(self.loss_mask)), reasons)
        lengths = np.diff(lists.offsets)
        numbers = np.arange(first, first + len(lengths), dtype=np.int64)
        page = Documents(ids, lists.offsets, make_origin(self.shard, numbers), mask)
        for start, stop in cut(lengths * self.dtype.itemsize, self.limits):
            block = page[start:stop]
            if reasons:
                wrong = [row for row in range(start, stop) if row in reasons]
                for row in wrong:
                    self.broken(first + row, reasons[row])
                if wrong:
                    block = page.take(np.setdiff1d(np.arange(start, stop), wrong))
            yield block, stop

    def _ids(self, lists: _Lists, reasons: dict[int, str]) -> NDArray[np.generic]:
        """The flat ids as `dtype`, a view if they have it; documents of wrong ones get a reason."""
        values = lists.values
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        nulls: NDArray[np.int64] | None = None
        if values.null_count:
            nulls = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
            values = values.fill_null(0)
        ids = values.to_numpy(zero_copy_only=False)
        if nulls is not None:
            for row in lists.rows_of(nulls).tolist():
                reasons.setdefault(row, "has an id that is null")
        if ids.dtype == self.dtype:
            return ids  # type: ignore[no-any-return]
        largest = np.iinfo(self.dtype).max
        if len(ids) and ids.dtype.kind == "i" and int(ids.min()) < 0:
            self._outside(lists, np.flatnonzero(ids < 0), reasons)
        if len(ids) and ids.dtype.itemsize > self.dtype.itemsize and int(ids.max()) > largest:
            self._outside(lists, np.flatnonzero(ids > largest), reasons)
        if ids.dtype.itemsize == self.dtype.itemsize:  # none is negative but in what is left out
            return ids.view(self.dtype)  # type: ignore[no-any-return]
        return ids.astype(self.dtype)  # type: ignore[no-any-return]

    def _outside(
        self, lists: _Lists, positions: NDArray[np.int64], reasons: dict[int, str]
    ) -> None:
        for row in lists.rows_of(positions).tolist():
            reasons.setdefault(row, f"has an id outside of {self.dtype.name}")

    def _mask(self, lists: _Lists, masks: _Lists, reasons: dict[int, str]) -> NDArray[np.bool_]:
        """The flat mask laid out like the ids; documents whose mask does not fit get a reason."""
        lengths, others = np.diff(lists.offsets), np.diff(masks.offsets)
        for row in np.flatnonzero(~masks.valid).tolist():
            reasons.setdefault(row, "has no mask")
        for row in np.flatnonzero(lengths != others).tolist():
            reasons.setdefault(row, f"has {lengths[row]} ids and {others[row]} mask values")
        values = masks.values
        if values.null_count:
            nulls = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
            for row in masks.rows_of(nulls).tolist():
                reasons.setdefault(row, "has a mask value that is null")
            values = values.fill_null(False if pa.types.is_boolean(values.type) else 0)
        flags: NDArray[np.bool_] = values.to_numpy(zero_copy_only=False).astype(np.bool_)
        if np.array_equal(lengths, others):
            return flags
        out = np.zeros(int(lists.offsets[-1]), dtype=np.bool_)
        fits = lengths == others
        out[np.repeat(fits, lengths)] = flags[np.repeat(fits, others)]
        return out
