"""Limits of the hardware: copying the bytes of full batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from benchmarks.protocol import Counts, Timed, WrongOutputError

__all__ = ["BYTES_PER_SLOT", "CopyingThroughMemory"]

#: input_ids, position_ids and labels are int64, document_ids is int32.
BYTES_PER_SLOT = 28


class CopyingThroughMemory(Timed):
    """The denominator of every ratio "x copying"."""

    label = "copying, through memory"
    settings = "numpy.copyto of 256 MiB blocks, warm to warm"
    delivers = "28 bytes per slot"
    block_slots: ClassVar[int] = (256 << 20) // BYTES_PER_SLOT

    def prepare(self) -> None:
        """Touch every page of both blocks."""
        size = self.block_slots * BYTES_PER_SLOT
        self.source = np.random.default_rng(0).integers(0, 255, size, np.uint8)
        self.target = self.source[::-1].copy()
        self.blocks = -(-self.workload.num_tokens // self.block_slots)

    def batches(self) -> Iterator[None]:
        """One block at a time."""
        for _ in range(self.blocks):
            np.copyto(self.target, self.source)
            yield None

    def check(self) -> Counts:
        """The destination is the source."""
        next(self.batches())
        if not np.array_equal(self.source, self.target):
            raise WrongOutputError("numpy.copyto did not copy.")
        return Counts(slots=self.blocks * self.block_slots, tokens=self.blocks * self.block_slots)
