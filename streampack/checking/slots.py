"""Faults of a single batch: the slots that others see, their positions, labels and padding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from streampack.checking.faults import FaultLog
from streampack.checking.reading import NO_TARGET, View
from streampack.checking.truth import UNKNOWN, Truth

#: Share of the learning slots with a wrong label from which a batch's labels are shifted wrongly.
MOST = 0.5


def check_slots(view: View, truth: Truth, log: FaultLog) -> None:
    """Add the faults of a batch to the log."""
    sound = view.cu_seqlens is None or _boundaries_are_sound(view, log)
    if view.mask is not None and view.segments is None:
        _check_mask(view, truth, log)
    elif sound:
        _check_segments(view, truth, log)
    for name, segments in view.further:
        other = replace(view, segments=segments, claimed_by=name)
        if not _same_borders(view, other):
            _check_segments(other, truth, log)
    _check_masked_out(view, truth, log)
    if view.positions is not None:
        _check_positions(view, truth, log)
    if view.targets is not None:
        _check_labels(view, truth, view.targets, log)


def _same_borders(view: View, other: View) -> bool:
    assert view.segments is not None
    assert other.segments is not None
    borders = [np.diff(one.segments, axis=1) != 0 for one in (view, other)]  # type: ignore[arg-type]
    return np.array_equal(*borders)


def _boundaries_are_sound(view: View, log: FaultLog) -> bool:
    """Check `cu_seqlens`; return True if segments can be compared with documents."""
    ends = view.cu_seqlens
    assert ends is not None
    slots, lengths = view.tokens.size, np.diff(ends)
    shown = f"{ends[:3].tolist()}...{ends[-2:].tolist()} for {slots} slots"
    wrong = {
        "cu-seqlens-start": not len(ends) or ends[0] != 0,
        "cu-seqlens-end": not len(ends) or ends[-1] != slots,
        "cu-seqlens-order": bool((lengths < 0).any()),
    }
    for kind in (kind for kind, holds in wrong.items() if holds):
        log.add(kind, detail=shown)
    if ends.dtype != np.int32:
        log.add("cu-seqlens-dtype", detail=str(ends.dtype))
    for declared, of in view.longest if not any(wrong.values()) else ():
        longest = int(np.diff(of).max(initial=0))
        if declared < longest:
            log.add("max-length-too-small", detail=f"{declared} for a segment of {longest}")
    return not any(wrong.values())


def _borders(truth: Truth) -> NDArray[np.bool_]:
    """Return slots that are the first of another document than the slot before, not in padding."""
    border = np.zeros(truth.document.shape, dtype=bool)
    border[:, 1:] = truth.crosses[:, :-1]
    return border


def _check_segments(view: View, truth: Truth, log: FaultLog) -> None:
    segments = view.segments
    if segments is None:  # no claim at all: a row is one segment
        segments = np.zeros_like(view.tokens)
    joined = np.zeros(segments.shape, dtype=bool)
    joined[:, 1:] = segments[:, 1:] == segments[:, :-1]
    inside = np.zeros(segments.shape, dtype=bool)
    inside[:, 1:] = truth.continues[:, :-1]
    real, before = truth.document >= 0, np.zeros(segments.shape, dtype=bool)
    before[:, 1:] = truth.document[:, :-1] < 0
    reset = view.claimed_by == "positions"
    log.add_slots("documents-see-each-other", joined & _borders(truth), _claim(view))
    if truth.by == "documents" and not (reset and _only_jumps(view, inside & ~joined)):
        log.add_slots("borders-inside-documents", inside & ~joined, _claim(view))
    if view.padding is None:
        log.add_slots("padding-seen", joined & real & before, _claim(view))


def _only_jumps(view: View, borders: NDArray[np.bool_]) -> bool:
    """Return True if no position restarts at these slots, so that `positions-jump` names them."""
    assert view.positions is not None
    return not (borders & (view.positions == 0)).any()


def _claim(view: View) -> str:
    if view.claimed_by:
        return f"boundaries by {view.claimed_by}"
    if view.positions is not None and view.padding is not None:
        return "with an attention_mask of padding, models do not look at position_ids"
    return "the batch has no boundaries"


def _check_mask(view: View, truth: Truth, log: FaultLog) -> None:
    assert view.mask is not None
    rows, slots = view.tokens.shape
    earlier = np.tril(np.ones((slots, slots), dtype=bool), -1)
    for row in range(rows):
        sees = view.mask(row)
        document = truth.document[row]
        real = document >= 0
        if not real.any():
            continue
        place = np.cumsum(~np.pad(truth.continues[row, :-1], (1, 0)))  # of a piece of a document
        if not np.diagonal(sees)[real].any():
            log.add("mask-inverted", row=row, count=int(real.sum()))
            continue
        both = real[:, None] & real[None, :]
        same = place[:, None] == place[None, :]
        causal = ~(sees & both & same & ~earlier & ~np.eye(slots, dtype=bool)).any(axis=1)
        for kind, wrong in (
            ("documents-see-each-other", sees & both & ~same & earlier),
            ("borders-inside-documents", ~sees & both & same & earlier),
            ("padding-seen", sees & real[:, None] & ~real[None, :] & earlier),
        ):
            queries = wrong.any(axis=1)
            if queries.any() and (kind != "borders-inside-documents" or truth.by == "documents"):
                slot = int(queries.argmax())
                log.add(kind, row=row, slot=slot, count=int(queries.sum()), detail=_claim(view))
        if not causal.all():
            log.add("not-causal", row=row, slot=int(causal.argmin()), count=int((~causal).sum()))


def _check_masked_out(view: View, truth: Truth, log: FaultLog) -> None:
    if view.padding is not None and truth.by == "documents":
        hidden = view.padding & (truth.document >= 0) & (truth.offset < truth.length)
        log.add_slots("tokens-masked-out", hidden & (truth.offset >= 0))


def _check_positions(view: View, truth: Truth, log: FaultLog) -> None:
    assert view.positions is not None
    positions, real = view.positions, truth.document >= 0
    step = np.ones(positions.shape, dtype=np.int64)
    step[:, 1:] = positions[:, 1:] - positions[:, :-1]
    inside = np.zeros(real.shape, dtype=bool)
    inside[:, 1:] = truth.continues[:, :-1]
    first = real & ~inside
    # A later piece of a document may count on from the piece before.
    known = (truth.offset != UNKNOWN) & (truth.offset >= 0)
    right = (positions == 0) | (known & np.isin(positions - truth.offset, (0, 1)))
    right[:, 0] |= truth.offset[:, 0] == UNKNOWN  # a row may begin inside a document
    if view.claimed_by == "positions":  # then the borders that do not restart are not there at all
        first[:, 1:] &= step[:, 1:] != 1
    shown = "boundaries by " + view.claimed_by if view.claimed_by else ""
    log.add_slots("positions-do-not-restart", first & ~right & real, shown)
    if truth.by == "documents":
        log.add_slots("positions-jump", inside & (step != 1) & (positions != 0))


def _check_labels(view: View, truth: Truth, targets: NDArray[np.int64], log: FaultLog) -> None:
    learns = targets != NO_TARGET
    follows = learns & (targets == view.next_tokens)
    inner = truth.continues
    wrong = learns & inner & ~follows
    if wrong.sum() > MOST * max(int((learns & inner).sum()), 1):
        after_next = np.full_like(targets, NO_TARGET)
        after_next[:, :-1] = view.next_tokens[:, 1:]
        itself, later = targets == view.tokens, targets == after_next
        for kind, where in (
            ("labels-not-shifted", wrong & itself),
            ("labels-shifted-twice", wrong & later),
        ):
            if where.sum() > MOST * wrong.sum():
                log.add_slots(kind, where)
                return
    log.add_slots("labels-wrong", wrong)
    # Documents shifted before they are packed: the last slot learns the last token, which is right.
    log.add_slots("labels-across-borders", follows & truth.crosses)
    padding = truth.document < 0
    behind = (truth.document >= 0) & (truth.next_document < 0) & follows
    behind[:, -1] = False  # the next token is in another row, and may be special
    in_padding = padding & (truth.next_document < 0)
    log.add_slots("padding-in-loss", behind | (learns & in_padding))
    if truth.by != "documents":
        return
    log.add_slots("prompts-in-loss", follows & inner & ~truth.loss)
    lost = ~learns & inner & truth.loss
    if not lost.any():
        return
    before = np.zeros(lost.shape, dtype=bool)  # the token at the slot carries loss
    before[:, 1:] = truth.loss[:, :-1]
    before[:, 0] = True
    starts = lost & ~before
    # Near a border of the document, or of its piece in the row.
    piece_ends = np.ones(lost.shape, dtype=bool)
    piece_ends[:, :-1] = ~inner[:, 1:]
    edges = lost & ~starts & ((truth.next_offset == 1) | piece_ends)
    others = lost & ~starts & ~edges
    if others.sum() > (starts | edges).sum():  # whole stretches, so that their edges are no sign
        log.add_slots("labels-lost", lost)
        return
    log.add_slots("answer-starts-lost", starts)
    log.add_slots("labels-lost-at-borders", edges)
    log.add_slots("labels-lost", others)
