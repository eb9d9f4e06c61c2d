"""Pad: one document piece per atom, the rest of the atom padding.

Steps:
  1. The overflow policy. Under "split" a document longer than an atom is cut: while more than
     `atom` tokens remain, a piece takes ``atom - 1`` of them and an inserted EOS ends it; the
     remaining tokens are the last piece, ended by the document's own EOS if it has one.
  2. A last piece is padded to `atom` if that is at most a row, otherwise to the next whole row, so
     that no row consists of padding.
  3. Shuffle the pieces with the seed. The pieces of one document keep their order, so that rows
     never wait for one another in a circle.
  4. Merge pieces, or split them, into rows of seq_len.

Online a batch may end inside a piece longer than a row. The rest of that piece then comes first and
keeps its end, because the window reports the delivered tokens of the document.

Cost: O(pieces log pieces). Keeps every token. With atoms of a row or more, no row has tokens of two
documents. Most of a row is padding where documents are short.

Source: "Refining Packing and Shuffling Strategies for Enhanced Performance in Generative Language
Models".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import offsets_of
from streampack.errors import ConfigError
from streampack.packing.choice import RowChoice
from streampack.packing.overflow import Overflow, limit_lengths, require_atom, require_seq_len
from streampack.packing.packer import Packer
from streampack.packing.plan import Plan
from streampack.packing.request import Selection, WindowRequest
from streampack.packing.rng import permutation
from streampack.packing.selection import rows_in_order


@dataclass(frozen=True, kw_only=True)
class Pad(Packer):
    """Pads every piece of a document to an atom of its own.

    Args:
        seq_len: tokens per row.
        overflow: policy for documents longer than a row.
        atom: slots per piece, a divisor or a multiple of seq_len and at least 2, one of which the
            EOS of a cut takes; by default seq_len. Smaller atoms pad less and share rows.
        choice: `Balance` gives the batches of a step about equal work; None ignores costs.
    """

    seq_len: int
    overflow: Overflow = "split"
    atom: int | None = None
    choice: RowChoice | None = None

    _revision: ClassVar[int] = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "seq_len", require_seq_len(self.seq_len, self.overflow))
        if self.atom is not None:
            object.__setattr__(self, "atom", require_atom(self.atom, self.seq_len))
        if self.atom == 1:
            raise ConfigError(
                f"atom must be at least 2, got 1 with seq_len={self.seq_len}.",
                "Use a larger atom, or Concat, which accepts 1.",
                setting="atom",
            )
        object.__setattr__(self, "seq_lens", (self.seq_len,))
        object.__setattr__(self, "keeps_whole", self._atom >= self.seq_len)
        cuts = self.overflow == "split" or not self.keeps_whole
        object.__setattr__(self, "inserts_eos", cuts)  # only cuts insert an EOS

    @property
    def _atom(self) -> int:
        return self.seq_len if self.atom is None else self.atom

    def plan(self, lengths: NDArray[np.int64], *, final: bool, seed: int) -> Plan:
        """Cut, pad and shuffle; `seed` determines the order of the pieces."""
        delivered = np.zeros(len(lengths), dtype=np.int64)
        return self._plan_tails(lengths, delivered, final=final, seed=seed)

    def plan_window(self, request: WindowRequest) -> Selection:
        """Plan the tail of each document; rows go in the order of the plan, which is shuffled.

        A document held in part is planned one piece beyond the tokens held, as if it ended there;
        with atoms longer than a row, two pieces.
        """
        lengths = request.lengths
        if request.in_part:
            remaining, held = int(request.remaining[-1]), int(request.held[-1])
            lengths = lengths.copy()
            if self._atom > self.seq_len:
                lengths[-1] = min(remaining, held + 2 * self._atom)
            else:
                lengths[-1] = held // (self._atom - 1) * (self._atom - 1) + self._atom
        plan = self._plan_tails(lengths, request.delivered, final=request.final, seed=request.seed)
        return rows_in_order(plan, request)

    def _plan_tails(
        self,
        lengths: NDArray[np.int64],
        delivered: NDArray[np.int64],
        *,
        final: bool,
        seed: int,
    ) -> Plan:
        """Plan the tails of documents (N,) after their `delivered` tokens (N,).

        With ``final=False`` the last piece of the last document comes last, in the row that may
        lack atoms: the window may not hold it to its end, and it would block the other pieces of
        its row.
        """
        kept, dropped = limit_lengths(lengths, self.seq_len, self.overflow)
        gone = delivered % (self._atom - 1)  # delivered tokens of the current piece
        document, start, stop, insert_eos = _pieces(kept, gone, self._atom)
        order = permutation(len(document) - (not final and len(document) > 0), seed)
        order = np.append(order, np.arange(len(order), len(document)))
        if gone.any():
            begun = (start == 0) & (gone[document] > 0)
            order = order[np.argsort(~begun[order], kind="stable")]
        if self._atom < self.seq_len:
            order = _in_document_order(order, document)
        document, start, stop = document[order], start[order], stop[order]
        insert_eos = insert_eos[order]
        if self._atom > self.seq_len:
            document, start, stop, insert_eos = _split(
                document, start, stop, insert_eos, self.seq_len
            )
        segments = len(document)
        width = min(self._atom, self.seq_len)
        per_row = self.seq_len // width
        rows = -(-segments // per_row)
        row_offsets = np.minimum(np.arange(rows + 1, dtype=np.int64) * per_row, segments)
        plan = Plan.plain(row_offsets, self.seq_len, document, start, stop, dropped)
        gaps = width - (stop - start) - insert_eos
        return replace(plan, insert_eos=insert_eos, pad_after=gaps)

    def describe(self) -> dict[str, Any]:
        """Return class, parameters and algorithm revision."""
        return {**self._described("seq_len", "overflow"), "atom": self._atom}


_Pieces = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]


def _pieces(lengths: NDArray[np.int64], gone: NDArray[np.int64], atom: int) -> _Pieces:
    """Return document, start, stop and inserted EOS of every piece, in order of arrival.

    `lengths` excludes the first `gone` tokens of a document's first piece, which has more.
    """
    body = atom - 1
    whole = lengths + gone
    cuts = np.maximum(-(-(whole - atom) // body), 0)  # pieces ended by an inserted EOS
    pieces = np.where(lengths > 0, cuts + 1, 0)
    document = np.repeat(np.arange(len(lengths), dtype=np.int64), pieces)
    number = np.arange(len(document), dtype=np.int64) - offsets_of(pieces)[document]
    insert_eos = number < cuts[document]
    start = number * body - gone[document]
    stop = np.where(insert_eos, start + body, lengths[document])
    return document, np.maximum(start, 0), stop, insert_eos


def _in_document_order(order: NDArray[np.int64], document: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return `order` with each document's pieces sorted within the positions they occupy."""
    places = np.argsort(document[order], kind="stable")  # document by document, ascending
    arranged = np.empty_like(order)
    arranged[places] = np.arange(len(order), dtype=np.int64)  # pieces lie document by document
    return arranged


def _split(
    document: NDArray[np.int64],
    start: NDArray[np.int64],
    stop: NDArray[np.int64],
    insert_eos: NDArray[np.bool_],
    seq_len: int,
) -> _Pieces:
    """Split pieces longer than a row into parts of one row, in order; no part is only an EOS."""
    parts = -(-(stop - start + insert_eos) // seq_len)
    piece = np.repeat(np.arange(len(document), dtype=np.int64), parts)
    number = np.arange(len(piece), dtype=np.int64) - offsets_of(parts)[piece]
    last = number == parts[piece] - 1
    begin = start[piece] + number * seq_len
    end = np.where(last, stop[piece], np.minimum(begin + seq_len, stop[piece] - 1))
    return document[piece], np.minimum(begin, stop[piece] - 1), end, insert_eos[piece] & last
