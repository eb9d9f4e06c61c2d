"""Pad: one document piece per row, the rest of the row padding.

Steps:
  1. The overflow policy. Under "split" a document longer than a row is cut: while more than
     seq_len tokens remain, a piece takes seq_len - 1 of them and an inserted EOS ends it; what
     remains is the last piece, ended by the document's own EOS if it has one.
  2. Every piece is a row of its own; the rows are shuffled with the seed.

Cost: O(pieces). Keeps every token and mixes no two documents; pays with padding, which is most of
the row where documents are short.

Source: "Refining Packing and Shuffling Strategies for Enhanced Performance in Generative Language
Models".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampack.packing.packer import Overflow, limit_lengths, require_seq_len
from streampack.packing.plan import Plan
from streampack.packing.rng import permutation

__all__ = ["Pad"]


@dataclass(frozen=True, kw_only=True)
class Pad:
    """One piece of a document per row.

    Args:
        seq_len: tokens per row.
        overflow: what happens to documents longer than a row.
    """

    seq_len: int
    overflow: Overflow = "split"

    carries: ClassVar[bool] = False
    revision: ClassVar[int] = 1

    def __post_init__(self) -> None:
        require_seq_len(self.seq_len, self.overflow)

    @property
    def seq_lens(self) -> tuple[int, ...]:
        """``(seq_len,)``."""
        return (self.seq_len,)

    @property
    def inserts_eos(self) -> bool:
        """Only a cut needs one."""
        return self.overflow == "split"

    def plan(self, lengths: NDArray[np.int64], *, final: bool, seed: int) -> Plan:
        """One row per piece; the seed orders the rows."""
        kept, dropped = limit_lengths(lengths, self.seq_len, self.overflow)
        body = self.seq_len - 1
        cuts = np.maximum(-(-(kept - self.seq_len) // body), 0)  # pieces ended by an inserted EOS
        pieces = np.where(kept > 0, cuts + 1, 0)
        document = np.repeat(np.arange(len(kept), dtype=np.int64), pieces)
        firsts = np.cumsum(pieces) - pieces
        number = np.arange(len(document), dtype=np.int64) - firsts[document]
        start = number * body
        insert_eos = number < cuts[document]
        stop = np.where(insert_eos, start + body, kept[document])
        order = permutation(len(document), seed)
        return Plan(
            row_offsets=np.arange(len(document) + 1, dtype=np.int64),
            seq_len=np.full(len(document), self.seq_len, dtype=np.int32),
            document=document[order],
            start=start[order],
            stop=stop[order],
            overlap=np.zeros(len(document), dtype=np.int64),
            insert_eos=insert_eos[order],
            pad_after=np.zeros(len(document), dtype=np.int64),
            dropped=dropped,
        )

    def describe(self) -> dict[str, Any]:
        """Class, parameters and algorithm revision."""
        return {
            "kind": "Pad",
            "revision": self.revision,
            "seq_len": self.seq_len,
            "overflow": self.overflow,
        }
