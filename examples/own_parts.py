"""A packer, a source and a hook of your own: `python examples/own_parts.py`.

docs/extending.md explains them. The packer keeps the order of the documents, the source reads a
table of SQLite, and the hook takes a tenth of the documents. The run stops in the middle and goes
on from its state, with two worker processes. Runs on a CPU in seconds.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack import Hook, PackedDataset, PackedLoader, Topology
from streampack.documents import Documents, make_origin, offsets_of
from streampack.packing import Packer, Plan, Selection, WindowRequest, check_plan
from streampack.packing.rng import derive_seed, permutation
from streampack.sources import LaneReader, Source

SEQ_LEN = 1024


class NextFit(Packer):
    """Documents in order of arrival; one that does not fit opens the next row."""

    overflow = "truncate"  # a document longer than a row loses its end
    keeps_order = True  # documents that arrive one after the other share rows
    keeps_whole = True  # a document that fits a row is never cut

    def __init__(self, seq_len: int) -> None:
        self.seq_lens = (seq_len,)

    def describe(self) -> dict[str, Any]:
        """Name, parameters, and a revision to raise when rows change."""
        return {"kind": "NextFit", "revision": 1, "seq_len": self.seq_lens[-1]}

    def plan(self, lengths: NDArray[np.int64], *, final: bool, seed: int) -> Plan:
        """Rows for documents of these lengths (N,)."""
        (seq_len,) = self.seq_lens
        kept = np.minimum(lengths, seq_len)
        document = np.flatnonzero(kept)
        sizes: list[int] = []  # segments of each row
        room = 0
        for length in kept[document].tolist():
            if length > room:
                sizes.append(0)
                room = seq_len
            sizes[-1] += 1
            room -= length
        return Plan.plain(
            row_offsets=offsets_of(np.array(sizes, dtype=np.int64)),
            seq_len=seq_len,
            document=document,
            start=np.zeros_like(document),
            stop=kept[document],
            dropped=lengths - kept,
        )

    def plan_window(self, request: WindowRequest) -> Selection:
        """All rows but the last, which later documents may fill, in whole batches."""
        plan = self.plan(request.lengths, final=request.final, seed=request.seed)
        count = plan.num_rows
        if not request.final:
            count = max(count - 1, 0) // request.rows_per_batch * request.rows_per_batch
        rows = np.arange(count, dtype=np.int64)
        return Selection.in_batches(plan, rows, request.rows_per_batch)


class Table(Source):
    """Token ids in SQLite: ``documents(id INTEGER PRIMARY KEY, tokens BLOB)``."""

    tokenized = True  # blocks are `Documents`, not `Texts`

    def __init__(self, path: str) -> None:
        self.path = path

    def prepare(self) -> None:
        """Count the documents."""
        with closing(sqlite3.connect(self.path)) as table:
            (self.count,) = table.execute("SELECT count(*) FROM documents").fetchone()

    def describe(self) -> dict[str, Any]:
        """Return the settings that a resumed run must share."""
        return {"kind": "Table", "path": self.path, "documents": self.count}

    def lanes(self, n: int, *, seed: int, epoch: int, shuffle: bool) -> list[Any]:
        """Every n-th document of the order that seed and epoch give."""
        order = np.arange(self.count)
        if shuffle:
            order = permutation(self.count, derive_seed(seed, epoch))
        return [TableLane(self.path, order[lane::n]) for lane in range(n)]


class TableLane(LaneReader):
    """One lane of one epoch: the documents (N,) of these ids, in this order."""

    def __init__(self, path: str, ids: NDArray[np.int64]) -> None:
        self.path = path
        self.ids = ids

    def read(
        self, cursor: dict[str, Any] | None, skips: Any
    ) -> Iterator[tuple[Documents, dict[str, Any]]]:
        """Blocks of 64 documents, each with the place after it."""
        done = cursor["done"] if cursor else 0
        find = "SELECT tokens FROM documents WHERE id = ?"
        with closing(sqlite3.connect(self.path)) as table:
            while done < len(self.ids):
                ids = self.ids[done : done + 64]
                found = [table.execute(find, (i,)).fetchone()[0] for i in ids.tolist()]
                tokens = [np.frombuffer(blob, dtype=np.uint16) for blob in found]
                done += len(ids)
                yield Documents.from_arrays(tokens, make_origin(0, ids)), {"done": done}


def a_tenth(documents: Documents, seeds: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """(N,) bool: about every tenth document, in every epoch others."""
    return seeds % np.uint64(10) == 0


def make_table(path: Path, count: int = 20_000) -> None:
    """Documents of random tokens."""
    numbers = np.random.default_rng(0)
    lengths = numbers.lognormal(5.0, 1.0, count).astype(np.int64) + 1
    with closing(sqlite3.connect(path)) as table, table:
        table.execute("CREATE TABLE documents (id INTEGER PRIMARY KEY, tokens BLOB)")
        for i, length in enumerate(lengths.tolist()):
            blob = numbers.integers(0, 1000, length).astype(np.uint16).tobytes()
            table.execute("INSERT INTO documents VALUES (?, ?)", (i, blob))


def make_dataset(path: Path) -> PackedDataset:
    """The three parts together."""
    return PackedDataset(
        Table(str(path)),
        packer=NextFit(SEQ_LEN),
        filter=Hook("a tenth", a_tenth),
        batch_size=4,
        topology=Topology(),
    )


def main() -> None:
    """Pack, stop in the middle, and go on from the state."""
    lengths = np.array([700, 300, 50, 2000, 900])
    plan = NextFit(SEQ_LEN).plan(lengths, final=True, seed=0)
    check_plan(plan, lengths)  # holds every plan against the same rules
    print(f"{len(lengths)} documents in {plan.num_rows} rows")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "documents.sqlite"
        make_table(path)
        whole = [batch.input_ids for batch in PackedLoader(make_dataset(path))]
        loader = PackedLoader(make_dataset(path), num_workers=2)
        begun = [batch.input_ids for batch in islice(loader, 20)]
        state = json.dumps(loader.state_dict())
        loader = PackedLoader(make_dataset(path))
        loader.load_state_dict(json.loads(state))
        rest = [batch.input_ids for batch in loader]
        pairs = zip(whole, begun + rest, strict=True)
        same = all(before.equal(after) for before, after in pairs)
        print(f"{len(whole)} batches, {len(begun)} of them before a stop; the same: {same}")


if __name__ == "__main__":
    main()
