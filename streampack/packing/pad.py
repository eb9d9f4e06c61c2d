"""Pad: one document piece per atom, the rest of the atom padding.

Steps:
  1. The overflow policy. Under "split" a document longer than an atom is cut: while more than
     `atom` tokens remain, a piece takes ``atom - 1`` of them and an inserted EOS ends it; what
     remains is the last piece, ended by the document's own EOS if it has one.
  2. A last piece is padded to `atom` where that is a row or less, otherwise to the next whole row,
     so that no row is padding alone.
  3. Shuffle the pieces with the seed. The pieces of a document stay in order among the places they
     get, so that rows do not wait for one another in circles.
  4. Merge pieces, or split them, into rows of seq_len.

Online a batch may end inside a piece longer than a row. The rest of that piece then comes first,
and ends where it would have ended, because the window says how much of the document was delivered.

Cost: O(pieces log pieces). Keeps every token. With atoms of a row or more, no row has tokens of two
documents. Most of a row is padding where documents are short.

Source: "Refining Packing and Shuffling Strategies for Enhanced Performance in Generative Language
Models".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import offsets_of
from streampack.errors import ConfigError
from streampack.packing.overflow import Overflow, limit_lengths, require_atom, require_seq_len
from streampack.packing.packer import Packer
from streampack.packing.plan import Plan
from streampack.packing.request import Selection, WindowRequest
from streampack.packing.rng import permutation
from streampack.packing.selection import rows_in_order


@dataclass(frozen=True, kw_only=True)
class Pad(Packer):
    """One piece of a document per atom.

    Args:
        seq_len: tokens per row.
        overflow: what happens to documents longer than a row.
        atom: slots of a piece; it divides seq_len or is a multiple of it, and is
            at least 2, of which the EOS of a cut takes one. None is seq_len.
        balance: "attention" gives every rank batches whose attention costs about the same in each
            step of a run; None goes by no costs.
    """

    seq_len: int
    overflow: Overflow = "split"
    atom: int | None = None
    balance: Literal["attention"] | None = None

    revision: ClassVar[int] = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "seq_len", require_seq_len(self.seq_len, self.overflow))
        if self.atom is not None:
            object.__setattr__(self, "atom", require_atom(self.atom, self.seq_len))
        if self.atom == 1:
            raise ConfigError(
                f"atom is 1 for seq_len {self.seq_len}.",
                "Use an atom of at least 2; Concat takes one of 1.",
                setting="atom",
            )
        object.__setattr__(self, "seq_lens", (self.seq_len,))
        object.__setattr__(self, "keeps_whole", self._atom >= self.seq_len)
        cuts = self.overflow == "split" or not self.keeps_whole
        object.__setattr__(self, "inserts_eos", cuts)  # only a cut needs one

    @property
    def _atom(self) -> int:
        return self.seq_len if self.atom is None else self.atom

    def plan(self, lengths: NDArray[np.int64], *, final: bool, seed: int) -> Plan:
        """Cut, pad and shuffle; the seed orders the pieces."""
        delivered = np.zeros(len(lengths), dtype=np.int64)
        return self._plan_tails(lengths, delivered, final=final, seed=seed)

    def plan_window(self, request: WindowRequest) -> Selection:
        """Plan what is left of each document; rows go in the order of the plan, which is shuffled.

        Of a document held in part, one piece more than is held is planned, which is its last one;
        with atoms longer than a row, the next two.
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
        """Plan what is left of documents (N,) of which `delivered` tokens (N,) have gone.

        With ``final=False`` the last piece of the last document goes last, in the row that may
        lack atoms: the window may not hold it to its end, and it would hold back the rest of its
        row.
        """
        kept, dropped = limit_lengths(lengths, self.seq_len, self.overflow)
        gone = delivered % (self._atom - 1)  # tokens of the piece that was begun
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
        """Class, parameters and algorithm revision."""
        return {**self._described("seq_len", "overflow"), "atom": self._atom}


_Pieces = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]


def _pieces(lengths: NDArray[np.int64], gone: NDArray[np.int64], atom: int) -> _Pieces:
    """Document, start, stop and inserted EOS of every piece, in order of arrival.

    The first `gone` tokens of a document's first piece, fewer than it has, are not in `lengths`.
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
    """The same order, with the pieces of each document ascending in the places they have."""
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
    """Pieces longer than a row as parts of a row each, in order; none has an EOS alone."""
    parts = -(-(stop - start + insert_eos) // seq_len)
    piece = np.repeat(np.arange(len(document), dtype=np.int64), parts)
    number = np.arange(len(piece), dtype=np.int64) - offsets_of(parts)[piece]
    last = number == parts[piece] - 1
    begin = start[piece] + number * seq_len
    end = np.where(last, stop[piece], np.minimum(begin + seq_len, stop[piece] - 1))
    return document[piece], np.minimum(begin, stop[piece] - 1), end, insert_eos[piece] & last
