"""Grain's packing of documents in memory (grain.experimental)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from benchmarks.protocol import SEQ_LEN, Counts, Timed

__all__ = ["GrainBestFit", "GrainConcatThenSplit", "GrainFirstFit"]


class Grain(Timed):
    """A MapDataset over the list, a packing IterDataset behind it, no threads.

    Reading threads (the default is 16) only fetch list items here and fight for the interpreter
    lock: with none it is fastest. First-fit and best-fit refuse documents longer than a row, which
    are therefore cut into rows beforehand, outside the timed part.
    """

    environment = "grain"
    delivers = "ids, segment ids, positions: 10 bytes per slot"
    transformation: ClassVar[str]
    options: ClassVar[dict[str, Any]] = {}
    cut: ClassVar[bool] = True

    def prepare(self) -> None:
        """Documents no longer than a row, where that is needed."""
        self.pieces = self.workload.documents
        if self.cut:
            self.pieces = [
                document[start : start + SEQ_LEN]
                for document in self.workload.documents
                for start in range(0, len(document), SEQ_LEN)
            ]

    def batches(self) -> Iterator[Any]:
        """One row at a time, as it gives them."""
        import grain
        from grain import experimental

        documents = grain.MapDataset.source(self.pieces).map(_named)
        stream = documents.to_iter_dataset(grain.ReadOptions(num_threads=0))
        packing = getattr(experimental, self.transformation)
        yield from packing(stream, length_struct={"ids": SEQ_LEN}, **self.options)

    def check(self) -> Counts:
        """Every token once."""
        rows = tokens = checksum = 0
        for row in self.batches():
            real = row["ids_segment_ids"] > 0
            rows += 1
            tokens += int(real.sum())
            checksum += int(row["ids"][real].sum(dtype=np.int64))
        lengths = self.workload.lengths
        cut = int((lengths > SEQ_LEN).sum()) if self.cut else cuts_of_concatenation(lengths)
        counts = Counts(rows * SEQ_LEN, tokens, len(lengths), cut, checksum)
        self.expect_all(counts)
        return counts


class GrainFirstFit(Grain):
    """First-fit in arrival order into a set of open bins."""

    label = "grain, first-fit"
    settings = "FirstFitPackIterDataset(num_packing_bins=64), num_threads=0"
    transformation = "FirstFitPackIterDataset"
    options: ClassVar[dict[str, Any]] = {"num_packing_bins": 64}


class GrainBestFit(Grain):
    """Best-fit in arrival order into a set of open bins."""

    label = "grain, best-fit"
    settings = "BestFitPackIterDataset(num_packing_bins=64), num_threads=0"
    transformation = "BestFitPackIterDataset"
    options: ClassVar[dict[str, Any]] = {"num_packing_bins": 64}


class GrainConcatThenSplit(Grain):
    """Concatenate and cut."""

    label = "grain, concat-then-split"
    settings = "ConcatThenSplitIterDataset, num_threads=0"
    transformation = "ConcatThenSplitIterDataset"
    cut = False


def cuts_of_concatenation(lengths: Any) -> int:
    """Documents that a row boundary cuts when they are laid end to end."""
    ends = np.cumsum(lengths)
    return int(((ends - 1) // SEQ_LEN > (ends - lengths) // SEQ_LEN).sum())


def _named(document: Any) -> dict[str, Any]:
    return {"ids": document}
