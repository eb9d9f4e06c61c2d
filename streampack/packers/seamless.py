"""Seamless: long documents fill whole rows by overlapping them; short ones are packed tightly.

Steps:
  1. A document of l tokens has n = l // seq_len whole rows in it. If n >= 1 and
     - l is a multiple of seq_len: n rows;
     - the repetition allowed for n rows, ``floor(n * max_repetition * seq_len)`` tokens, suffices
       to stretch l to n + 1 rows: n + 1 rows, with n overlaps that add up to the difference. The
       overlaps are as equal as whole tokens allow, larger ones first, and the last row ends with
       the document;
     - otherwise n rows, and the remainder goes to step 2.
     Shorter documents go to step 2 whole.
  2. First-fit-decreasing into bins of ``seq_len + extra_capacity``. A bin of seq_len tokens or
     more is a row; tokens beyond seq_len, in placement order, are dropped and counted. With
     ``keep_tails=True`` they become short pieces instead, and step 2 is repeated with these pieces
     and the contents of bins below seq_len, until no bin has seq_len tokens.
  3. Bins below seq_len: with ``final=False`` rows that are not full, for the window to keep; with
     ``final=True`` joined, document by document in order of arrival, and cut every seq_len tokens.

Cost: O(documents log rows). Pads only the very last row; drops at most `extra_capacity` tokens of a
row and repeats at most the share `max_repetition` of a document's rows. Where documents are about
as long as a row, few tokens are dropped but many documents lose their tails: a quarter to two
fifths of manual pages, headers and Python files at rows of 2,048, for .2 to .9 % of the tokens.

The paper leaves some choices open. Here documents of equal length are placed in order of arrival; a
document of whole rows repeats nothing, although the inequality above would stretch it once
n * max_repetition >= 1; the remaining bins are joined in order of arrival.

Online: planning a document from the beginning of any of its rows, repeated tokens included, gives
the same cuts. The remaining overlaps are as equal as whole tokens allow, larger ones first, since
every tail of such a sequence has this property. And because the larger overlaps come first, the
remaining difference is within the repetition allowed for the remaining rows. So a window has to
keep only the tokens of a document from its first undelivered row on.

Source: "Improving Continual Pre-training Through Seamless Data Packing" (2025).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import is_number, whole_number
from streampack.documents.blocks import offsets_of
from streampack.errors import ConfigError
from streampack.packers.concat import cut_joined
from streampack.packing.choice import RowChoice
from streampack.packing.fit import greedy_fit
from streampack.packing.fit_decreasing import (
    BinPieces,
    Placed,
    decreasing_pieces,
    lay_out,
    lost_with,
)
from streampack.packing.overflow import checked_lengths, require_seq_len
from streampack.packing.packer import Packer
from streampack.packing.plan import Plan
from streampack.packing.request import Selection, WindowRequest
from streampack.packing.selection import fullest_rows

logger = logging.getLogger(__name__)

TAILS_LOST = 0.2  # share of a window's documents with dropped tails above which a warning is logged
_warned: set[int] = set()

#: Number of segments of each row, then the segments: row sizes, document, start, stop.
_Rows = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True, kw_only=True)
class Seamless(Packer):
    """Fills rows of long documents by overlap, and packs the rest first-fit with dropping.

    Args:
        seq_len: tokens per row.
        max_repetition: share of a document's whole rows that may be repeated, in [0, 1). A float
            is read as its printed decimal, so 0.3 is three tenths.
        extra_capacity: tokens that a bin of short pieces may hold beyond seq_len; they are dropped.
            By default ``round(seq_len / 41)``: 50 at 2048, as in the paper.
        mask_repeated: leave repeated tokens out of the loss (the paper includes them).
        keep_tails: pack tokens that would be dropped as short documents. Set it if documents are
            about as long as a row, where many of them lose their tails, which is logged.
        choice: `Balance` gives the batches of a step about equal work; None ignores costs.
    """

    seq_len: int
    max_repetition: float | Fraction = 0.3
    extra_capacity: int | None = None
    mask_repeated: bool = False
    keep_tails: bool = False
    choice: RowChoice | None = None

    _revision: ClassVar[int] = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "seq_len", require_seq_len(self.seq_len, self.overflow))
        if not is_number(self.max_repetition) or not 0 <= self.max_repetition < 1:
            raise ConfigError(
                f"max_repetition must be a share in [0, 1), got {self.max_repetition!r}.",
                "Use 0 to repeat nothing; the paper finds 0.3 best.",
                setting="max_repetition",
            )
        extra = whole_number("extra_capacity", self._extra, least=0, most=self.seq_len - 1)
        if self.extra_capacity is not None:
            object.__setattr__(self, "extra_capacity", extra)
        object.__setattr__(self, "seq_lens", (self.seq_len,))

    @property
    def _extra(self) -> int:
        return round(self.seq_len / 41) if self.extra_capacity is None else self.extra_capacity

    @property
    def _max_tokens_per_row(self) -> int:
        """Capacity of a bin, or the row length if nothing is dropped."""
        return self.seq_len + (0 if self.keep_tails else self._extra)

    def plan(self, lengths: NDArray[np.int64], *, final: bool, seed: int) -> Plan:
        """Pack the documents; `final` joins bins that are not full, `seed` has no effect."""
        lengths = checked_lengths(lengths)
        dropped = np.zeros(len(lengths), dtype=np.int64)
        slides = self.slides(lengths)
        sizes, document, start, stop, overlap = _whole_rows(lengths, slides, self.seq_len)
        parts = [(sizes, document, start, stop)]
        short, lost = self._short(lengths, slides, dropped, final)
        parts += short
        first = len(sizes)  # row of the first bin
        sizes, document, start, stop = map(np.concatenate, zip(*parts, strict=True))
        plan = Plan.plain(offsets_of(sizes), self.seq_len, document, start, stop, dropped)
        overlap = np.append(overlap, np.zeros(len(document) - len(overlap), dtype=np.int64))
        return replace(plan, overlap=overlap, dropped_with=np.where(lost >= 0, first + lost, -1))

    def slides(self, lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return (N,) bool: documents with these lengths (N,) that overlap to fill whole rows."""
        share = Fraction(str(self.max_repetition))
        whole, remainder = np.divmod(lengths, self.seq_len)
        if share == 0 or not len(lengths):
            return np.zeros(len(lengths), dtype=np.bool_)
        # From ceil(1 / share) rows on, any remainder can be stretched. Python's integers are exact.
        top = min(int(whole.max()), -(-share.denominator // share.numerator))
        allowed = [
            min(rows * share.numerator * self.seq_len // share.denominator, self.seq_len)
            for rows in range(top + 1)
        ]
        needed = self.seq_len - remainder
        enough = np.array(allowed, dtype=np.int64)[np.minimum(whole, top)] >= needed
        return np.asarray((whole > 0) & (remainder > 0) & enough)

    def plan_window(self, request: WindowRequest) -> Selection:
        """Plan everything and select the fullest rows, as far as possible only full ones.

        If a row that is not full must go, the window is planned with ``final=True``, which leaves
        at most one such row. It goes last at the end of a run and waits otherwise: no row is
        selected while the window is growing and has only one batch.
        """
        lengths = request.lengths
        if request.in_part and self.slides(request.remaining[-1:])[0]:
            lengths = request.remaining  # the overlaps of rows depend on the full length
        selection = self._choose(lengths, request, final=request.final)
        plan, rows = selection.plan, selection.rows
        losing, documents = int((plan.dropped > 0).sum()), int((lengths > 0).sum())
        if not request.growing and losing > TAILS_LOST * documents:
            _warn_of_tails(self.seq_len, 100 * losing // documents)
        short = _not_full(selection)
        if request.final:
            rows = rows[np.argsort(short, kind="stable")]
            return Selection.in_batches(plan, rows, request.rows_per_batch)
        if not short.any():
            return selection
        selection = self._choose(lengths, request, final=True)
        plan, rows = selection.plan, selection.rows
        if len(rows) > request.rows_per_batch or not request.growing:
            return selection
        waits = request.rounds_left[plan.document[plan.row_offsets[rows]]] > 0
        if not (_not_full(selection) & waits).any():
            return selection
        return Selection.in_batches(plan, rows[:0], request.rows_per_batch)

    def _choose(
        self, lengths: NDArray[np.int64], request: WindowRequest, *, final: bool
    ) -> Selection:
        plan = self.plan(lengths, final=final, seed=request.seed)
        return fullest_rows(plan, request, min_fill=1.0)

    def _short(
        self,
        lengths: NDArray[np.int64],
        slides: NDArray[np.bool_],
        dropped: NDArray[np.int64],
        final: bool,
    ) -> tuple[list[_Rows], NDArray[np.int64]]:
        """Run steps 2 and 3, and add dropped tokens to `dropped`.

        Returns:
            The rows, and (N,) int64 the row in which a document's piece is lost whole, or -1.
        """
        tails = np.where(slides, 0, lengths % self.seq_len)
        parts: list[_Rows] = []
        while True:
            document, start, size = np.empty((3, len(tails)), dtype=np.int64)
            count = decreasing_pieces(tails, self.seq_len, document, start, size)
            document, size = document[:count], size[:count]
            bins, links = np.empty(count, dtype=np.int64), np.empty(3 * count, dtype=np.int32)
            links, rooms = links[count:], links[:count]
            count = greedy_fit(size, self.seq_len + self._extra, 0, 1, bins, links, rooms)
            pieces = BinPieces(bins, document, lengths[document] - size, size)
            totals = np.zeros(count, dtype=np.int64)
            np.add.at(totals, bins, size)
            full = totals >= self.seq_len
            inside = document[full[bins]]
            beyond = np.zeros(len(lengths), dtype=np.int64)
            parts.append(self._rows_of(pieces, full, beyond))
            if not self.keep_tails or not full.any():
                break
            tails = tails.copy()
            tails[inside] = beyond[inside]
        dropped += beyond
        lost = np.full(len(lengths), -1, dtype=np.int64)
        if not self.keep_tails:
            lost_with(pieces, count, self.seq_len, lost)
            lost = np.where(lost >= 0, np.cumsum(full)[lost] - 1 if count else -1, -1)
        if final:
            parts.append(self._joined(lengths, tails, np.sort(document[~full[bins]])))
        else:
            parts.append(self._rows_of(pieces, ~full, dropped))
        return parts, lost

    def _joined(
        self, lengths: NDArray[np.int64], tails: NDArray[np.int64], left: NDArray[np.int64]
    ) -> _Rows:
        """Join the last `tails` (N,) tokens of the documents `left` and cut them into rows."""
        joined = tails[left]
        rows = -(-int(joined.sum()) // self.seq_len)
        order = np.arange(rows, dtype=np.int64)
        offsets, index, low, high = cut_joined(joined, self.seq_len, self.seq_len, order)
        begin = lengths[left] - joined
        return np.diff(offsets), left[index], begin[index] + low, begin[index] + high

    def _rows_of(
        self, pieces: BinPieces, chosen: NDArray[np.bool_], dropped: NDArray[np.int64]
    ) -> _Rows:
        """Return the rows of the `chosen` bins (B,)."""
        bins, *columns = pieces
        inside = chosen[bins]
        number, count = np.cumsum(chosen) - 1, int(chosen.sum())
        pieces = BinPieces(number[bins[inside]], *(column[inside] for column in columns))
        used, row_offsets = np.empty((2, count + 1), dtype=np.int64)
        placed = Placed(row_offsets, np.empty((3, len(pieces.bins)), dtype=np.int64), dropped)
        segments = lay_out(pieces, count, self.seq_len, used, placed)
        document, start, stop = placed.columns[:, :segments]
        return np.diff(row_offsets), document, start, stop

    def describe(self) -> dict[str, Any]:
        """Return class, parameters and algorithm revision."""
        return {
            "kind": "Seamless",
            "revision": self._revision,
            "seq_len": self.seq_len,
            "max_repetition": str(Fraction(str(self.max_repetition))),
            "extra_capacity": self._extra,
            "mask_repeated": self.mask_repeated,
            **({"keep_tails": True} if self.keep_tails else {}),
        }


def _warn_of_tails(seq_len: int, percent: int) -> None:
    """Log the share of dropped tails, once per row length in a process."""
    if seq_len in _warned:
        return
    _warned.add(seq_len)
    logger.warning(
        "Seamless drops the tails of %d %% of the documents in a window, since many are about as "
        "long as a row of %d tokens; keep_tails=True packs the tails as short documents.",
        percent,
        seq_len,
    )


def _not_full(selection: Selection) -> NDArray[np.bool_]:
    """Return (E,) bool: selected rows that are not full."""
    plan, rows = selection.plan, selection.rows
    return plan.row_fill()[rows] < plan.seq_len[rows]


def _whole_rows(
    lengths: NDArray[np.int64], slides: NDArray[np.bool_], seq_len: int
) -> tuple[NDArray[np.int64], ...]:
    """Run step 1: row sizes (all 1), document, start, stop and overlap of every row, int64."""
    whole, remainder = np.divmod(lengths, seq_len)
    rows = whole + slides.astype(np.int64)
    repeated = np.where(slides, seq_len - remainder, 0)
    each, larger = np.divmod(repeated, np.maximum(whole, 1))
    document = np.repeat(np.arange(len(lengths), dtype=np.int64), rows)
    number = np.arange(len(document), dtype=np.int64) - offsets_of(rows)[document]
    each, larger = each[document], larger[document]
    start = number * (seq_len - each) - np.minimum(number, larger)
    overlap = np.where(number > 0, each + (number <= larger), 0)
    return np.ones_like(document), document, start, start + seq_len, overlap
