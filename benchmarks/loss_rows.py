"""Loss tokens of ranks in step with ``Balance("loss")``: ``python -m benchmarks.loss_rows``.

On lengths alone, in rows of 8,192 tokens. Four made distributions: conversations of 1 to 8 turns,
where answers carry loss; questions about long texts with short answers; questions of which one in
eleven is longer than a row, which then has no loss; and a mixture of the first two with texts,
where all tokens carry loss. Without and with ``Balance("loss")``, for lanes of the library's own
windows, one for each rank, after the first windows: the standard deviation of the steps' loss
tokens, and of batches around the mean of their step, both in percent of the mean batch. The
first is the weight of a token in steps of the same size of update; the second its weight where each
rank averages over its own tokens.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks.image_rows import RANKS, SEQ_LEN, Sizes, lane_batches, texts
from benchmarks.report import print_table
from streampack.limits.loss_tokens import LOSS_TOKENS
from streampack.packing import Balance, BestFitDecreasing


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


def questions_alone(count: int, seed: int) -> Sizes:
    """Questions of any length, truncated to a row, with short answers."""
    rng = np.random.default_rng(seed)
    asked = rng.lognormal(np.log(2500), 0.9, count).astype(np.int64)
    answers = rng.lognormal(3, 1, count).astype(np.int64)
    tokens = np.clip(asked + answers, 1, SEQ_LEN)
    return tokens, tokens - np.clip(asked, 1, SEQ_LEN)


def mixed(count: int, seed: int) -> Sizes:
    """A third each of both and of texts."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 3, count)
    plain = texts(rng, count, 800)
    parts = [conversations(count + count // 8, seed), long_questions(count, seed), (plain, plain)]
    tokens, learnt = (np.choose(kind, [part[i][:count] for part in parts]) for i in range(2))
    return tokens, learnt


KINDS: dict[str, Callable[[int, int], Sizes]] = {
    "conversations": conversations, "long questions": long_questions,
    "questions that fill rows": questions_alone, "the first two, and texts": mixed,
}  # fmt: skip


def deviations(
    draw: Callable[[int, int], Sizes], packer: BestFitDecreasing, rows: int, steps: int
) -> list[float]:
    """Return the deviation between and within steps, for 8 and for 64 ranks, in percent."""
    found = []
    for ranks in (8, RANKS):
        batches = lane_batches(draw, packer, rows, steps, ranks, LOSS_TOKENS)
        between, within = batches.mean(axis=0).std(), np.sqrt(batches.var(axis=0).mean())
        found += [float(100 * each / batches.mean()) for each in (between, within)]
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    packer = BestFitDecreasing(seq_len=SEQ_LEN, overflow="drop")
    levels = []
    for name, draw in KINDS.items():
        for rows in (1, 4):
            without = deviations(draw, packer, rows, options.steps)
            level = deviations(draw, replace(packer, choice=Balance("loss")), rows, options.steps)
            cells = [f"{a:.1f} → {b:.1f}" for a, b in zip(without, level, strict=True)]
            levels.append([name, str(rows), *cells])
    places = [f"{where}, {ranks} ranks" for ranks in (8, RANKS) for where in ("between", "within")]
    print_table("Deviation of loss tokens, %", ["documents", "rows", *places], levels)


if __name__ == "__main__":
    main()
