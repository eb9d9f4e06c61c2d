"""Concat: documents joined in order of arrival and cut every seq_len tokens.

Steps:
  1. The overflow policy ("split" changes nothing: the cut does it).
  2. Cut the joined stream every `atom` tokens.
  3. Shuffle the atoms with the seed; a short last atom stays last.
  4. Merge atoms, or split them, into rows of seq_len.
With ``restart=True`` `cut_and_restart` replaces steps 2 to 4, and its rows are shuffled.

Cost: O(documents + atoms + rows). Keeps every token and pads only the very last row; cuts documents
wherever an atom or a row happens to end.

Source: "Refining Packing and Shuffling Strategies for Enhanced Performance in Generative Language
Models", which finds atoms of exactly one row, the default, to be best.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel_of
from streampack.documents.blocks import offsets_of, ranges_of
from streampack.errors import ConfigError
from streampack.packing.choice import RowChoice
from streampack.packing.overflow import Overflow, limit_lengths, require_atom, require_seq_len
from streampack.packing.packer import Packer
from streampack.packing.plan import Plan
from streampack.packing.request import Selection, WindowRequest
from streampack.packing.rng import permutation
from streampack.packing.selection import all_rows


@kernel_of(lambda lengths, _, seq_len: 20 * lengths.size + 10 * lengths.sum() / seq_len)
def cut_and_restart(
    lengths: NDArray[np.int64], restarts: NDArray[np.bool_], seq_len: int
) -> tuple[
    NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]
]:
    """Cut rows in order of arrival; a cut document restarts in the next row.

    Steps:
      1. Documents follow one another, and a row ends after seq_len tokens.
      2. A document that would fit a row and is cut by the end of one restarts from its first token
         in the next row, which holds all of it. Longer documents are only cut.

    Every row begins with a document's first token, except for rows inside documents longer than a
    row. The price is repetition (`PackingStats.repeated`): the head of one document for nearly
    every row, half a document of average length, more where documents are long.

    Source: no paper; repeating the cut document is an old remedy for its lost context.

    Args:
        lengths: (N,) int64, tokens of each document.
        restarts: (N,) bool, documents that restart if they fit a row.
        seq_len: tokens per row.

    Returns:
        Row offsets (R + 1,), and per segment its document, start, stop and overlap, all int64.
    """
    bound = 2 * lengths.sum() // seq_len + 1  # a token is placed at most twice
    row_offsets = np.zeros(bound + 1, dtype=np.int64)
    segments = 2 * len(lengths) + bound
    document, start = np.empty(segments, np.int64), np.empty(segments, np.int64)
    stop, overlap = np.empty(segments, np.int64), np.empty(segments, np.int64)
    k = 0
    rows = 0
    room = seq_len
    for i in range(len(lengths)):
        at = 0
        repeated = 0
        while at < lengths[i]:
            taken = min(room, lengths[i] - at)
            document[k] = i
            start[k] = at
            stop[k] = at + taken
            overlap[k] = repeated
            k += 1
            at += taken
            room -= taken
            repeated = 0
            if room == 0:
                rows += 1
                row_offsets[rows] = k
                room = seq_len
                if at < lengths[i] <= seq_len and restarts[i]:
                    repeated, at = at, 0
    if room < seq_len:
        rows += 1
        row_offsets[rows] = k
    return row_offsets[: rows + 1], document[:k], start[:k], stop[:k], overlap[:k]


@dataclass(frozen=True, kw_only=True)
class Concat(Packer):
    """Concatenates documents and cuts the stream every `seq_len` tokens.

    Args:
        seq_len: tokens per row.
        overflow: policy for documents longer than a row.
        atom: tokens that stay together when the stream is shuffled; a divisor or a multiple of
            seq_len, by default seq_len. Smaller atoms mix more and cut more documents.
        restart: repeat a document in the next row if it is cut and would fit a row. Repeated tokens
            count twice in the loss. Cannot be combined with `atom`.
        choice: `Balance` gives the batches of a step about equal work; None ignores costs.
            Cannot be combined with `restart`.
    """

    seq_len: int
    overflow: Overflow = "split"
    atom: int | None = None
    restart: bool = False
    choice: RowChoice | None = None

    _revision: ClassVar[int] = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "seq_len", require_seq_len(self.seq_len, self.overflow))
        if self.atom is not None:
            object.__setattr__(self, "atom", require_atom(self.atom, self.seq_len))
        if self.restart and self.atom is not None:
            raise ConfigError(
                f"restart=True cannot be combined with atom, got atom={self.atom}.",
                "Leave out one of them.",
                setting="restart",
            )
        if self.restart and self.choice is not None:
            raise ConfigError(
                f"restart=True cannot be combined with choice, got choice={self.choice!r:.80}.",
                "Leave out one of them.",
                setting="restart",
            )
        object.__setattr__(self, "seq_lens", (self.seq_len,))
        object.__setattr__(self, "keeps_order", self._atom >= self.seq_len)

    @property
    def _atom(self) -> int:
        return self.seq_len if self.atom is None else self.atom

    def plan(self, lengths: NDArray[np.int64], *, final: bool, seed: int) -> Plan:
        """Join, cut and shuffle; `seed` determines the order of the atoms."""
        if self.restart:
            plan = self._restarting(lengths, np.zeros_like(lengths))
            return _in_order(plan, _shuffled(plan.num_rows, plan, seed))
        kept, dropped = limit_lengths(lengths, self.seq_len, self.overflow)
        order = permutation(int(kept.sum()) // self._atom, seed)
        row_offsets, document, start, stop = cut_joined(kept, self.seq_len, self._atom, order)
        return Plan.plain(row_offsets, self.seq_len, document, start, stop, dropped)

    def plan_window(self, request: WindowRequest) -> Selection:
        """Plan the oldest tokens that make whole batches, and let all of their rows go.

        No row stays behind: consecutive atoms share a document, so rows of shuffled atoms could
        wait for one another in a circle.
        """
        if self.restart:
            return self._oldest_rows(request)
        lengths = request.lengths
        if not request.final:
            held = np.minimum(lengths, request.held)
            most = int(held.sum()) // request.batch_tokens * request.batch_tokens
            before = np.cumsum(held) - held
            lengths = np.minimum(np.maximum(most - before, 0), held)
        plan = self.plan(lengths, final=request.final, seed=request.seed)
        return all_rows(plan, request)

    def _restarting(self, lengths: NDArray[np.int64], delivered: NDArray[np.int64]) -> Plan:
        """Plan rows in order of arrival; a document that is partly delivered does not restart."""
        kept, dropped = limit_lengths(lengths, self.seq_len, self.overflow)
        columns = cut_and_restart(kept, delivered == 0, self.seq_len)
        row_offsets, document, start, stop, overlap = columns
        plan = Plan.plain(row_offsets, self.seq_len, document, start, stop, dropped)
        return replace(plan, overlap=overlap)

    def _oldest_rows(self, request: WindowRequest) -> Selection:
        """Select the first rows that the window holds and that fill whole batches, shuffled."""
        plan = self._restarting(request.lengths, request.delivered)
        count, each = plan.num_rows, request.rows_per_batch
        if not request.final:
            missing = plan.stop > request.held[plan.document]
            full = plan.row_fill() == self.seq_len
            waits = np.maximum.reduceat(missing, plan.row_offsets[:-1]) | ~full
            count = int(np.argmax(waits)) if waits.any() else count
            count = count // each * each
        return Selection.in_batches(plan, _shuffled(count, plan, request.seed), each)

    def describe(self) -> dict[str, Any]:
        """Return class, parameters and algorithm revision."""
        restart = {"restart": True} if self.restart else {}
        return {**self._described("seq_len", "overflow"), "atom": self._atom, **restart}


def _in_order(plan: Plan, rows: NDArray[np.int64]) -> Plan:
    """Return the plan with its rows in the order `rows` (R,)."""
    sizes = np.diff(plan.row_offsets)[rows]
    index = ranges_of(plan.row_offsets[rows], sizes)
    return replace(
        plan,
        row_offsets=offsets_of(sizes),
        document=plan.document[index],
        start=plan.start[index],
        stop=plan.stop[index],
        overlap=plan.overlap[index],
    )


def _shuffled(count: int, plan: Plan, seed: int) -> NDArray[np.int64]:
    """Return the first `count` rows in seeded random order, a row that is not full last."""
    rows = np.arange(count, dtype=np.int64)
    full = count - int(count > 0 and plan.row_fill()[count - 1] < plan.seq_len[count - 1])
    rows[:full] = permutation(full, seed)
    return rows


def cut_joined(
    lengths: NDArray[np.int64], seq_len: int, atom: int, order: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Cut rows from the joined stream after reordering its atoms.

    Args:
        lengths: (N,) int64, tokens of each document.
        seq_len: tokens per row; atom: tokens per atom, a divisor or a multiple of it.
        order: (A,) int64, order of the whole atoms; a short last atom follows them.

    Returns:
        Row offsets (R + 1,), and per segment its document, start and stop, all int64. Segments
        adjacent both in a row and in their document are merged.
    """
    ends = np.cumsum(lengths)
    total = int(lengths.sum())
    # Segments in the order of the joined stream, then the position of each after the shuffle.
    low = np.union1d(np.arange(0, total, min(atom, seq_len)), ends[ends < total])
    high = np.append(low[1:], total) if total else low
    place = np.arange(-(-total // atom), dtype=np.int64)
    place[order] = np.arange(len(order))
    at = place[low // atom] * atom + low % atom
    turn = np.argsort(at)
    low, high, row = low[turn], high[turn], at[turn] // seq_len
    document = np.searchsorted(ends, low, side="right")
    begins = np.ones(len(low), dtype=np.bool_)
    begins[1:] = (np.diff(row) > 0) | (np.diff(document) != 0) | (low[1:] != high[:-1])
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(low))[: len(first)] - 1
    before = (ends - lengths)[document[first]]
    row_offsets = offsets_of(np.bincount(row[first], minlength=-(-total // seq_len)))
    return row_offsets, document[first], low[first] - before, high[last] - before
