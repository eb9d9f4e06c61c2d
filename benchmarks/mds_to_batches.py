"""MDS token shards to full batches, in one process, beside copying the same bytes.

    python -m benchmarks.mds_to_batches [--documents 40000] [--seq-len 2048] [--rounds 5]

Shards of 40,000 lognormal(6.0, 1.1) documents are written to local disk once and read from the
page cache. The job is done when `input_ids`, `position_ids`, `labels` (int64) and `document_ids`
(int32) of every batch exist: 28 bytes per slot. Copying is numpy copying 28 bytes per slot from a
warm source to a warm destination, in the same run, in turn with the job: once in blocks of 256 MiB,
which must go through memory as a stream of batches does, and once in blocks of one batch, which
may stay in the processor's caches.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from streampack import PackedDataset, PackedLoader, Topology, sources

BYTES_PER_SLOT = 28


def write_shards(folder: Path, documents: int, seed: int = 0, *, shard_bytes: int = 1 << 25) -> int:
    """Write the corpus; returns its tokens."""
    from streampack.sources._streaming import streaming_module

    rng = np.random.default_rng(seed)
    lengths = np.maximum(np.exp(rng.normal(6.0, 1.1, documents)).astype(np.int64), 1)
    with (
        streaming_module("base.format.mds") as mds,
        mds.MDSWriter(
            out=str(folder), columns={"tokens": "ndarray:uint16"}, size_limit=shard_bytes
        ) as out,
    ):
        for length in lengths:
            out.write({"tokens": rng.integers(0, 50_000, length, dtype=np.uint16)})
    return int(lengths.sum())


def load(folder: Path, seq_len: int, rows: int) -> tuple[int, int, float]:
    """One pass; returns slots, tokens and seconds."""
    source = sources.MDS(str(folder), column="tokens")
    began = time.perf_counter()
    dataset = PackedDataset(
        source, seq_len=seq_len, batch_tokens=rows * seq_len, lanes=1, topology=Topology()
    )
    loader = PackedLoader(dataset)
    slots = 0
    for batch in loader:
        fields = (batch.input_ids, batch.position_ids, batch.labels, batch.document_ids)
        slots += fields[0].numel()
    return slots, loader.metrics().composition.placed, time.perf_counter() - began


def copy(slots: int, block_slots: int) -> float:
    """Seconds to copy 28 bytes per slot in blocks of so many slots, warm to warm."""
    source = np.random.default_rng(0).integers(0, 255, block_slots * BYTES_PER_SLOT, np.uint8)
    target = source.copy()
    began = time.perf_counter()
    for _ in range(max(slots // block_slots, 1)):
        np.copyto(target, source)
    return (time.perf_counter() - began) * slots / (max(slots // block_slots, 1) * block_slots)


def main() -> None:
    """Measure in turn and print medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--documents", type=int, default=40_000)
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = write_shards(folder, options.documents)
        load(folder, options.seq_len, options.rows)  # compile and warm
        figures: dict[str, list[float]] = {"streampack": [], "memory": [], "cache": []}
        for _ in range(options.rounds):
            slots, placed, seconds = load(folder, options.seq_len, options.rows)
            assert placed == tokens, "a token was lost"
            figures["streampack"].append(seconds)
            figures["memory"].append(copy(slots, (256 << 20) // BYTES_PER_SLOT))
            figures["cache"].append(copy(slots, options.rows * options.seq_len))
    report(figures, options.documents, tokens, slots)


def report(figures: dict[str, list[float]], documents: int, tokens: int, slots: int) -> None:
    """Print rates, and the job's time as a multiple of copying's."""
    print(f"{documents} documents, {tokens} tokens, {slots} slots of {BYTES_PER_SLOT} bytes")
    ours = statistics.median(figures["streampack"])
    names = {
        "streampack": "MDS to full batches",
        "memory": "copying through memory",
        "cache": "copying inside the cache",
    }
    for key, seconds in figures.items():
        rates = sorted(tokens / second / 1e6 for second in seconds)
        line = f"{names[key]:26}{statistics.median(rates):7.0f} M tokens/s"
        line += f"  ({rates[0]:.0f} to {rates[-1]:.0f})"
        if key != "streampack":
            line += f"  the job takes {ours / statistics.median(seconds):.1f} x its time"
        print(line)


if __name__ == "__main__":
    main()
