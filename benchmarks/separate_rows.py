"""Fill of rows with documents of one key each: ``python -m benchmarks.separate_rows``.

On lengths alone: web-like documents (lognormal, median 400 tokens) in rows of 2,048, each with one
of 1, 4 or 64 keys; the shares of the keys fall as 1 / rank. Beside `Separate` in windows of two
sizes, the same documents of each key in an offline plan, which has the whole key at once. Then with
`batches=True`, in whole runs with batches of 8 rows: offline, and in windows of two sizes, in one
lane, and in eight lanes. "Fill" is the share of slots that are not padding, with the
missing rows of a batch.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import print_table
from streampack import PackedDataset, PackedLoader
from streampack.forecasts.dry_run import stream_plan
from streampack.packing import BestFitDecreasing, Plan, Separate
from streampack.window.config import WindowConfig

SEQ_LEN = 2048
BATCH_ROWS = 8
#: Rows of the window, and lanes, of runs with batches of one key.
RUNS = ((320, 1), (2048, 1), (2048, 8))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--documents", type=int, default=60_000)
    count = parser.parse_args().documents
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(400), 1.0, count), 8, 20_000).astype(np.int64)
    packer = BestFitDecreasing(seq_len=SEQ_LEN, limits=[Separate("key")])
    table, by_batch = [], []
    for keys in (1, 4, 64):
        shares = 1 / np.arange(1, keys + 1)
        key = rng.choice(keys, count, p=shares / shares.sum())
        plans = [packer.plan(lengths, final=True, seed=0, weights={"key": key})]
        plans += [
            stream_plan(
                lengths, packer, WindowConfig(rows=rows), weights={"key": key},
                batch_tokens=BATCH_ROWS * SEQ_LEN,
            )
            for rows in (None, 2048)
        ]  # fmt: skip
        table.append([str(keys), *(f"{fill(plan, lengths):.2f}" for plan in plans)])
        by_batch.append([str(keys), f"{offline_batches(plans[0], key, lengths):.2f}"])
        for rows, lanes in RUNS:
            by_batch[-1].append(f"{fill_of_run(lengths, key, WindowConfig(rows=rows), lanes):.2f}")
    print_table(
        "Fill of rows with one key each, in %",
        ["keys", "offline, each key", "default window", "window of 2,048 rows"], table,
    )  # fmt: skip
    print_table(
        "Fill of batches with one key each, in %",
        ["keys", "offline, each key", *(f"{rows:,} rows, lanes: {lanes}" for rows, lanes in RUNS)],
        by_batch,
    )  # fmt: skip


def offline_batches(plan: Plan, key: NDArray[np.int64], lengths: NDArray[np.int64]) -> float:
    """Return the share of slots with tokens, in %, if each key's rows are divided into batches."""
    rows = np.bincount(key[plan.document[plan.row_offsets[:-1]]])
    return float(100 * lengths.sum() / (-(-rows // BATCH_ROWS).sum() * BATCH_ROWS * SEQ_LEN))


def fill_of_run(
    lengths: NDArray[np.int64], key: NDArray[np.int64], window: WindowConfig, lanes: int
) -> float:
    """Return the share of slots with tokens, in %, in a run with batches of one key."""
    zeros = np.zeros(int(lengths.max()), dtype=np.uint16)
    records = [
        {"tokens": zeros[:n], "key": k} for n, k in zip(lengths.tolist(), key.tolist(), strict=True)
    ]
    packer = BestFitDecreasing(seq_len=SEQ_LEN, limits=[Separate("key", batches=True)])
    loader = PackedLoader(
        PackedDataset(
            records,
            packer=packer,
            batch_size=BATCH_ROWS,
            lanes=lanes,
            window=window,
            document_fields={"key": "int32"},
        )
    )
    for _ in loader:
        pass
    return 100 * loader.metrics().composition.utilisation


def fill(plan: Plan, lengths: NDArray[np.int64]) -> float:
    """Return the share of slots with tokens, in %."""
    return 100 * plan.metrics(lengths).utilisation


if __name__ == "__main__":
    main()
