"""TokenBuffer: the tokens and documents of a window, in reusable arrays.

Tokens have the width of the widest ids seen so far, and there is a loss mask only once a document
had one. Cost: each token is copied once on arrival and once per round that it stays; one kernel
call per incoming block and one at the end of a round, for any number of documents.

The memory of tokens is reused. The memory of columns is not: `entries` are views, and a lane's
state needs a round's entries long after the next round began. So new entries are written behind the
others, and retained entries are written to new columns at the end of a round.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel_of
from streampack.documents.blocks import ORIGIN, Documents, gather_ragged, offsets_of
from streampack.window.entries import (
    ARRIVED,
    HELD,
    LENGTH,
    REPEATED,
    SERIAL,
    START,
    Entries,
    HeldBlocks,
)

_LEAST_ENTRIES = 64
_ENTRIES = 7  # columns of `Entries`; the buffer has two more, computed from the documents
_LEARNT_BEFORE, _LEARNT_AFTER = 7, 8  # columns: labels before and after a document's held tokens
_Counts: TypeAlias = NDArray[np.int64]  # one per document
_NO_MASK = np.zeros(0, dtype=np.bool_)


class TokenBuffer:
    """Buffer of documents that are appended at the end and removed anywhere.

    Args:
        expected: usual largest number of tokens. The buffer grows up to it by doubling, and beyond
            it as needed.

    Attributes:
        tokens: (capacity,) uint16 or uint32; the first `used` are held, document by document.
        loss_mask: (capacity,) bool, or None while every token counts.
        used: number of tokens held; count: number of documents held, in whole or in part.
        fields: fields of the documents, and the members of groups.
    """

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self.tokens: NDArray[Any] = np.empty(0, dtype=np.uint16)
        self.loss_mask: NDArray[np.bool_] | None = None
        self.used = 0
        self.count = 0
        self.fields = HeldBlocks()
        self._spare: NDArray[Any] = self.tokens
        self._spare_mask: NDArray[np.bool_] = _NO_MASK
        self._numbers, self._origin = _columns(_LEAST_ENTRIES)

    @property
    def entries(self) -> Entries:
        """The documents held, in order, as views with constant content."""
        return Entries(self._numbers[:_ENTRIES, : self.count], self._origin[: self.count])

    @property
    def learnt(self) -> NDArray[np.int64]:
        """Labels of each document before and after its held tokens, (2, N) int64.

        A label is a token that carries loss and is not the first one of its document.
        """
        return self._numbers[_LEARNT_BEFORE:, : self.count]

    def append(
        self, documents: Documents, first: int, held: _Counts, serials: _Counts, round: int
    ) -> None:
        """Append the heads of documents.

        Args:
            documents: block of documents; first: index of the first document to append.
            held: (N,) int64, tokens to hold of each, at most its length.
            serials: (N,) int64, serials of the block's documents; round: round of arrival.
        """
        if not len(held):
            return
        self._make_room(documents, int(held.sum()), len(held))
        if self.loss_mask is not None:
            self._append_mask(documents, documents.offsets[first : first + len(held)], held)
        block = _Block(documents.tokens, documents.offsets, _words(documents.origin))
        into = _Columns(self.tokens, _NO_MASK, self._numbers, _words(self._origin))
        self.used = _append(block, first, held, serials, round, into, self.used, self.count)
        last = first + len(held)
        labels_after = labels_of(documents[first:last], held, documents.lengths[first:last])
        self._numbers[_LEARNT_AFTER, self.count : self.count + len(held)] = labels_after
        self.count += len(held)
        self.fields.add(documents, first, serials[first:last])

    def restore(self, documents: Documents, entries: Entries) -> None:
        """Append N documents as described by `entries` (N,)."""
        starts = documents.offsets[:-1] + entries.start
        self._make_room(documents, int(entries.held.sum()), len(entries))
        self._copy(documents, starts, entries.held)
        place = slice(self.count, self.count + len(entries))
        stop, nothing = entries.start + entries.held, np.zeros_like(entries.start)
        self._numbers[:_ENTRIES, place] = entries.numbers
        self._numbers[_LEARNT_BEFORE, place] = labels_of(documents, nothing, entries.start)
        self._numbers[_LEARNT_AFTER, place] = labels_of(documents, stop, entries.length)
        self._origin[place] = entries.origin
        self.count += len(entries)
        self.fields.add(documents, 0, entries.serial)

    def extend_last(self, documents: Documents, begin: int, more: int, *, round: int) -> None:
        """Append `more` tokens of the last document, the block's tokens from `begin` on."""
        self._make_room(documents, more, 0)
        self._copy(documents, np.array([begin]), np.array([more]))
        self._numbers = self._numbers.copy()  # `entries` may have views of the entry that changes
        ends = np.array([begin, begin + more]) - documents.offsets[0]
        self._numbers[HELD, self.count - 1] += more
        self._numbers[_LEARNT_AFTER, self.count - 1] -= labels_of(documents[:1], *ends[:, None])[0]
        self._numbers[ARRIVED, self.count - 1] = round

    def keep(
        self,
        kept: NDArray[np.int64],
        moved: NDArray[np.int64],
        repeated: NDArray[np.int64],
        position: NDArray[np.int64],
    ) -> None:
        """Keep the tails of some documents and remove all other tokens.

        Args:
            kept: (K,) int64, indices of these documents, ascending.
            moved: (K,) int64, tokens to remove from the head of each; repeated: (K,) its new
                `Entries.repeated`.
            position: (N + 1,) int64 offsets of all N documents into the tokens.
        """
        if len(self._spare) < len(self.tokens) or self._spare.dtype != self.tokens.dtype:
            self._spare = np.empty_like(self.tokens)
        mask = self.loss_mask
        if mask is not None and len(self._spare_mask) < len(mask):
            self._spare_mask = np.empty(len(mask), dtype=np.bool_)
        numbers, origin = _columns(max(len(self._origin), _LEAST_ENTRIES))
        self.used = _keep(
            kept, moved, repeated, position,
            _Columns(
                self.tokens, _NO_MASK if mask is None else mask, self._numbers,
                _words(self._origin),
            ),
            _Columns(self._spare, self._spare_mask, numbers, _words(origin)),
        )  # fmt: skip
        self.count = len(kept)
        self._numbers, self._origin = numbers, origin
        self.tokens, self._spare = self._spare, self.tokens
        if mask is not None:
            self.loss_mask, self._spare_mask = self._spare_mask, mask
        self.fields.keep(self.entries.serial)

    # ------------------------------------------------------------------ room

    def _copy(
        self, documents: Documents, starts: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> None:
        """Append slices of a block, `counts` tokens each from `starts` on."""
        if self.loss_mask is not None:
            self._append_mask(documents, starts, counts)
        offsets = offsets_of(counts) + self.used
        gather_ragged(documents.tokens, starts, offsets, self.tokens)
        self.used = int(offsets[-1])

    def _append_mask(
        self, documents: Documents, starts: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> None:
        assert self.loss_mask is not None
        offsets = offsets_of(counts) + self.used
        if documents.loss_mask is None:
            self.loss_mask[self.used : offsets[-1]] = True
        else:
            gather_ragged(documents.loss_mask, starts, offsets, self.loss_mask)

    def _make_room(self, documents: Documents, more: int, entries: int) -> None:
        """Make room for `more` tokens of the block's dtype, its mask if any, and `entries`."""
        if len(self._origin) < self.count + entries:
            numbers, origin = _columns(max(2 * len(self._origin), self.count + entries))
            numbers[:, : self.count] = self._numbers[:, : self.count]
            origin[: self.count] = self._origin[: self.count]
            self._numbers, self._origin = numbers, origin
        dtype = self.tokens.dtype
        if documents.tokens.dtype.itemsize > dtype.itemsize or len(self.tokens) == 0:
            dtype = documents.tokens.dtype
        if len(self.tokens) < self.used + more or dtype != self.tokens.dtype:
            capacity = max(len(self.tokens), self.used + more)
            if self.used + more > len(self.tokens):
                capacity = max(capacity, min(2 * len(self.tokens), self._expected))
            grown = np.empty(capacity, dtype=dtype)
            grown[: self.used] = self.tokens[: self.used]
            self.tokens = grown
            if self.loss_mask is not None:
                mask = np.empty(capacity, dtype=np.bool_)
                mask[: self.used] = self.loss_mask[: self.used]
                self.loss_mask = mask
        if documents.loss_mask is not None and self.loss_mask is None:
            self.loss_mask = np.ones(len(self.tokens), dtype=np.bool_)


def _columns(capacity: int) -> tuple[NDArray[np.int64], NDArray[np.void]]:
    """Allocate the columns of `Entries` and the buffer's own two, uninitialised."""
    return np.empty((_LEARNT_AFTER + 1, capacity), dtype=np.int64), np.empty(capacity, ORIGIN)


def labels_of(
    documents: Documents, start: NDArray[np.int64], stop: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Count the labels among the tokens [start, stop), (N,) each, of N documents; (N,) int64.

    For a group all labels of its members are counted, unless the slice is empty.
    """
    members = documents.members
    if members is not None:
        low, high = int(members.offsets[0]), int(members.offsets[-1])
        single = members.documents[low:high]
        labels = offsets_of(labels_of(single, np.zeros_like(single.lengths), single.lengths))
        return np.where(start < stop, np.diff(labels[members.offsets - low]), 0)
    start = np.minimum(np.maximum(start, 1), stop)
    if documents.loss_mask is None:
        return stop - start
    begin = documents.offsets[:-1]
    return _count_true(documents.loss_mask, begin + start, begin + stop)


@kernel_of(lambda mask, start, stop: (stop - start).sum())
def _count_true(
    mask: NDArray[np.bool_], start: NDArray[np.int64], stop: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Count the True values in mask[start:stop] for N slices; (N,) int64."""
    counts = np.zeros(len(start), dtype=np.int64)
    for i in range(len(start)):
        for k in range(start[i], stop[i]):
            counts[i] += mask[k]
    return counts


def _words(origin: NDArray[np.void]) -> NDArray[np.int64]:
    """View origins as (2 N,) int64, the form in which kernels copy them."""
    return np.ascontiguousarray(origin).view(np.int64)


class _Block(NamedTuple):
    """Columns of an incoming block: tokens, offsets, and origins as words."""

    tokens: NDArray[np.generic]
    offsets: NDArray[np.int64]
    origin: NDArray[np.int64]


class _Columns(NamedTuple):
    """Arrays of a buffer: tokens, their mask (may be empty), and entries, with origins as words."""

    tokens: NDArray[np.generic]
    mask: NDArray[np.bool_]
    numbers: NDArray[np.int64]
    origin: NDArray[np.int64]


@kernel_of(lambda *call: call[2].sum() + 20 * call[2].size)
def _append(
    block: _Block,
    first: int,
    held: NDArray[np.int64],
    serials: NDArray[np.int64],
    arrived: int,
    into: _Columns,
    used: int,
    count: int,
) -> int:
    """Write tokens and columns of incoming documents; return the number of tokens then held."""
    source, offsets, origin = block
    tokens, _, numbers, origin_out = into
    for i in range(len(held)):
        begin = offsets[first + i]
        piece = source[begin : begin + held[i]]
        target = tokens[used : used + held[i]]
        for k in range(len(target)):
            target[k] = piece[k]
        used += held[i]
        at = count + i
        numbers[:, at] = 0
        numbers[SERIAL, at] = serials[first + i]
        numbers[HELD, at] = held[i]
        numbers[LENGTH, at] = offsets[first + i + 1] - begin
        numbers[ARRIVED, at] = arrived
        origin_out[2 * at] = origin[2 * (first + i)]
        origin_out[2 * at + 1] = origin[2 * (first + i) + 1]
    return used


@kernel_of(lambda kept, *call: call[3].numbers[HELD, kept].sum() + 20 * kept.size)
def _keep(
    kept: NDArray[np.int64],
    moved: NDArray[np.int64],
    repeated: NDArray[np.int64],
    position: NDArray[np.int64],
    held: _Columns,
    stays: _Columns,
) -> int:
    """Write tokens and columns of retained documents; return the number of tokens then held."""
    tokens, mask, numbers, origin = held
    tokens_out, mask_out, numbers_out, origin_out = stays
    used = 0
    for i in range(len(kept)):
        d = kept[i]
        size = numbers[HELD, d] - moved[i]
        begin = position[d] + moved[i]
        first = position[d] + (numbers[START, d] == 0)
        if len(mask):
            for k in range(first, begin):
                numbers[_LEARNT_BEFORE, d] += mask[k]
        else:
            numbers[_LEARNT_BEFORE, d] += max(begin - first, 0)
        target = tokens_out[used : used + size]
        piece = tokens[begin : begin + size]
        for k in range(len(target)):
            target[k] = piece[k]
        if len(mask):
            for k in range(size):
                mask_out[used + k] = mask[begin + k]
        used += size
        for c in range(len(numbers)):
            numbers_out[c, i] = numbers[c, d]
        numbers_out[START, i] += moved[i]
        numbers_out[HELD, i] = size
        numbers_out[REPEATED, i] = repeated[i]
        origin_out[2 * i] = origin[2 * d]
        origin_out[2 * i + 1] = origin[2 * d + 1]
    return used
