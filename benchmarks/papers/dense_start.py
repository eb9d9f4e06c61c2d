"""Dense rows of one length at the start, then rows of all lengths: padding and cuts by phase.

    python -m benchmarks.papers.dense_start [--documents 300000] [--start 0.3]

A dry run of one lane with batches of 65,536 tokens; lengths are lognormal(5.864, 1.195), as in
`buckets`. A curriculum takes one bucket alone for a share of the run, so that all batches have rows
of one length, and then all buckets by their shares of the corpus. A document is cut if it lies in
more than one row. About a minute.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import print_table
from streampack import BestFitDecreasing, Buckets, WindowConfig
from streampack.forecasts.dry_run import stream_plan
from streampack.packing import Curriculum, Packer, Plan

SEQ_LENS = (1024, 2048, 4096, 8192)
BATCH_TOKENS = 65_536
SIGMA = 1.195
MU = 5.864


def dense_start(lengths: NDArray[np.int64], start: float, bucket: int) -> Buckets:
    """Buckets that begin with rows of one bucket alone, for a share of the run's batches."""
    constant = Buckets(seq_lens=SEQ_LENS).with_sample(lengths[:8192])
    assert constant.shares is not None
    assert not isinstance(constant.shares, Curriculum)
    until = max(int(start * lengths.sum() / BATCH_TOKENS), 1)
    alone = tuple(float(size == SEQ_LENS[bucket]) for size in SEQ_LENS)
    knots = ((0, alone), (until - 1, alone), (until, tuple(constant.shares)))
    return Buckets(seq_lens=SEQ_LENS, shares=Curriculum(knots))


def phases(plan: Plan, lengths: NDArray[np.int64], start: float) -> list[list[str]]:
    """Cells for the rows before and after the share `start` of the slots."""
    before = np.cumsum(plan.seq_len) <= start * plan.seq_len.sum()
    row = np.repeat(np.arange(plan.num_rows), np.diff(plan.row_offsets))
    pieces = np.bincount(plan.document, minlength=len(lengths))
    used = np.bincount(row, weights=plan.stop - plan.start, minlength=plan.num_rows)
    cells = []
    for rows in (before, ~before):
        slots = int(plan.seq_len[rows].sum())
        documents = np.unique(plan.document[rows[row]])
        cells.append(
            [
                f"{slots / max(rows.sum(), 1):,.0f}",
                f"{lengths[documents].mean():,.0f}",
                f"{1 - used[rows].sum() / slots:.3%}",
                f"{(pieces[documents] > 1).mean():.2%}",
            ]
        )
    return cells


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=300_000)
    parser.add_argument("--start", type=float, default=0.3)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    lengths = np.maximum(rng.lognormal(MU, SIGMA, options.documents), 1).astype(np.int64)
    packers: Mapping[str, Packer] = {
        "BestFitDecreasing": BestFitDecreasing(seq_len=SEQ_LENS[-1]),
        "Buckets": Buckets(seq_lens=SEQ_LENS).with_sample(lengths[:8192]),
        "Buckets, the shortest first": dense_start(lengths, options.start, 0),
        "Buckets, the longest first": dense_start(lengths, options.start, -1),
    }
    rows = []
    for name, packer in packers.items():
        plan = stream_plan(lengths, packer, WindowConfig(), batch_tokens=BATCH_TOKENS)
        for phase, cells in zip(
            ("start", "rest"), phases(plan, lengths, options.start), strict=True
        ):
            rows.append([name, phase, *cells])
    head = ["packer", "phase", "slots per row", "tokens per document", "padding", "documents cut"]
    print_table(f"The first {options.start:.0%} of the slots, and the rest", head, rows)


if __name__ == "__main__":
    main()
