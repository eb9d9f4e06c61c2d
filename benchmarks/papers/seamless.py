"""Figures of "Improving Continual Pre-training Through Seamless Data Packing" beside ours.

    python -m benchmarks.papers.seamless [--seed 0] [--draws 20]

The corpora are not at hand, so lengths are drawn from the paper's histograms (tables 13 and 14;
its thousands are 1024, or the intervals would not be whole rows): uniform inside each interval, and
in the open last one uniform on [lo, 2 m - lo], where m makes the expected token count table 16's.
Formulas 6 and 7 are evaluated on the histogram; everything else is counted from plans.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import print_table
from streampack.packing import (
    BestFitDecreasing,
    Packer,
    PackingStats,
    Seamless,
    check_plan,
)


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """One histogram: documents per interval, intervals in tokens, the last one open."""

    name: str
    seq_len: int
    extra_capacity: int
    bounds: tuple[int, ...]
    counts: tuple[int, ...]
    tokens: int

    def open_mean(self) -> float:
        """Mean length in the open interval that gives the corpus its token count."""
        middles = (np.array(self.bounds[:-1]) + np.array(self.bounds[1:])) / 2
        closed = float((middles * np.array(self.counts[:-1])).sum())
        return (self.tokens - closed) / self.counts[-1]

    def lengths(self, seed: int) -> NDArray[np.int64]:
        """Documents drawn from the histogram, in random order."""
        rng = np.random.default_rng(seed)
        lows = self.bounds
        highs = (*self.bounds[1:], round(2 * self.open_mean()) - self.bounds[-1])
        parts = [
            rng.integers(low, high, count)
            for low, high, count in zip(lows, highs, self.counts, strict=True)
        ]
        return rng.permutation(np.concatenate(parts)).astype(np.int64)


PUBMED = Corpus(
    name="PubMed",
    seq_len=2048,
    extra_capacity=50,
    bounds=tuple(1024 * k for k in range(2, 20, 2)),
    counts=(3906, 4095, 1789, 763, 355, 150, 73, 47, 90),
    tokens=63_260_896,
)
BBC = Corpus(
    name="BBC",
    seq_len=512,
    extra_capacity=10,
    bounds=tuple(512 * k for k in range(1, 10)),
    counts=(3533, 6556, 1323, 330, 97, 49, 27, 22, 29),
    tokens=15_239_955,
)
CORPORA = (PUBMED, BBC)


def formulas(corpus: Corpus, share: Fraction) -> tuple[float, float]:
    """Formula 6, texts that slide, and formula 7, tokens of short chunks.

    The paper's T_k is the number of texts of k to k + 1 rows, so the open interval counts whole.
    """
    sliding, short = 0.0, 0.0
    first = corpus.bounds[0] // corpus.seq_len
    for k, count in enumerate(corpus.counts, first):
        covered = min(float(k * share), 1.0)
        sliding += covered * count
        short += (1 - covered) ** 2 * count * corpus.seq_len / 2
    return sliding, short


def counted(corpus: Corpus, share: Fraction, lengths: NDArray[np.int64]) -> tuple[int, int]:
    """Texts that slide, and tokens that stage two gets."""
    packer = Seamless(seq_len=corpus.seq_len, max_repetition=share)
    slides = packer.slides(lengths)
    return int(slides.sum()), int((lengths % corpus.seq_len)[~slides].sum())


def main() -> None:
    """Draw, plan, count, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draws", type=int, default=20)
    options = parser.parse_args()
    stage_one(PUBMED.lengths(options.seed))
    dropping(options.draws)


def stage_one(lengths: NDArray[np.int64]) -> None:
    """Section 4.8: figures by the formulas and by counting, at 0.3."""
    share = Fraction(3, 10)
    sliding, short = formulas(PUBMED, share)
    texts, tokens = counted(PUBMED, share, lengths)
    text_shares = [f"{count / len(lengths):.1%}" for count in (sliding, texts)]
    token_shares = [f"{short / PUBMED.tokens:.1%}", f"{tokens / lengths.sum():.1%}"]
    short_text, tokens_text = f"{short / 1e6:.2f} M", f"{tokens / 1e6:.2f} M"
    print_table(
        "Stage one on PubMed, max_repetition 0.3",
        ["", "paper, formula", "ours, formula", "paper, counted", "ours, counted"],
        [
            ["texts that slide", "6716", f"{sliding:.1f}", "6988", str(texts)],
            ["their share", "", text_shares[0], "62 %", text_shares[1]],
            ["tokens of short chunks", "2.6 M", short_text, "2.2 M", tokens_text],
            ["their share", "", token_shares[0], "3.4 %", token_shares[1]],
        ],
    )


def dropping(draws: int) -> None:
    """Appendix I.1: tokens Seamless drops beside tokens BFD pads, over several draws."""
    printed = {"PubMed": ("51 k", "75 k"), "BBC": ("7 k", "140 k")}
    rows = []
    for corpus in CORPORA:
        seamless = Seamless(seq_len=corpus.seq_len, extra_capacity=corpus.extra_capacity)
        packers: tuple[Packer, ...] = (
            seamless,
            BestFitDecreasing(seq_len=corpus.seq_len),
        )
        found = []
        for seed in range(draws):
            lengths = corpus.lengths(seed)
            found.append([packed(packer, lengths) for packer in packers])
        ours, theirs = zip(*found, strict=True)
        dropped, padding = printed[corpus.name]
        rows.append([
            corpus.name, dropped, spread([c.dropped for c in ours]), padding,
            spread([c.padding for c in theirs]),
        ])  # fmt: skip
    print_table(
        f"Dropped by Seamless, padded by best-fit-decreasing: tokens, {draws} draws of each corpus",
        ["corpus", "paper drops", "we drop", "paper's BFD pads", "our BFD pads"],
        rows,
    )  # fmt: skip


def packed(packer: Packer, lengths: NDArray[np.int64]) -> PackingStats:
    """Return the statistics of a checked plan over all documents."""
    plan = packer.plan(lengths, final=True, seed=0)
    check_plan(plan, lengths)
    return plan.metrics(lengths)


def spread(values: list[int]) -> str:
    """Least, median and greatest."""
    return f"{min(values):,} / {statistics.median(values):,.0f} / {max(values):,}"


if __name__ == "__main__":
    main()
