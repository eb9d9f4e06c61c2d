"""Corpora of token ids in the layouts that are read from a store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from benchmarks import layouts
from benchmarks.layouts import Documents
from streampack import sources

EOS_ID = 0


def _parquet(rows: int, *, columns: int = 1) -> Callable[[Path, Documents], None]:
    """Row groups of `rows` rows, uncompressed; other columns are as large as the ids."""

    def write(folder: Path, documents: Documents) -> None:
        table = layouts.table_of(documents[: max(len(documents) // columns, 1)])
        for number in range(1, columns):
            table = table.append_column(f"other_{number}", table["tokens"])
        pq.write_table(
            table, folder / "a.parquet", row_group_size=rows, compression=None, use_dictionary=False
        )

    return write


def _flat(name: str) -> Callable[[Path, Documents], None]:
    """One array, a document up to each end token."""

    def write(folder: Path, documents: Documents) -> None:
        ids = np.concatenate([part for ids in documents for part in (ids, [EOS_ID])])
        ids = ids.astype(np.uint16)
        np.save(folder / name, ids) if name.endswith(".npy") else ids.tofile(folder / name)

    return write


def _megatron(folder: Path, documents: Documents) -> None:
    """Ids and their index, as Megatron-LM's tools write them."""
    count, lengths = len(documents), np.array([len(ids) for ids in documents])
    np.concatenate(documents).tofile(folder / "a.bin")
    pointers = 2 * np.cumsum([0, *lengths[:-1]])
    head = b"MMIDIDX\0\0" + np.uint64(1).tobytes() + bytes([8])
    head += np.array([count, count + 1], np.uint64).tobytes()
    ends = np.arange(count + 1, dtype=np.int64)
    arrays = (lengths.astype(np.int32), pointers.astype(np.int64), ends)
    (folder / "a.idx").write_bytes(head + b"".join(array.tobytes() for array in arrays))


class Layout(NamedTuple):
    """A way to write and read files.

    Attributes:
        write: writes a file; None for MDS, with all files written at once.
        kind, arguments: the source's class, and arguments beside the URL.
        id_bytes: bytes per id.
    """

    write: Callable[[Path, Documents], None] | None
    kind: Any
    arguments: dict[str, Any]
    id_bytes: float = 2.0

    def source(self, url: str, storage: sources.Storage) -> Any:
        """Return the source of a corpus."""
        return self.kind(url, storage=storage, **self.arguments)


_TOKENS = {"tokens": "tokens"}
_COLUMN = (sources.Parquet, _TOKENS, 4.0)  # which has 32 bits per id
LAYOUTS = {
    ".bin": Layout(_flat("a.bin"), sources.Tokens, {"eos_id": EOS_ID, "dtype": "uint16"}),
    ".npy": Layout(_flat("a.npy"), sources.Tokens, {"eos_id": EOS_ID}),
    "Parquet": Layout(_parquet(1000), *_COLUMN),
    "Arrow": Layout(layouts.arrow_stream, sources.Arrow, _TOKENS),
    "MDS": Layout(None, sources.MDS, _TOKENS),
    "tar": Layout(layouts.archive(None), sources.WebDataset, {"tokens": "npy"}, 3.0),
    ".jsonl": Layout(layouts.lines(None), sources.JSONL, _TOKENS, 6.8),
    ".jsonl.zst": Layout(layouts.lines("zst"), sources.JSONL, _TOKENS, 3.2),
    ".jsonl.gz": Layout(layouts.lines("gz"), sources.JSONL, _TOKENS, 3.2),
    "Megatron": Layout(_megatron, sources.MegatronIndexed, {}),
    "Parquet, groups of 32 MB": Layout(_parquet(11_000), *_COLUMN),
    "Parquet, one group": Layout(_parquet(1 << 30), *_COLUMN),
    "Parquet, one of 6 columns": Layout(_parquet(1000, columns=6), *_COLUMN),
}


def write(layout: Layout, documents: Documents, count: int, folder: Path) -> None:
    """Write documents into `count` files, ``00000.ending``, ``00001.ending``, ..."""
    inner = folder / "part"
    if layout.write is None:
        layouts.mds(2 * sum(map(len, documents)) // count)(folder, documents)
        (folder / "mds").rmdir()
        return
    for number in range(count):
        inner.mkdir()
        layout.write(inner, documents[number::count])
        for file in inner.iterdir():
            file.rename(folder / f"{number:05}{''.join(file.suffixes)}")
        inner.rmdir()
