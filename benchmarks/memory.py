"""Memory while streaming 100 times the window, in one process.

    python -m benchmarks.memory [--windows 100] [--seq-len 2048]

MDS token shards that hold 100 windows of lognormal(6.0, 1.1) documents are streamed through one
lane. Resident memory is read from the operating system after every tenth of the stream, on top of
what the process holds after importing torch and numba and compiling. What should be held: the
window's ids twice, the rows gathered from it, and a block per open shard with its shuffled copy.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.mds_to_batches import write_shards
from streampack import PackedDataset, PackedLoader, Topology, sources

MEAN_TOKENS = 743
PAGE_BYTES = 4096


def resident_bytes() -> int:
    """Anonymous resident memory: without the page cache's pages of mapped shards."""
    size, shared = Path("/proc/self/statm").read_text().split()[1:3]
    return (int(size) - int(shared)) * PAGE_BYTES


def stream(folder: Path, seq_len: int, total: int) -> list[tuple[int, int]]:
    """(tokens, resident bytes) after every tenth of the stream."""
    source = sources.MDS(str(folder), column="tokens")
    dataset = PackedDataset(source, seq_len=seq_len, lanes=1, topology=Topology())
    readings, tokens = [(0, resident_bytes())], 0
    for batch in PackedLoader(dataset):
        tokens += batch.num_tokens + 0 * int(batch.labels[0, 0])
        if tokens >= len(readings) * total // 10:
            readings.append((tokens, resident_bytes()))
    return readings


def main() -> None:
    """Write the corpus, stream it, print the readings."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--windows", type=int, default=100)
    parser.add_argument("--seq-len", type=int, default=2048)
    options = parser.parse_args()
    window = 128 * options.seq_len
    with tempfile.TemporaryDirectory() as name:
        warm, corpus = Path(name, "warm"), Path(name, "corpus")
        few = write_shards(warm, 20)
        total = write_shards(corpus, options.windows * window // MEAN_TOKENS)
        # A process of its own: this one's heap holds room left over from writing the corpus.
        with multiprocessing.get_context("spawn").Pool(1) as process:
            process.apply(stream, (warm, options.seq_len, few))
            readings = process.apply(stream, (corpus, options.seq_len, total))
    base = readings[0][1]
    held = 2 * (2 * window + window // 2 + 2 * 2 * 256 * MEAN_TOKENS)  # uint16 ids
    print(f"window {window} tokens, stream {total / window:.0f} windows")
    print(f"ids that should be held: {held / 2**20:.1f} MiB")
    for tokens, resident in readings[1:]:
        print(f"after {tokens / window:6.1f} windows: {(resident - base) / 2**20:+6.1f} MiB")
    growth = np.diff([resident for _, resident in readings[3:]]).sum() / 2**20
    print(f"growth over the last {len(readings) - 3} tenths: {growth:+.1f} MiB")


if __name__ == "__main__":
    main()
