"""Figures of "Refining Packing and Shuffling Strategies for ... Generative Language Models".

    python -m benchmarks.papers.refining [--seed 0]

Table 3 counts the training steps of two epochs under Concat and Pad, with atoms of one row. The
corpus (WikiText-103 without paragraphs below 50 words) is not at hand; the paper gives its tokens
per epoch, and Concat's steps at seq_len 32 say how many EOS were added, one per document. Lengths
are drawn from three shapes that share this mean and the shortest length (50 words at the corpus's
tokens per word); none is fitted to Pad's steps.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import print_table
from streampack.packing import Concat, Pad, check_plan

TOKENS = 114_400_095
WORDS = 98_937_698
#: seq_len, rows per step, the paper's steps over two epochs: Concat, Pad.
TABLE_3 = ((32, 256, 28_120, 31_816), (64, 256, 14_058, 17_308), (128, 128, 14_056, 20_496))
EPOCHS = 2
SHORTEST = round(50 * TOKENS / WORDS)


def documents() -> int:
    """Return documents per epoch: Concat's slots beyond the tokens, where rows are shortest."""
    seq_len, rows, steps, _ = TABLE_3[0]
    return seq_len * rows * steps // EPOCHS - TOKENS


def lengths_of(shape: str, count: int, seed: int) -> NDArray[np.int64]:
    """(count,) tokens per document with its EOS; the mean is the corpus's."""
    rng = np.random.default_rng(seed)
    beyond = {
        "exponential": lambda: rng.exponential(1.0, count),
        "gamma 2": lambda: rng.gamma(2.0, 0.5, count),
        "lognormal 0.8": lambda: rng.lognormal(0.0, 0.8, count),
    }[shape]()
    beyond *= (TOKENS / documents() - SHORTEST) / beyond.mean()
    return np.rint(SHORTEST + beyond).astype(np.int64) + 1


def steps_of(packer: Concat | Pad, lengths: NDArray[np.int64], rows_per_step: int) -> int:
    """Steps over both epochs; a last step that is not full counts."""
    plan = packer.plan(lengths, final=True, seed=42)
    check_plan(plan, lengths)
    return EPOCHS * -(-plan.num_rows // rows_per_step)


def main() -> None:
    """Draw, plan, count, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="a hundredth: does it run?")
    options = parser.parse_args()
    seed, count = options.seed, documents() // (100 if options.small else 1)
    print(f"{count:,} documents, {TOKENS / count:.1f} tokens on average, at least {SHORTEST}.")
    shapes = ("exponential", "gamma 2", "lognormal 0.8")
    drawn = {shape: lengths_of(shape, count, seed) for shape in shapes}
    rows = []
    for seq_len, per_step, concat, pad in TABLE_3:
        ours = steps_of(Concat(seq_len=seq_len), drawn["gamma 2"], per_step)
        padded = [steps_of(Pad(seq_len=seq_len), drawn[shape], per_step) for shape in shapes]
        rows.append([
            str(seq_len), f"{concat:,}", f"{ours:,}", f"{pad:,}",
            *(f"{steps:,} ({steps / pad - 1:+.1%})" for steps in padded),
            f"{pad / concat:.3f}", f"{padded[1] / ours:.3f}",
        ])  # fmt: skip
    print_table(
        "Steps over two epochs, atom = seq_len",
        ["seq_len", "paper Concat", "our Concat", "paper Pad",
         *(f"our Pad, {shape}" for shape in shapes), "paper Pad / Concat", "ours, gamma 2"],
        rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
