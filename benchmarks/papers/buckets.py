"""Tables 1 and 2 of "Bucket Pre-training is All You Need" beside results of the strategies here.

    python -m benchmarks.papers.buckets [--documents 1000000] [--seed 0]

The paper's corpus (100 GB of RefinedWeb, its tokenizer not named) is not given, only two figures
about it: 719 tokens per document on average (fixed lengths over their concatenation ratios) and
28.39 % of the documents cut at a fixed length of 2048. The script fits a lognormal to these two
numbers, draws lengths, runs every strategy over all of them and prints Markdown; then `Buckets`
once more with a shortest document, since a web corpus has no documents of one token. Nothing else
is fitted: all other figures are results. Takes about half a minute for a million documents.
"""

from __future__ import annotations

import argparse
import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers.multi_bucket import plan_multi_bucket
from streampack.packing import Buckets, Concat, Plan

SEQ_LENS = (2048, 4096, 8192, 16384)
MEAN = 719.0
TRUNCATED_AT_2048 = 0.2839
PADDING = 0.0028
#: Padding, truncation (percent) and concatenation ratio as printed in table 1.
TABLE_1 = {
    "Fixed-2048": (0.03, 28.39, 2.85),
    "Fixed-4096": (0.05, 15.65, 5.70),
    "Fixed-8192": (0.08, 8.26, 11.39),
    "Fixed-16384": (0.10, 4.25, 22.74),
    "Multi-Bucket": (0.07, 26.8, 3.78),
    "Buckets": (0.28, 0.18, 2.31),
}
TABLE_2 = (74.61, 17.52, 5.37, 2.49)
SHORTEST = (0, 50, 65, 80, 100, 105, 128)  # tokens


def fit(shortest: int = 0) -> tuple[float, float]:
    """(mu, sigma) of the lognormal that, beyond `shortest`, has the mean and the share cut at 2048.

    A document of l tokens at a random place of the joined stream is cut with probability
    min(1, (l - 1) / 2048).
    """
    normal = NormalDist()
    quantiles = np.array([normal.inv_cdf((i + 0.5) / 50_000) for i in range(50_000)])
    beyond = math.log(MEAN - shortest)
    low, high = 0.5, 3.0
    for _ in range(40):
        sigma = (low + high) / 2
        lengths = shortest + np.exp(beyond - sigma**2 / 2 + sigma * quantiles)
        cut = float(np.minimum((lengths - 1) / 2048, 1).mean())
        low, high = (sigma, high) if cut > TRUNCATED_AT_2048 else (low, sigma)
    return beyond - sigma**2 / 2, sigma


def draw(documents: int, seed: int, shortest: int = 0) -> NDArray[np.int64]:
    """(N,) int64 lengths of the fitted corpus."""
    mu, sigma = fit(shortest)
    lengths = shortest + np.exp(np.random.default_rng(seed).normal(mu, sigma, documents))
    return np.asarray(np.maximum(np.rint(lengths), 1).astype(np.int64))


def strategies(lengths: NDArray[np.int64]) -> dict[str, Plan]:
    """Every column of table 1, planned over the whole corpus."""
    plans = {
        f"Fixed-{size}": Concat(seq_len=size).plan(lengths, final=True, seed=0) for size in SEQ_LENS
    }
    plans["Multi-Bucket"] = plan_multi_bucket(lengths, SEQ_LENS)
    plans["Buckets"] = Buckets(seq_lens=SEQ_LENS).plan(lengths, final=True, seed=0)
    return plans


def print_table_1(plans: dict[str, Plan], lengths: NDArray[np.int64]) -> None:
    """Ours / the paper's."""
    print("| | padding | documents cut | documents per row |\n|---|---|---|---|")
    for name, plan in plans.items():
        got, paper = plan.metrics(lengths), TABLE_1[name]
        print(
            f"| {name} | {100 * got.padding_ratio:.4f} % / {paper[0]} % "
            f"| {100 * got.truncation_ratio:.2f} % / {paper[1]} % "
            f"| {got.concatenation_ratio:.2f} / {paper[2]} |"
        )


def print_table_2(plan: Plan) -> None:
    """Shares of the buckets by rows and by tokens."""
    print("\n| bucket | rows | tokens | paper |\n|---|---|---|---|")
    slots = int(plan.seq_len.sum(dtype=np.int64))
    for size, paper in zip(SEQ_LENS, TABLE_2, strict=True):
        rows = int((plan.seq_len == size).sum())
        by_rows, by_tokens = 100 * rows / plan.num_rows, 100 * rows * size / slots
        print(f"| {size} | {by_rows:.2f} % | {by_tokens:.2f} % | {paper} % |")


def print_bound() -> None:
    """Print the bound on documents per row that follows from the mean length alone."""
    kept = (1 - PADDING) / MEAN
    shares = np.array(TABLE_2) / sum(TABLE_2)
    sizes = np.array(SEQ_LENS)
    print(
        f"\nDocuments per row cannot be fewer than {SEQ_LENS[0]} x (1 - {PADDING}) / {MEAN:.0f} = "
        f"{SEQ_LENS[0] * kept:.2f}; the shares of table 2 give {kept / (shares / sizes).sum():.2f} "
        f"if they count tokens, {kept * (shares * sizes).sum():.2f} if they count rows."
    )


def print_shortest(documents: int, seed: int) -> None:
    """`Buckets` over corpora that differ in their shortest document."""
    print(
        "\n| shortest document | sigma | padding | documents cut | documents per row "
        "| most points from table 2 by rows |\n|---|---|---|---|---|---|"
    )
    for shortest in SHORTEST:
        lengths = draw(documents, seed, shortest)
        plan = Buckets(seq_lens=SEQ_LENS).plan(lengths, final=True, seed=0)
        got = plan.metrics(lengths)
        shares = [100 * float((plan.seq_len == size).mean()) for size in SEQ_LENS]
        most = max(abs(ours - paper) for ours, paper in zip(shares, TABLE_2, strict=True))
        print(
            f"| {lengths.min()} | {fit(shortest)[1]:.2f} | {100 * got.padding_ratio:.3f} % "
            f"| {100 * got.truncation_ratio:.2f} % | {got.concatenation_ratio:.2f} | {most:.1f} |"
        )


def main() -> None:
    """Fit, plan and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    mu, sigma = fit()
    lengths = draw(arguments.documents, arguments.seed)
    print(
        f"lognormal({mu:.3f}, {sigma:.3f}), {len(lengths)} documents, seed {arguments.seed}, "
        f"{lengths.mean():.1f} tokens on average, {100 * (lengths > SEQ_LENS[-1]).mean():.3f} % of "
        f"them above {SEQ_LENS[-1]}\n"
    )
    plans = strategies(lengths)
    print_table_1(plans, lengths)
    print_table_2(plans["Buckets"])
    print_bound()
    print_shortest(arguments.documents, arguments.seed)


if __name__ == "__main__":
    main()
