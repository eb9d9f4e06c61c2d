"""A degree of context parallelism per row length: ``python -m benchmarks.cp_degrees``.

Lanes of the library's own windows and packers are run on lengths alone, one for each rank, in
groups as a run's ranks form them. A GPU's operations in a step are its share of its group's rows,
by `Cost` for a layer: the parts of a document by zigzag are equal. A step takes as long as its
slowest GPU. The oracle knows all lengths: every document whole, on as few GPUs as its length needs,
and all GPUs level.

Communication counts the keys and values that a ring or an all-gather brings to a GPU: of all slots
that the others of its group hold, so degree - 1 times as many as its own. Seconds assume that all
of it is exposed: 8 heads of 128 in 2 bytes, 50 GB/s and 400 TFLOP/s for a GPU. The backward pass
has about twice as much of both.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.balance import Draw
from benchmarks.report import print_table
from streampack.forecasts.dry_run import stream_plan
from streampack.forecasts.measuring import measure_balance
from streampack.packers.cost import Cost
from streampack.packing import Balance, BestFitDecreasing, Buckets, Packer
from streampack.window.config import WindowConfig

RANKS = 64
SEQ_LENS, DEGREES = (8192, 32768, 131072), (1, 4, 16)
LONGEST = SEQ_LENS[-1]
HELD = LONGEST // DEGREES[-1]  # slots of a GPU in a step
KV_BYTES = 2 * 8 * 128 * 2  # of a slot, in a layer
GPU_OPS, GPU_BYTES = 400e12, 50e9  # per second
SAMPLE = 8192  # documents


@dataclass(frozen=True)
class Steps:
    """Work of the GPUs in a run's steps.

    Attributes:
        mean, greatest: operations of the GPUs of a step; (steps,) float64 each.
        least: of the same documents, whole and without padding, on as many GPUs; (steps,).
        degrees: (steps,) int64.
        used: share of slots that hold a token.
    """

    mean: NDArray[np.float64]
    greatest: NDArray[np.float64]
    least: NDArray[np.float64]
    degrees: NDArray[np.int64]
    used: float


def lognormal(median: float) -> Draw:
    """Lengths with a heavy tail; 665 resembles web text, more a long-context stage."""

    def draw(count: int, seed: int) -> NDArray[np.int64]:
        drawn = np.random.default_rng(seed).lognormal(np.log(median), 1.6, count)
        return np.maximum(drawn.astype(np.int64), 1)

    return draw


def simulated(packer: Packer, draw: Draw, tokens: int, cost: Cost, balance: Any) -> Steps:
    """Lanes in step, each of so many tokens, but for the time while windows fill, and the end."""
    mean = float(draw(100_000, 1).mean())
    window = WindowConfig().resolve(packer, LONGEST)
    costs, used = [], []
    for lane in range(RANKS):
        lengths = draw(int(tokens / mean), 1000 + lane)
        plan = stream_plan(lengths, packer, window, batch_tokens=LONGEST, balance=balance)
        size = (plan.stop - plan.start).astype(np.float64)
        pairs = np.add.reduceat(size * (size + 1) / 2, plan.row_offsets[:-1])
        alone = whole_cost(lengths, cost)[plan.document] * size
        alone = np.add.reduceat(alone, plan.row_offsets[:-1])
        rows = packer._rows_per_batch(plan.seq_len.astype(np.int64), LONGEST)
        ends = [0]
        while ends[-1] < plan.num_rows:  # rows of a batch, which are of one length
            ends.append(ends[-1] + int(rows[ends[-1]]))
        ends[-1] = plan.num_rows
        at = [int(plan.seq_len[low]) for low in ends[:-1]]
        batches = zip(at, pairwise(ends), strict=True)
        costs.append([(s, pairs[a:b].sum(), alone[a:b].sum()) for s, (a, b) in batches])
        used.append(plan.row_fill().sum() / plan.seq_len.sum())
    found: list[tuple[float, float, float, int]] = []
    count = min(map(len, costs))
    for rotation in range(count * 4 // 10, count * 8 // 10):
        (seq_len,) = {lane[rotation][0] for lane in costs}
        degree = DEGREES[SEQ_LENS.index(seq_len)]
        of_batch = cost.pair * np.array([lane[rotation][1] for lane in costs])
        of_gpu = (of_batch / degree + cost.token * HELD).reshape(-1, RANKS // degree)
        least = np.array([lane[rotation][2] for lane in costs]).reshape(of_gpu.shape)
        own = zip(of_gpu, least.sum(axis=1) / RANKS, strict=True)
        found += [(row.mean(), row.max(), least, degree) for row, least in own]
    means, greatest, least, degrees = (np.array(column) for column in zip(*found, strict=True))
    return Steps(means, greatest, least, degrees.astype(np.int64), float(np.mean(used)))


def whole_cost(lengths: NDArray[np.int64], cost: Cost) -> NDArray[np.float64]:
    """(N,) operations per token of documents of these lengths, cut at the longest row alone."""
    heads, rest = lengths // LONGEST, lengths % LONGEST
    return np.asarray((heads * cost(LONGEST) + cost(rest)) / lengths, dtype=np.float64)


def least_keys(draw: Draw) -> float:
    """Received keys per slot held, where documents are on as few GPUs as they need."""
    lengths = draw(1_000_000, 7)
    pieces = np.concatenate([np.full(int((lengths // LONGEST).sum()), LONGEST), lengths % LONGEST])
    degree = np.array(DEGREES)[np.searchsorted(SEQ_LENS, pieces)]
    return float(np.average(degree - 1, weights=pieces))


def row_of(name: str, steps: Steps, cost: Cost, best: float) -> list[str]:
    """One way beside the oracle, by the token that is no padding."""
    tokens = HELD * steps.used
    ops, least_ops = (float(of.mean()) / tokens for of in (steps.greatest, steps.least))
    keys = float((steps.degrees - 1).mean())
    least_s = least_ops / GPU_OPS + best * KV_BYTES / GPU_BYTES
    sent_s = keys * KV_BYTES / GPU_BYTES / steps.used
    seconds = ops / GPU_OPS + sent_s
    return [
        name,
        f"{steps.greatest.mean() / cost.token / HELD:.3f}",
        f"{steps.greatest.sum() / steps.mean.sum():.3f}",
        f"{100 * steps.used:.1f} %",
        f"{ops / least_ops:.3f}",
        f"{keys:.2f}",
        f"{100 * sent_s / seconds:.0f} %",
        f"{seconds / least_s:.2f}",
    ]


def main() -> None:
    """Print a table for each kind of lengths."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--medians", type=int, nargs="+", default=[665, 4000])
    parser.add_argument("--tokens", type=int, default=256 << 20, help="of a lane")
    parser.add_argument("--width", type=int, default=4096)
    given = parser.parse_args()
    cost = Cost.of_width(given.width)
    for median in given.medians:
        draw = lognormal(median)
        best = least_keys(draw)
        fixed = BestFitDecreasing(seq_len=LONGEST)
        level = measure_balance(
            draw(SAMPLE, 5), fixed, WindowConfig().resolve(fixed, LONGEST), batch_tokens=LONGEST
        )
        degrees = Buckets(seq_lens=SEQ_LENS, cp=DEGREES).with_sample(draw(SAMPLE, 5))
        rows = []
        for name, packer, balance in (
            ("16 for all", fixed, None),
            ('16 for all, `Balance("attention")`', fixed, level),
            ("1, 4, 16", degrees, None),
            (
                '1, 4, 16, `Balance("attention")`',
                replace(degrees, choice=Balance("attention")),
                None,
            ),
        ):
            steps = simulated(packer, draw, given.tokens, cost, balance)
            rows.append(row_of(name, steps, cost, best))
        assert isinstance(degrees.shares, tuple)
        shares = ", ".join(f"{100 * share:.0f} %" for share in degrees.shares)
        head = ["degree", "operations", "greatest / mean", "tokens in slots", "to the oracle"]
        head += ["keys received", "communication", "time to the oracle"]
        print_table(f"Median {median}, buckets' shares {shares}; least keys {best:.2f}", head, rows)


if __name__ == "__main__":
    main()
