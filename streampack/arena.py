"""Arena: the tokens of a window's documents, end to end in one array that is used again and again.

Tokens keep the width of the widest ids seen so far, and a loss mask is kept only once a document
has brought one. Cost: every token is copied once when it comes and once per round that it stays.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streampack.documents import Documents, gather_ragged, offsets_of

__all__ = ["Arena"]


class Arena:
    """Tokens of documents that come at the end and go from anywhere.

    Args:
        expected: tokens it will hold at most in the usual course; it grows up to there by doubling,
            and beyond as needed.

    Attributes:
        tokens: (capacity,) uint16 or uint32; the first `used` are held.
        loss_mask: (capacity,) bool, or None while every token counts.
        used: tokens held.
    """

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self.tokens: NDArray[np.generic] = np.empty(0, dtype=np.uint16)
        self.loss_mask: NDArray[np.bool_] | None = None
        self.used = 0
        self._spare: NDArray[np.generic] = self.tokens

    def append(
        self, documents: Documents, starts: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> None:
        """Copy slices of a block to the end.

        Args:
            documents: the block.
            starts: (N,) int64, where the slices begin in the block's token array.
            counts: (N,) int64, tokens of each.
        """
        if not len(counts):
            return
        offsets = offsets_of(counts) + self.used
        total = int(offsets[-1]) - self.used
        self._reserve(documents, total)
        mask = documents.loss_mask
        if total == int(starts[-1] + counts[-1] - starts[0]):  # contiguous: one copy
            begin = int(starts[0])
            self.tokens[self.used : self.used + total] = documents.tokens[begin : begin + total]
            if self.loss_mask is not None:
                self.loss_mask[self.used : self.used + total] = (
                    True if mask is None else mask[begin : begin + total]
                )
        else:
            gather_ragged(documents.tokens, starts, offsets, self.tokens)
            if self.loss_mask is not None:
                if mask is None:
                    self.loss_mask[self.used : self.used + total] = True
                else:
                    gather_ragged(mask, starts, offsets, self.loss_mask)
        self.used += total

    def keep(self, positions: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """Move slices to the front, in the order given, and let go of everything else.

        Args:
            positions: (N,) int64, where the slices begin; counts: (N,) int64, tokens of each.
        """
        offsets = offsets_of(counts)
        if len(self._spare) < len(self.tokens) or self._spare.dtype != self.tokens.dtype:
            self._spare = np.empty_like(self.tokens)
        gather_ragged(self.tokens, positions, offsets, self._spare)
        self.tokens, self._spare = self._spare, self.tokens
        if self.loss_mask is not None:
            mask = np.empty(len(self.tokens), dtype=np.bool_)
            gather_ragged(self.loss_mask, positions, offsets, mask)
            self.loss_mask = mask
        self.used = int(offsets[-1])

    def _reserve(self, documents: Documents, more: int) -> None:
        """Make room for `more` tokens of this block's dtype, and for a mask if it has one."""
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
