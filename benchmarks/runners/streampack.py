"""streampack: shards or documents to full batches, in one process.

Settings are the defaults, with eight rows per batch instead of one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.corpus_files import mds_shards, npy_tars, parquet_ids
from benchmarks.protocol import ROWS, SEQ_LEN, Counts, Timed, WrongOutputError

__all__ = [
    "FromMDS",
    "FromMDSOneLane",
    "FromMDSOneRow",
    "FromMDSTwoProcesses",
    "FromMemory",
    "FromParquet",
    "FromWebDataset",
    "StreampackLoader",
    "check_batches",
]


def fields_of(batch: Any) -> tuple[Any, ...]:
    """All per-token fields of a batch, made if they were not: 28 bytes per slot."""
    return (batch.input_ids, batch.position_ids, batch.labels, batch.document_ids)


class StreampackLoader(Timed):
    """Base of the runners over streampack's sources."""

    delivers = "input_ids, position_ids, labels int64, document_ids int32 as torch tensors"
    settings = f"defaults, batches of {ROWS} rows"
    workers: ClassVar[int] = 0
    rows: ClassVar[int] = ROWS
    lanes: ClassVar[int | None] = None

    @abstractmethod
    def source(self) -> Any:
        """Return the dataset's source."""

    def loader(self, **options: Any) -> Any:
        """A fresh loader over a fresh source."""
        from streampack import PackedDataset, PackedLoader, Topology

        dataset = PackedDataset(
            self.source(),
            seq_len=SEQ_LEN,
            batch_size=self.rows,
            lanes=self.lanes,
            topology=Topology(),
            **options,
        )
        return PackedLoader(dataset, num_workers=self.workers)

    def batches(self) -> Iterator[Any]:
        """Batches with all fields."""
        for batch in self.loader():
            yield fields_of(batch)

    def check(self) -> Counts:
        """Every token once, in the document and at the place it came from."""
        documents: dict[Any, Any] = defaultdict(list)
        counts = check_batches(self.loader(provenance=True), documents)
        self.expect_all(counts)
        expect_documents(documents, self.workload.documents)
        return counts


class FromMemory(StreampackLoader):
    """A list of arrays."""

    label = "streampack, documents in memory"

    def source(self) -> Any:
        """The list itself, as a user has it."""
        return self.workload.documents


class FromMDS(StreampackLoader):
    """MDS token shards on local disk, in the page cache."""

    label = "streampack, MDS"

    def prepare(self) -> None:
        """Write the shards."""
        mds_shards(self.workload)

    def source(self) -> Any:
        """The folder."""
        from streampack import sources

        return sources.MDS(mds_shards(self.workload), tokens="tokens")


class FromMDSOneLane(FromMDS):
    """One lane: beside the default it shows the cost of a window's working set."""

    label = "streampack, MDS, one lane"
    settings = f"lanes=1, batches of {ROWS} rows"
    lanes = 1


class FromMDSOneRow(FromMDS):
    """The default batch of one row: it shows a batch's cost apart from its size."""

    label = "streampack, MDS, one row per batch"
    settings = "all defaults, batches of one row"
    rows = 1


class FromMDSTwoProcesses(FromMDS):
    """Two worker processes."""

    label = "streampack, MDS, two worker processes"
    settings = f"num_workers=2, batches of {ROWS} rows"
    workers = 2


class FromWebDataset(StreampackLoader):
    """Tar shards of `.npy` members."""

    label = "streampack, WebDataset .npy"

    def prepare(self) -> None:
        """Write the shards."""
        npy_tars(self.workload)

    def source(self) -> Any:
        """All tars of the folder."""
        from streampack import sources

        return sources.WebDataset(sorted(npy_tars(self.workload).glob("*.tar")), tokens="npy")


class FromParquet(StreampackLoader):
    """A Parquet file of list<int32>."""

    label = "streampack, Parquet list<int32>"

    def prepare(self) -> None:
        """Write the file."""
        parquet_ids(self.workload)

    def source(self) -> Any:
        """The file."""
        from streampack import sources

        return sources.Parquet(parquet_ids(self.workload), tokens="tokens")


# ---------------------------------------------------------------------------- the oracle


def check_batches(loader: Any, documents: dict[Any, list[Any]]) -> Counts:
    """Hold every batch against the contract in plain numpy, and collect its documents' pieces.

    Args:
        loader: of batches with provenance.
        documents: gets, by (source, shard, index), the (start, stop, ids) of every piece.
    """
    slots = tokens = checksum = 0
    for batch in loader:
        ids, positions, labels, numbers = (f.numpy().ravel() for f in fields_of(batch))
        ends = batch.cu_seqlens.numpy()
        starts = np.repeat(ends[:-1], np.diff(ends))
        real = numbers >= 0
        first = np.arange(len(ids)) == starts
        expected = np.where(real & ~first, ids, -100)
        if not (
            np.array_equal(positions, np.arange(len(ids)) - starts)
            and np.array_equal(labels, expected)
            and ends[-1] == len(ids)
        ):
            raise WrongOutputError(f"The fields of {batch} do not follow from its segments.")
        slots += len(ids) if batch.num_documents else 0
        tokens += int(real.sum())
        checksum += int(ids[real].sum())
        pieces = np.flatnonzero(np.diff(numbers, prepend=-2))
        for low, high in zip(pieces, [*pieces[1:], len(ids)], strict=True):
            if numbers[low] >= 0:
                origin = batch.provenance[numbers[low]]
                key = int(origin["source"]), int(origin["shard"]), int(origin["index"])
                documents[key].append((int(origin["start"]), int(origin["stop"]), ids[low:high]))
    cut = sum(len(pieces) > 1 for pieces in documents.values())
    return Counts(slots, tokens, len(documents), cut, checksum)


def expect_documents(documents: dict[Any, list[Any]], wanted: list[NDArray[np.uint16]]) -> None:
    """Raise unless the pieces make up exactly the documents wanted, in any order."""
    made = []
    for key, pieces in documents.items():
        pieces.sort(key=lambda piece: piece[0])
        at = 0
        for start, stop, ids in pieces:
            if start != at or stop - start != len(ids):
                raise WrongOutputError(f"Document {key} has a gap or a repetition at {at}.")
            at = stop
        made.append(np.concatenate([p[2] for p in pieces]).astype(np.uint16).tobytes())
    if sorted(made) != sorted(document.tobytes() for document in wanted):
        raise WrongOutputError("The documents delivered differ from the workload's.")
