"""Slots lost by aligning every document: ``python -m benchmarks.alignment``.

A lane's windows pack made lengths with `BestFitDecreasing(align=...)`. Padding after a document, up
to the multiple, and padding at the end of a row both count as lost.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import print_table
from streampack.forecasts.dry_run import stream_plan
from streampack.packing import BestFitDecreasing
from streampack.window.config import WindowConfig

ALIGN = (1, 4, 16, 32, 128)
DEVIATION = 1.0  # of the lengths' logarithm


def lognormal(mean: int, count: int) -> NDArray[np.int64]:
    """(count,) int64 lengths of documents, in tokens."""
    drawn = np.random.default_rng(0).lognormal(np.log(mean) - DEVIATION**2 / 2, DEVIATION, count)
    return np.maximum(drawn.astype(np.int64), 2)


def slots_used(lengths: NDArray[np.int64], seq_len: int, align: int) -> float:
    """Return the share of the rows' slots that hold a token."""
    packer = BestFitDecreasing(seq_len=seq_len, align=align)
    plan = stream_plan(lengths, packer, WindowConfig(), batch_tokens=8 * seq_len)
    return float((plan.stop - plan.start).sum() / plan.seq_len.sum())


def main() -> None:
    """Print a table with a line for each alignment."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--mean", type=int, default=700, help="tokens of a document")
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--documents", type=int, default=100_000)
    given = parser.parse_args()
    lengths = lognormal(given.mean, given.documents)
    used = [(align, slots_used(lengths, given.seq_len, align)) for align in ALIGN]
    title = f"Rows of {given.seq_len}, {len(lengths)} documents of {lengths.mean():.0f} tokens"
    print_table(
        title, ["align", "slots used"], [[f"{a}", f"{100 * share:.1f} %"] for a, share in used]
    )


if __name__ == "__main__":
    main()
