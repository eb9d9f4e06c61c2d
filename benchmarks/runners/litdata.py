"""litdata: its own format for tokens, read in blocks of a row: concatenated and cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.protocol import SEQ_LEN, Counts, Timed, WrongOutputError
from benchmarks.runners.grain import cuts_of_concatenation
from benchmarks.workloads import Workload

__all__ = ["LitdataTokens"]

CHUNK_TOKENS = 1 << 23


class LitdataTokens(Timed):
    """`StreamingDataset` with `TokensLoader`, its fastest way: slices of a mapped chunk."""

    label = "litdata, TokensLoader"
    environment = "litdata"
    settings = "TokensLoader, 8 Mi tokens per chunk, block_size=2048, no shuffling"
    delivers = "int32 ids; no boundaries, tails of chunks left out"

    def prepare(self) -> None:
        """Write its chunks."""
        self.folder = self.workload.file("litdata", self.write)

    def write(self, folder: Path) -> None:
        """One document per sample, joined by the format."""
        from litdata import TokensLoader, optimize

        optimize(
            fn=_Documents(self.workload),
            inputs=list(range(0, len(self.workload.lengths), 1000)),
            output_dir=str(folder),
            chunk_size=CHUNK_TOKENS,
            num_workers=1,
            item_loader=TokensLoader(),
            reorder_files=False,
        )

    def batches(self) -> Iterator[Any]:
        """One block at a time."""
        from litdata import StreamingDataset, TokensLoader

        yield from StreamingDataset(
            str(self.folder), item_loader=TokensLoader(block_size=SEQ_LEN), shuffle=False
        )

    def check(self) -> Counts:
        """Blocks of the workload's ids; tokens lost at ends of chunks are counted."""
        rows = checksum = 0
        for block in self.batches():
            rows += 1
            checksum += int(block.sum())
        tokens = rows * SEQ_LEN
        if not self.workload.num_tokens * 0.5 < tokens <= self.workload.num_tokens:
            raise WrongOutputError(f"litdata delivered {tokens} tokens.")
        if checksum > self.workload.checksum:
            raise WrongOutputError("litdata delivered other ids.")
        lengths = self.workload.lengths
        return Counts(tokens, tokens, len(lengths), cuts_of_concatenation(lengths))


class _Documents:
    """A thousand documents per call; picklable."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload

    def __call__(self, first: int) -> Iterator[Any]:
        import torch

        for document in self.workload.documents[first : first + 1000]:
            yield torch.from_numpy(document.astype("int32"))
