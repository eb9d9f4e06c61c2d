"""The document of each slot: from marked ids, from end tokens, or from the batch's own claims."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streampack.checking.marked import MarkedDocuments
from streampack.checking.reading import NO_TARGET, View

#: Offset of a token before the first one of its document.
BEFORE = -1
#: Documents between which the id of padding must stand alone to count as an end token.
LEAST_ALONE = 3
#: Offset where it is unknown.
UNKNOWN = -2


@dataclass(frozen=True)
class Truth:
    """The document of each slot, and of the token after it; (rows, slots).

    Attributes:
        document: int64, -1 on padding.
        offset: int64, index of the token in its document; -2 where it is unknown.
        next_document: int64, of the token after the slot; -1 for padding and at the end of a row.
        next_offset: int64, likewise.
        loss: bool, the token after the slot should carry loss.
        length: int64, tokens of the slot's document, without an end token; -2 if unknown.
        by: "documents", "end tokens" or "claims".
    """

    document: NDArray[np.int64]
    offset: NDArray[np.int64]
    next_document: NDArray[np.int64]
    next_offset: NDArray[np.int64]
    loss: NDArray[np.bool_]
    length: NDArray[np.int64]
    by: str

    @property
    def continues(self) -> NDArray[np.bool_]:
        """True where the next token is the next one of the same document."""
        same = (self.document >= 0) & (self.next_document == self.document)
        unknown = (self.offset == UNKNOWN) | (self.next_offset == UNKNOWN)
        continues: NDArray[np.bool_] = same & (unknown | (self.next_offset == self.offset + 1))
        return continues

    @property
    def crosses(self) -> NDArray[np.bool_]:
        """True where the next token is of another document, or of another part of it."""
        return (self.document >= 0) & (self.next_document >= 0) & ~self.continues


def by_documents(
    view: View, documents: MarkedDocuments, eos_id: int | None, bos_id: int | None
) -> Truth:
    """Return the truth of marked documents.

    An end token directly behind the last token of a document belongs to it, with the offset
    `length`; a begin token directly before the first one has the offset -1.
    """
    extended = np.concatenate((view.tokens, view.next_tokens[:, -1:]), axis=1)
    document, offset, loss = documents.place_of(documents.token_of(extended))
    length = np.where(document < 0, UNKNOWN, documents.lengths[np.maximum(document, 0)])
    marked = document >= 0
    if eos_id is not None:
        ends = np.zeros_like(marked)
        ends[:, 1:] = marked[:, :-1] & (offset[:, :-1] == length[:, :-1] - 1)
        ends &= ~marked & (extended == eos_id)
        rows, slots = ends.nonzero()
        document[rows, slots] = document[rows, slots - 1]
        offset[rows, slots] = length[rows, slots] = length[rows, slots - 1]
        loss[rows, slots] = True
    if bos_id is not None:
        begins = np.zeros_like(marked)
        begins[:, :-1] = marked[:, 1:] & (offset[:, 1:] == 0)
        begins &= ~marked & (extended == bos_id) & (document < 0)
        rows, slots = begins.nonzero()
        document[rows, slots] = document[rows, slots + 1]
        length[rows, slots] = length[rows, slots + 1]
        offset[rows, slots] = BEFORE
    _add_cut_off(view, extended, document, offset, eos_id, bos_id)
    return _of_extended(document, offset, length, loss, "documents")


def _add_cut_off(
    view: View,
    extended: NDArray[np.int64],
    document: NDArray[np.int64],
    offset: NDArray[np.int64],
    eos_id: int | None,
    bos_id: int | None,
) -> None:
    """Set the end tokens and begin tokens of documents in other rows."""
    if extended.shape[1] < 3:
        return
    real = np.ones(view.tokens.shape, dtype=bool) if view.padding is None else ~view.padding
    ends = (document[:, 0] < 0) & (document[:, 1] >= 0) & real[:, 0] & (extended[:, 0] == eos_id)
    begins = (document[:, -2] < 0) & (document[:, -3] >= 0) & real[:, -1]
    begins &= (extended[:, -2] == bos_id) & (extended[:, -1] == NO_TARGET)
    for position, where in ((0, ends), (-2, begins)):
        document[where, position], offset[where, position] = int(document.max()) + 1, UNKNOWN


def by_end_tokens(
    view: View, eos_id: int | None, bos_id: int | None, padding: NDArray[np.bool_]
) -> Truth:
    """Return the documents between end tokens (or begin tokens) of each row; offsets unknown."""
    starts = np.zeros(view.tokens.shape, dtype=bool)
    if bos_id is not None:
        starts |= view.tokens == bos_id
    else:
        starts[:, 1:] = view.tokens[:, :-1] == eos_id
    starts[:, 0] = False
    return _of_rows(starts.cumsum(axis=1), padding, "end tokens")


def by_claims(view: View, padding: NDArray[np.bool_]) -> Truth:
    """Return the segments that the batch claims as documents."""
    starts = np.zeros(view.tokens.shape, dtype=bool)
    if view.segments is not None:
        starts[:, 1:] = view.segments[:, 1:] != view.segments[:, :-1]
    elif view.mask is not None:  # a border is where a slot does not see the one before it
        rows = range(len(view.tokens))
        starts[:, 1:] = [~np.diagonal(view.mask(row), -1) for row in rows]
    return _of_rows(starts.cumsum(axis=1), padding, "claims")


def declared_padding(view: View, pad_id: int | None, eos_id: int | None) -> NDArray[np.bool_]:
    """Return the slots that the batch's mask, or else `pad_id` at the end of a row, makes padding.

    A run of end tokens at the end of a row is padding behind its first one.
    """
    if view.padding is not None:
        return view.padding
    padding = np.zeros(view.tokens.shape, dtype=bool)
    for token in {pad_id, eos_id} - {None}:
        run = np.logical_and.accumulate((view.tokens == token)[:, ::-1], axis=1)[:, ::-1]
        if token == eos_id:
            run[:, 1:] &= run[:, :-1]
            run[:, 0] = False
        padding |= run
    return padding


def separators(views: list[View], documents: MarkedDocuments) -> tuple[int | None, int | None]:
    """Return the end token and the begin token that a loader places between marked documents.

    Such a token stands alone between two documents. If rows begin with it, it is a begin token. Two
    other ids that stand there in the same order are an end token and a begin token. The id of
    padding is one if it stands alone between all documents.
    """
    padded = _stands_alone(views, documents)
    for view in views:
        between = _between(view, documents, 1)
        candidates = np.unique(between if padded else between[between != documents.pad_id])
        if len(candidates):
            token = int(candidates[0])
            marked = documents.token_of(view.tokens) >= 0
            begins = (view.tokens[:, 0] == token) & marked[:, 1]
            return (None, token) if begins.any() else (token, None)
    pairs = [pair for view in views for pair in _between(view, documents, 2).tolist()]
    if len(pairs) >= LEAST_ALONE and all(pair == pairs[0] for pair in pairs):
        end, begin = pairs[0]
        return (end, begin) if begin not in (end, documents.pad_id) else (None, None)
    return None, None


def _between(view: View, documents: MarkedDocuments, count: int) -> NDArray[np.int64]:
    """Return the ids of each run of so many slots between the end and the start of documents.

    (runs,) for one slot, else (runs, count).
    """
    document, offset, _ = documents.place_of(documents.token_of(view.tokens))
    length = documents.lengths[np.maximum(document, 0)]
    behind, width = count + 1, view.tokens.shape[1]
    starts = (document >= 0) & (offset == length - 1)
    runs = starts[:, : max(width - behind, 0)].copy()
    runs &= (document[:, behind:] >= 0) & (offset[:, behind:] == 0)
    for position in range(1, behind):
        runs &= document[:, position : width - behind + position] < 0
    rows, slots = runs.nonzero()
    ids: NDArray[np.int64] = np.stack(
        [view.tokens[rows, slots + position] for position in range(1, behind)], axis=1
    )
    return ids.reshape(-1) if count == 1 else ids


def _stands_alone(views: list[View], documents: MarkedDocuments) -> bool:
    """Return True if several documents are followed by the id of padding once, and none twice."""
    single = longer = 0
    for view in views:
        document, offset, _ = documents.place_of(documents.token_of(view.tokens))
        length = documents.lengths[np.maximum(document, 0)]
        ends = (document >= 0) & (offset == length - 1)
        later = np.logical_or.accumulate((document >= 0)[:, ::-1], axis=1)[:, ::-1]
        pad = (view.tokens == documents.pad_id) & later
        behind = ends[:, :-2] & pad[:, 1:-1]
        single += int((behind & (document[:, 2:] >= 0)).sum())
        longer += int((behind & pad[:, 2:]).sum())
    return single >= LEAST_ALONE and not longer


def _of_extended(
    document: NDArray[np.int64],
    offset: NDArray[np.int64],
    length: NDArray[np.int64],
    loss: NDArray[np.bool_],
    by: str,
) -> Truth:
    return Truth(
        document[:, :-1],
        offset[:, :-1],
        document[:, 1:],
        offset[:, 1:],
        loss[:, 1:],
        length[:, :-1],
        by,
    )


def _of_rows(document: NDArray[np.int64], padding: NDArray[np.bool_], by: str) -> Truth:
    document = np.where(padding, -1, document)
    extended = np.pad(document, ((0, 0), (0, 1)), constant_values=NO_TARGET)
    extended[:, -1] = -1
    unknown = np.full(extended.shape, UNKNOWN, dtype=np.int64)
    return _of_extended(extended, unknown, unknown, np.ones(extended.shape, dtype=bool), by)
