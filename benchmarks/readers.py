"""Formats' own readers beside packed batches: ``python -m benchmarks.readers``.

The same documents lie in each format. A format's own reader gives them one after the other, each as
an array that its loop may keep; streampack reads the same files, in one process and one lane, and
gives packed batches with ids, labels, positions and document numbers. Both by turns, from warm
files; it prints nanoseconds per token of the fastest turn. Readers that are not installed are left
out: Megatron's comes with scripts/frameworks.txt. Beside them stand two limits: copying as many
bytes as a batch has, and making no more than ids and labels, as nanoGPT does.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.runners.limits import BYTES_PER_SLOT, CopyingThroughMemory
from streampack import PackedDataset, PackedLoader, Topology, sources
from tests.support.flat_files import write_megatron

Read = Callable[[], Iterator[Any]]
Case = tuple[Read, Any]  # the format's own reader, and streampack's source; None: no packed batches

SEQ_LEN = 4096
ROWS = 8


def copying(folder: Path, documents: list[Any]) -> Case:
    """Blocks of 256 MiB, from warm memory to warm memory, 28 bytes for each token."""
    block = CopyingThroughMemory.block_slots
    blocks = -(-sum(map(len, documents)) // block)
    source = np.random.default_rng(0).integers(0, 255, block * BYTES_PER_SLOT, np.uint8)
    target = source[::-1].copy()

    def read() -> Iterator[Any]:
        for _ in range(blocks):
            np.copyto(target, source)
            yield range(block)

    return read, None


def ids_and_labels(folder: Path, documents: list[Any]) -> Case:
    """Rows of a memory map, one after the other, and those moved by one, both as int64."""
    np.save(folder / "ids.npy", np.concatenate(documents))

    def read() -> Iterator[Any]:
        ids = np.load(folder / "ids.npy", mmap_mode="r")
        for start in range(0, len(ids) - ROWS * SEQ_LEN, ROWS * SEQ_LEN):
            begins = range(start, start + ROWS * SEQ_LEN, SEQ_LEN)
            inputs, _ = (
                np.stack([ids[i + by : i + by + SEQ_LEN].astype(np.int64) for i in begins])
                for by in (0, 1)
            )
            yield inputs.ravel()

    return read, None


def memory_map(folder: Path, documents: list[Any]) -> Case:
    """A .npy file of all ids, each document ended by id 0, as nanoGPT's users have it."""
    ended = [np.append(ids, np.uint16(0)) for ids in documents]
    np.save(folder / "ids.npy", np.concatenate(ended))
    ends = np.cumsum([len(ids) for ids in ended])

    def read() -> Iterator[Any]:
        ids, start = np.load(folder / "ids.npy", mmap_mode="r"), 0
        for end in ends.tolist():
            yield np.array(ids[start:end])
            start = end

    return read, sources.Tokens(str(folder / "ids.npy"), eos_id=0)


def megatron(folder: Path, documents: list[Any]) -> Case:
    """`.bin` and `.idx`."""
    reader = import_module("megatron.core.datasets.indexed_dataset").IndexedDataset
    prefix = folder / "corpus"
    write_megatron(prefix, [[ids] for ids in documents], "uint16")

    def read() -> Iterator[Any]:
        dataset = reader(str(prefix))
        for i in range(len(dataset)):
            yield np.array(dataset[i])

    return read, sources.MegatronIndexed(str(prefix))


def hugging_face(folder: Path, documents: list[Any]) -> Case:
    """A folder of `save_to_disk`, read row by row as numpy arrays."""
    datasets = import_module("datasets")
    datasets.Dataset(table(documents)).save_to_disk(str(folder / "saved"))

    def read() -> Iterator[Any]:
        for row in datasets.load_from_disk(str(folder / "saved")).with_format("numpy"):
            yield row["ids"]

    return read, sources.open(str(folder / "saved"), tokens="ids")


def parquet(folder: Path, documents: list[Any]) -> Case:
    """A Parquet file, read by row groups with pyarrow; each row as a numpy array."""
    pq.write_table(table(documents), folder / "ids.parquet", row_group_size=2000)

    def read() -> Iterator[Any]:
        for batch in pq.ParquetFile(folder / "ids.parquet").iter_batches(2000):
            for row in batch.column("ids"):
                yield row.values.to_numpy().copy()

    return read, sources.Parquet(str(folder / "ids.parquet"), tokens="ids")


def mosaic(folder: Path, documents: list[Any]) -> Case:
    """MDS shards, read in order by mosaicml-streaming's StreamingDataset."""
    streaming = import_module("tests.support.mosaic").streaming_module
    with streaming("base.format.mds.writer") as writers:
        columns = {"ids": "ndarray:uint16"}
        with writers.MDSWriter(out=str(folder / "mds"), columns=columns) as writer:
            for ids in documents:
                writer.write({"ids": ids})

    def read() -> Iterator[Any]:
        with streaming("base.dataset") as module:
            local = module.StreamingDataset(
                local=str(folder / "mds"), shuffle=False, batch_size=1, predownload=1 << 20
            )
            for sample in local:
                yield sample["ids"]

    return read, sources.MDS(str(folder / "mds"), tokens="ids")


def table(documents: list[Any]) -> pa.Table:
    """One column of lists."""
    ends = np.cumsum([0, *map(len, documents)]).astype(np.int32)
    return pa.table(
        {"ids": pa.ListArray.from_arrays(pa.array(ends), pa.array(np.concatenate(documents)))}
    )


CASES = {
    "copying 28 bytes per token": copying,
    "numpy's memory map, ids and labels of rows": ids_and_labels,
    "numpy's memory map": memory_map,
    "Megatron-LM's IndexedDataset": megatron,
    "datasets' load_from_disk": hugging_face,
    "pyarrow's row groups": parquet,
    "StreamingDataset": mosaic,
}


def bare(read: Read) -> int:
    """Tokens of all documents, one after the other."""
    return sum(map(len, read()))


def packed(source: Any) -> int:
    """Tokens of an epoch of packed batches, with all their fields made."""
    dataset = PackedDataset(source, seq_len=SEQ_LEN, batch_size=ROWS, lanes=1, topology=Topology())
    tokens = 0
    for batch in PackedLoader(dataset):
        batch.make_fields()
        tokens += batch.num_tokens
    return tokens


def measure(case: Case, repeats: int) -> tuple[float, float]:
    """Nanoseconds per token of the fastest turn, of bare documents and of packed batches."""
    read, source = case
    best = [np.inf, np.inf]
    runs = [partial(bare, read), *([partial(packed, source)] if source else [])]
    for _ in range(repeats + 1):  # the first one warms up
        for which, run in enumerate(runs):
            began = time.perf_counter()
            tokens = run()
            best[which] = min(best[which], 1e9 * (time.perf_counter() - began) / tokens)
    return best[0], best[1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readers", description=__doc__)
    parser.add_argument("--documents", type=int, default=40_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    lengths = np.clip(np.exp(rng.normal(6.0, 1.1, options.documents)), 1, 1 << 16).astype(int)
    documents = [rng.integers(1, 50_000, n).astype(np.uint16) for n in lengths.tolist()]
    print("| reader | ns per token, bare documents | ns per token, packed batches |")
    print("|---|---|---|")
    for name, make in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                alone, batches = measure(make(Path(folder), documents), options.repeats)
            except ModuleNotFoundError as error:
                print(f"| {name} | {error.name} is not installed | |")
            else:
                shown = f"{batches:.2f}" if batches < np.inf else ""
                print(f"| {name} | {alone:.2f} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
