"""Loss tokens of ranks in step with ``balance="loss"``: ``python -m benchmarks.loss_rows``.

On lengths alone, in rows of 8,192 tokens. Three made distributions: conversations of 1 to 8 turns,
where answers carry loss; questions about long texts with short answers; and a mixture of these with
texts, where all tokens carry loss. The loss tokens of a step's greatest batch over those of its
mean batch, all steps together, without and with ``balance="loss"``, for lanes of the library's own
windows, one for each rank, after the first windows. Where each rank averages over its own loss
tokens, this is how much less a token counts on that rank than in the mean.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks.image_rows import SEQ_LEN, Sizes, imbalances, texts
from benchmarks.report import print_table
from streampack.packing import BestFitDecreasing
from streampack.packing.loss_tokens import LOSS_TOKENS


def conversations(count: int, seed: int) -> Sizes:
    """1 to 8 turns of a short question and a longer answer."""
    rng = np.random.default_rng(seed)
    turns = rng.integers(1, 9, count)
    first = np.cumsum(turns) - turns
    asked = np.add.reduceat(texts(rng, int(turns.sum()), 60), first)
    answers = np.add.reduceat(texts(rng, int(turns.sum()), 200), first)
    fits = asked + answers <= SEQ_LEN
    return (asked + answers)[fits], answers[fits]


def long_questions(count: int, seed: int) -> Sizes:
    """Texts of some thousand tokens, with a question and a short answer."""
    rng = np.random.default_rng(seed)
    answers = texts(rng, count, 100)
    asked = np.clip(rng.lognormal(np.log(1500), 0.8, count), 50, 4000).astype(np.int64)
    return asked + answers, answers


def mixed(count: int, seed: int) -> Sizes:
    """A third each of both and of texts."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 3, count)
    plain = texts(rng, count, 800)
    parts = [conversations(count + count // 8, seed), long_questions(count, seed), (plain, plain)]
    tokens, learnt = (np.choose(kind, [part[i][:count] for part in parts]) for i in range(2))
    return tokens, learnt


KINDS: dict[str, Callable[[int, int], Sizes]] = {
    "conversations": conversations, "long questions": long_questions, "both, and texts": mixed,
}  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    packer = BestFitDecreasing(seq_len=SEQ_LEN, overflow="drop")
    levels = []
    for name, draw in KINDS.items():
        for rows in (1, 4):
            without = imbalances(draw, packer, rows, options.steps, LOSS_TOKENS)
            level = imbalances(
                draw, replace(packer, balance="loss"), rows, options.steps, LOSS_TOKENS
            )
            cells = [f"{a:.2f} → {b:.2f}" for a, b in zip(without, level, strict=True)]
            levels.append([name, str(rows), *cells])
    print_table(
        "Loss tokens of the greatest batch over the mean",
        ["documents", "rows", "8 ranks", "64 ranks"], levels,
    )  # fmt: skip


if __name__ == "__main__":
    main()
