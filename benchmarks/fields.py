"""What fields cost: ``python -m benchmarks.fields``.

Documents of 450 tokens (median) in Parquet are packed in rows of 4,096, with and without two
float32 fields of tokens, by turns, from the same files. It prints the time per token, the bytes
per token of a batch as it travels, and how both grow.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streampack import PackedDataset, PackedLoader, TokenRules, Topology, sources

FIELDS = ("logprobs", "weights")


def write(folder: Path, documents: int) -> int:
    """A file of so many documents; returns their tokens."""
    rng = np.random.default_rng(0)
    lengths = np.clip(np.exp(rng.normal(np.log(450), 1, documents)), 1, 8192).astype(np.int64)
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
    total = int(lengths.sum())
    columns = {"ids": rng.integers(0, 50_000, total).astype(np.uint16)}
    columns |= {name: rng.normal(size=total).astype(np.float32) for name in FIELDS}
    lists = {name: pa.ListArray.from_arrays(offsets, pa.array(a)) for name, a in columns.items()}
    pq.write_table(pa.table(lists), folder / "0.parquet", row_group_size=2000)
    return total


def run(folder: Path, fields: bool) -> tuple[float, int]:
    """Seconds for one epoch, and the bytes of its batches as they travel."""
    dataset = PackedDataset(
        sources.Parquet(str(folder), tokens="ids"),
        seq_len=4096,
        lanes=1,
        topology=Topology(),
        token_rules=TokenRules(pad_id=0),
        token_fields=dict.fromkeys(FIELDS, "float32") if fields else None,
    )
    num_bytes, began = 0, time.perf_counter()
    for batch in PackedLoader(dataset):
        num_bytes += sum(tensor.nbytes for tensor in batch._tensors.values())
    return time.perf_counter() - began, num_bytes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fields", description=__doc__)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    seconds: dict[bool, list[float]] = {False: [], True: []}
    num_bytes = {}
    with tempfile.TemporaryDirectory() as name:
        tokens = write(Path(name), options.documents)
        for _ in range(options.repeats + 1):  # the first one compiles
            for fields, found in seconds.items():
                spent, num_bytes[fields] = run(Path(name), fields)
                found.append(spent)
    best = {fields: min(found[1:]) for fields, found in seconds.items()}
    for fields, label in ((False, "without fields"), (True, "two float32 fields")):
        size, spent = num_bytes[fields] / tokens, 1e9 * best[fields] / tokens
        print(f"{label:>18}: {spent:5.1f} ns and {size:5.2f} bytes per token")
    times, sizes = best[True] / best[False], num_bytes[True] / num_bytes[False]
    print(f"{'ratio':>18}: {times:.2f} in time, {sizes:.2f} in bytes; {times / sizes:.2f} of them")


if __name__ == "__main__":
    main()
