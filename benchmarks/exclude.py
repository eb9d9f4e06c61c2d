"""Cost of documents that are taken out: ``python -m benchmarks.exclude``.

10,000 documents of 750 ids on average, uint16 in Parquet with a column of 45 characters, are packed
in rows of 4,096 in one lane without workers, with and without `exclude=`, by turns and in another
order each time. It prints the processor time per document that each adds, and its share of the time
without: medians of the differences and ratios inside a round.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.report import print_table
from streampack import PackedDataset, PackedLoader, TokenRules, Topology, sources

DOCUMENTS, KEYS = 10_000, 1_000_000


def name(number: int) -> str:
    """The key of a document, 45 characters."""
    return f"https://example.org/archive/of/pages/{number:08}"


def write(folder: Path) -> None:
    """Write the corpus."""
    rng = np.random.default_rng(0)
    lengths = np.clip(np.exp(rng.normal(6.1, 1.0, DOCUMENTS)), 1, 16_000).astype(np.int64)
    ids = rng.integers(0, 50_000, int(lengths.sum())).astype(np.uint16)
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
    urls = [name(number) for number in range(DOCUMENTS)]
    table = pa.table({"ids": pa.ListArray.from_arrays(offsets, pa.array(ids)), "url": urls})
    pq.write_table(table, folder / "0.parquet", row_group_size=2000, use_dictionary=False)


def dataset_of(folder: Path, exclude: Any) -> PackedDataset:
    """A run that takes these documents out."""
    return PackedDataset(
        sources.open(str(folder), tokens="ids"), seq_len=4096, lanes=1, topology=Topology(),
        token_rules=TokenRules(pad_id=0), exclude=exclude,
    )  # fmt: skip


def run(dataset: PackedDataset) -> float:
    """Processor seconds of one epoch."""
    loader = iter(PackedLoader(dataset))
    next(loader)
    began = time.process_time()
    for _ in loader:
        pass
    return time.process_time() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    none = [name(DOCUMENTS + number) for number in range(KEYS)]
    some = [*none[: -DOCUMENTS // 100], *(name(n) for n in range(0, DOCUMENTS, 100))]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write(folder)
        cases = {
            "none": dataset_of(folder, None),
            "one key": dataset_of(folder, {"url": none[:1]}),
            "a million keys, of which none is met": dataset_of(folder, {"url": none}),
            "a million keys, which take out every hundredth document": dataset_of(
                folder, {"url": some}
            ),
        }
        times: dict[str, list[float]] = {case: [] for case in cases}
        for dataset in cases.values():
            run(dataset)
        for number in range(rounds):
            for case in random.Random(number).sample([*cases], len(cases)):
                times[case].append(run(cases[case]))
    usual = times["none"]
    rows = []
    for case, taken in times.items():
        more = statistics.median(a - b for a, b in zip(taken, usual, strict=True))
        share = statistics.median(a / b - 1 for a, b in zip(taken, usual, strict=True))
        rows.append([case, f"{1e9 * more / DOCUMENTS:.0f}", f"{100 * share:.1f} %"])
    print_table("", ["exclude", "ns per document more", "of the time without"], rows)
    print(f"without: {1e9 * statistics.median(usual) / DOCUMENTS:.0f} ns per document")


if __name__ == "__main__":
    main()
