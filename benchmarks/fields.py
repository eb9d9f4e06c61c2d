"""Cost of fields: ``python -m benchmarks.fields``.

Documents of 450 tokens (median) in Parquet are packed in rows of 4,096, with and without two
float32 fields of tokens, by turns, from the same files. It prints the time per token, the bytes
per token of a batch as it travels, and how both grow. Then a thirtieth of the documents is packed
with 48 x 8 int16 numbers per token, the routed experts of a large model, from Parquet and from
Arrow.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq

from streampack import PackedDataset, PackedLoader, TokenRules, Topology, WindowConfig, sources

FIELDS = dict.fromkeys(("logprobs", "weights"), "float32")
SHAPE = (48, 8)
EXPERTS = {"experts": ("int16", SHAPE)}


def table(documents: int, fields: Callable[[np.random.Generator, int], dict[str, Any]]) -> pa.Table:
    """So many documents, with the fields of all their tokens."""
    rng = np.random.default_rng(0)
    lengths = np.clip(np.exp(rng.normal(np.log(450), 1, documents)), 1, 8192).astype(np.int64)
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
    total = int(lengths.sum())
    columns = {"ids": rng.integers(0, 50_000, total).astype(np.uint16), **fields(rng, total)}
    return pa.table(
        {name: pa.ListArray.from_arrays(offsets, pa.array(a)) for name, a in columns.items()}
    )


def write(folder: Path, documents: int) -> int:
    """A file of so many documents; returns their tokens."""
    made = table(
        documents,
        lambda rng, total: {name: rng.normal(size=total).astype(np.float32) for name in FIELDS},
    )
    pq.write_table(made, folder / "0.parquet", row_group_size=2000)
    return len(made["ids"].combine_chunks().flatten())


def write_experts(folder: Path, documents: int) -> int:
    """The same with several numbers per token, in two formats; returns their tokens."""

    def experts(rng: np.random.Generator, total: int) -> dict[str, Any]:
        numbers = pa.array(rng.integers(0, 128, total * math.prod(SHAPE), dtype=np.int16))
        for size in reversed(SHAPE):
            numbers = pa.FixedSizeListArray.from_arrays(numbers, size)
        return {"experts": numbers}

    made = table(documents, experts)
    for kind in ("parquet", "arrow"):
        (folder / kind).mkdir()
    pq.write_table(made, folder / "parquet" / "0.parquet", row_group_size=200)
    options = {"compression": "uncompressed", "chunksize": 200}
    feather.write_feather(made, folder / "arrow" / "0.feather", **options)
    return len(made["ids"].combine_chunks().flatten())


def run(folder: Path, fields: dict[str, Any] | None) -> tuple[float, int]:
    """Seconds for one epoch, and the bytes of its batches as they travel."""
    dataset = PackedDataset(
        sources.open(str(folder), tokens="ids"),
        seq_len=4096,
        lanes=1,
        topology=Topology(),
        token_rules=TokenRules(pad_id=0),
        window=WindowConfig(rows=64 if fields == EXPERTS else None),
        token_fields=fields,
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
                spent, num_bytes[fields] = run(Path(name), FIELDS if fields else None)
                found.append(spent)
    best = {fields: min(found[1:]) for fields, found in seconds.items()}
    for fields, label in ((False, "without fields"), (True, "two float32 fields")):
        size, spent = num_bytes[fields] / tokens, 1e9 * best[fields] / tokens
        print(f"{label:>18}: {spent:5.1f} ns and {size:5.2f} bytes per token")
    times, sizes = best[True] / best[False], num_bytes[True] / num_bytes[False]
    print(f"{'ratio':>18}: {times:.2f} in time, {sizes:.2f} in bytes; {times / sizes:.2f} of them")
    with tempfile.TemporaryDirectory() as name:
        tokens = write_experts(Path(name), options.documents // 30)
        for kind in ("parquet", "arrow"):
            spent, size = min(run(Path(name) / kind, EXPERTS) for _ in range(options.repeats))
            print(
                f"{'48 x 8 int16':>18}: {1e9 * spent / tokens:5.0f} ns and {size / tokens:5.0f} "
                f"bytes per token from {kind}"
            )


if __name__ == "__main__":
    main()
