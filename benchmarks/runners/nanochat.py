"""nanochat's best-fit crop, in plain Python: our implementation of the algorithm.

nanochat is no library to install; its data loader's algorithm, as published, is this: keep a
buffer of documents; start every row with the rule that the largest buffered document that fits
the room goes in; when none fits, crop the shortest one to fill the row exactly, and drop the rest
of it. Rows are always full; what is cropped is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.protocol import SEQ_LEN, Counts, Timed, WrongOutputError

__all__ = ["BestFitCropInPython"]

BUFFER = 1_000  # documents, as published


class BestFitCropInPython(Timed):
    """The algorithm over documents in memory."""

    label = "best-fit crop (nanochat's algorithm, plain Python)"
    settings = f"a buffer of {BUFFER:,} documents, as published; our own code"
    delivers = "ids int64: 8 bytes per slot, no positions or boundaries"

    def batches(self) -> Iterator[Any]:
        """One row at a time; `self.used` counts documents that went in, `self.cropped` crops."""
        documents = iter(self.workload.documents)
        buffer: list[Any] = []
        self.used = self.cropped = 0
        while True:
            row = np.empty(SEQ_LEN, dtype=np.int64)
            at = 0
            while at < SEQ_LEN:
                while len(buffer) < BUFFER and (document := next(documents, None)) is not None:
                    buffer.append(document)
                if not buffer:
                    return  # the last row is not full, and goes
                room = SEQ_LEN - at
                best, most = -1, 0
                for i, document in enumerate(buffer):
                    size = len(document)
                    if most < size <= room:
                        best, most = i, size
                if best < 0:
                    best = min(range(len(buffer)), key=lambda i: len(buffer[i]))
                    most = room
                    self.cropped += 1
                row[at : at + most] = buffer.pop(best)[:most]
                self.used += 1
                at += most
            yield row

    def check(self) -> Counts:
        """Rows are full, and made of the workload's ids."""
        rows = checksum = 0
        for row in self.batches():
            rows += 1
            checksum += int(row.sum())
        tokens = rows * SEQ_LEN
        if not 0 < checksum <= self.workload.checksum or tokens > self.workload.num_tokens:
            raise WrongOutputError("More was delivered than there is.")
        return Counts(tokens, tokens, self.used, self.cropped)
