"""Costs before and beside reading, for 15 T tokens in a million shards on 32,768 workers.

    python -m benchmarks.scale [--shards 1000000] [--lanes 65536]

Everything that can be run without the corpus is run: the manifest (made, named, pickled as it is
handed to the other ranks, held in memory), the order of an epoch, the lanes of one worker and all
lanes of the run, and the states of all lanes, gathered, merged and restored by one rank. Then a
process with 16 lanes over real shards: the memory of a lane with full windows.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import pickle
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.corpus_files import write_shards
from benchmarks.report import print_table
from streampack import PackedDataset, PackedLoader, Topology, sources
from streampack.deals.dealer import Dealer
from streampack.deals.report_exchange import MemoryExchange
from streampack.deals.rule import ONE, DealRule, Line
from streampack.distributed.merging import merge_states
from streampack.run.state import RunState
from streampack.sources.manifest import Manifest
from streampack.window.config import DEFAULT_ROWS

T = TypeVar("T")
TOKENS = 15_000_000_000_000
SEQ_LEN = 2048
FULL_ROWS = 2 * DEFAULT_ROWS + 60  # of a lane, by which its window has been full
SHOWN = "{:52s} {:>12s}"
ROWS: list[list[str]] = []  # that were shown


def resident_bytes() -> int:
    """Anonymous resident memory of this process: without pages of mapped shards."""
    size, shared = Path("/proc/self/statm").read_text().split()[1:3]
    return (int(size) - int(shared)) * 4096


def show(what: str, figure: str) -> None:
    """One line of the table."""
    print(SHOWN.format(what, figure), flush=True)
    ROWS.append([what, figure])


def timed(what: str, action: Callable[[], T]) -> T:
    """Return the result of `action` and show its time."""
    began = time.perf_counter()
    result = action()
    show(what, f"{1e3 * (time.perf_counter() - began):.1f} ms")
    return result


def mib(num_bytes: float) -> str:
    """A size for people."""
    return f"{num_bytes / 2**20:.2f} MiB"


def manifest_of(shards: int) -> Manifest:
    """Parquet shards of 15 T tokens in all, 743 a document."""
    names = [
        f"s3://bucket/corpus/train/part-{i:06d}-of-{shards:06d}.parquet" for i in range(shards)
    ]
    rng = np.random.default_rng(0)
    rows = rng.poisson(TOKENS / 743 / shards, shards).astype(np.int64)
    sizes = rows * 1_400 + rng.integers(0, 999, shards)
    details = {"dtype": "text", "documents": rows, "encoded_bytes": 4 * TOKENS}
    return Manifest(names, 2 * sizes, sizes, details)


def lanes_and_manifest(shards: int, lanes: int, per_worker: int) -> None:
    """Time the manifest and the assignment of documents to lanes."""
    before = resident_bytes()
    manifest = timed(f"manifest of {shards} shards from their names", lambda: manifest_of(shards))
    timed("its digest, once per run", lambda: manifest.digest)
    data = timed("pickled", lambda: pickle.dumps(manifest))
    packed = timed("compressed", lambda: zlib.compress(data, 1))
    show("as handed to a rank (pickled, compressed)", f"{mib(len(data))}, {mib(len(packed))}")
    timed("unpacked by a rank", lambda: pickle.loads(zlib.decompress(packed)))  # noqa: S301
    source = sources.Parquet("s3://bucket/corpus/train")
    source._manifest = manifest
    warm = sources.Parquet("s3://bucket/corpus/train")
    warm._manifest = manifest_of(8)
    warm.lanes(1, seed=0, epoch=0, shuffle=True)[0]
    epoch = source.lanes(lanes, seed=1, epoch=0, shuffle=True)
    timed("line of an epoch, once per process", lambda: epoch[0])
    timed("asked for again by another lane", lambda: epoch[1])
    line = epoch[0].pieces.line
    show("line held by a process, two epochs at most", mib(line.shards.nbytes + line.bounds.nbytes))
    own = timed(f"{per_worker} lanes of a worker", lambda: [epoch[i] for i in range(per_worker)])
    show("shards that one of them reads", str(len(own[0].pieces)))
    timed(f"all {lanes} lanes", lambda: [epoch[i] for i in range(lanes)])
    show("memory of all this in one process", mib(resident_bytes() - before))


def deals(lanes: int) -> None:
    """Time a process's work for a deal between all lanes: merge another's reports, and deal."""
    weight = 2 * TOKENS
    line = Line(weight=weight, epochs=1, rate=ONE // 2)
    rule = DealRule.of(
        {"": line},
        lanes=lanes,
        batch_tokens=SEQ_LEN,
        window_tokens=0,
        window_share=128,
        run_tokens=TOKENS,
    )
    exchange = MemoryExchange(lanes, 1)
    dealer = Dealer(rule, exchange)
    timed(f"first deal of {lanes} lanes", lambda: dealer.make(1))
    until = np.diff(np.array([dealer.spans("", lane, 1)[0][1:] for lane in range(lanes)]))[:, 0]
    found = until * np.random.default_rng(0).lognormal(0, 0.3, lanes) / 2
    reports = np.stack([until, np.zeros(lanes), found], axis=1).astype(np.int64)[:, None] + 1
    show("what ranks exchange for a deal", mib(reports.astype(np.float32).nbytes))
    timed("merged", lambda: exchange.merge(1, reports))
    began = time.process_time()
    timed("dealt", lambda: dealer.make(2))
    show("of a processor", f"{1e3 * (time.process_time() - began):.1f} ms")
    assert dealer.gave(1, 0)
    timed("parts of one lane", lambda: dealer.spans("", 7, 2))


def states(folder: Path, lanes: int, ranks: int) -> None:
    """A lane's state as a run has it, for all lanes; merged, and restored by one rank."""
    dataset = PackedDataset(
        dataset_source(folder), seq_len=SEQ_LEN, batch_size=1, lanes=1, topology=Topology()
    )
    loader = PackedLoader(dataset)
    batches = iter(loader)
    for _ in range(200):
        next(batches)
    saved = loader.state_dict()
    lane = saved["lanes"]["0"]
    show("state of a lane, default window", f"{len(json.dumps(lane))} bytes")
    run = PackedDataset(
        dataset_source(folder), seq_len=SEQ_LEN, batch_size=1, lanes=lanes, topology=Topology()
    )
    parts = []
    for rank in range(ranks):
        topology = Topology(rank, ranks)
        own = {n: {**lane, "lane": n} for n in topology.lanes(0, lanes)}
        parts.append(RunState(run.plan.fingerprint, topology, 200 * lanes, own).as_dict())
    show(f"state of a rank, {lanes // ranks} lanes", mib(len(json.dumps(parts[0]))))
    merged = timed(f"merge_states of {ranks} ranks, all checked", lambda: merge_states(parts))
    whole = timed("merged state as JSON", lambda: json.dumps(merged))
    show("its size", mib(len(whole)))
    again = timed("read again", lambda: json.loads(whole))
    half = PackedDataset(
        dataset_source(folder),
        seq_len=SEQ_LEN,
        batch_size=1,
        lanes=lanes,
        topology=Topology(1, ranks // 2),
    )
    timed(f"loaded by one of {ranks // 2} ranks, all checked", lambda: half.load_state_dict(again))
    held = PackedLoader(half).state_dict()["lanes"]
    show("lanes that it goes on with", str(len(held)))


def dataset_source(folder: Path) -> sources.MDS:
    """Return a small corpus, with lane states that stand for a large one's."""
    return sources.MDS(str(folder), tokens="tokens")


def write_parquet(folder: Path, documents: int) -> None:
    """Eight files of one row group each, of uint16 ids."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for shard in range(8):
        lengths = np.exp(rng.normal(6.0, 1.1, documents // 8)).astype(np.int64) + 1
        ids = pa.array(rng.integers(0, 50_000, lengths.sum(), dtype=np.uint16))
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        table = pa.table({"tokens": pa.ListArray.from_arrays(offsets, ids)})
        pq.write_table(table, folder / f"{shard}.parquet")


def lane_memory(kind: str, folder: str) -> float:
    """Bytes of a lane, of a process that runs 16 with full windows."""
    source = {"MDS": sources.MDS, "Parquet": sources.Parquet}[kind](folder, tokens="tokens")

    def dataset() -> PackedDataset:
        return PackedDataset(source, seq_len=SEQ_LEN, batch_size=1, lanes=16, topology=Topology())

    next(iter(dataset()))
    base, most = resident_bytes(), 0
    for number, _ in enumerate(PackedLoader(dataset())):
        if number % 16 == 0:
            most = max(most, resident_bytes())
        if number > 16 * FULL_ROWS:
            break
    return (most - base) / 16


def main() -> None:
    """Print the figures, then their table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shards", type=int, default=1_000_000)
    parser.add_argument("--lanes", type=int, default=65_536)
    parser.add_argument("--ranks", type=int, default=4_096)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--documents", type=int, default=60_000)
    options = parser.parse_args()
    per_worker = options.lanes // options.ranks // options.workers
    lanes_and_manifest(options.shards, options.lanes, per_worker)
    deals(options.lanes)
    with tempfile.TemporaryDirectory() as name:
        write_shards(Path(name), options.documents, shard_bytes=1 << 21)
        states(Path(name), options.lanes, options.ranks)
        write_parquet(Path(name, "parquet"), options.documents)
        for kind, folder in (("MDS", name), ("Parquet", f"{name}/parquet")):
            with multiprocessing.get_context("spawn").Pool(1) as process:
                show(f"memory of a lane, {kind}", mib(process.apply(lane_memory, (kind, folder))))
    print_table("Scale", ["", "figure"], ROWS)


if __name__ == "__main__":
    main()
