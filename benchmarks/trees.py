"""Savings by trees, and the cost of finding them: ``python -m benchmarks.trees``.

Sequences of random tokens in groups of three kinds: 16 answers of 500 tokens to a prompt of 6,000;
a chat of 8 turns trained turn by turn, so that each sequence begins with the one before; pairs of
answers. "Fewer" are the tokens of the sequences over the slots of their trees. Times are of one
thread, the shortest of several passes, per token of the sequences: "found" is `trees.build.plant`
alone, "rows" is packing from memory to rows (`layout="tree"`, with the plan; "documents" without
trees), "fields" the fields that a batch makes on first use.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.report import print_table
from streampack import pack
from streampack.trees.build import plant

Groups = list[list[np.ndarray]]


def drawn(scale: float) -> dict[str, Groups]:
    """Groups by their kind."""
    rng = np.random.default_rng(0)

    def ids(count: int) -> np.ndarray:
        return rng.integers(0, 50_000, count).astype(np.uint32)

    def answers(prompt: int, answer: int, number: int) -> list[np.ndarray]:
        begin = ids(prompt)
        return [np.concatenate([begin, ids(answer)]) for _ in range(number)]

    def turns(number: int) -> list[np.ndarray]:
        whole = ids(int(rng.integers(100, 400, 2 * number).sum()))
        ends = np.sort(rng.choice(np.arange(1, len(whole)), number, replace=False))
        return [whole[:end] for end in ends.tolist()]

    many = {"answers": 16, "turns": 120, "pairs": 400}
    number = {kind: max(int(count * scale), 1) for kind, count in many.items()}
    return {
        "16 answers of 500 to 6,000": [answers(6000, 500, 16) for _ in range(number["answers"])],
        "8 turns, turn by turn": [turns(8) for _ in range(number["turns"])],
        "pairs of 300 to 300": [answers(300, 300, 2) for _ in range(number["pairs"])],
    }


def shortest(call: Callable[[], object], passes: int) -> float:
    """Seconds of the fastest of several passes, after one to compile."""
    times = []
    for _ in range(passes + 1):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times[1:])


def measured(groups: Groups, passes: int) -> list[str]:
    """A row of the table."""
    sequences = [sequence for group in groups for sequence in group]
    lengths = [len(sequence) for sequence in sequences]
    number = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    tokens, ends = np.concatenate(sequences), np.cumsum([0, *lengths])
    offsets = np.cumsum([0, *(len(group) for group in groups)])
    trees = plant(tokens, ends, offsets)

    def rows(tree: bool) -> list[object]:
        given = {"ids": sequences, "groups": number, "layout": "tree"} if tree else {}
        return list(pack(lengths, seq_len=16_384, **given).batches(sequences))  # type: ignore[arg-type]

    def fields() -> None:
        for batch in made:
            batch._fields = None
            batch.make_fields()

    made: list = rows(tree=True)
    seconds = [
        shortest(lambda: plant(tokens, ends, offsets), passes),
        shortest(lambda: rows(tree=True), passes),
        shortest(lambda: rows(tree=False), passes),
        shortest(fields, passes),
    ]
    return [
        f"{len(tokens):,}",
        f"{len(tokens) / int(trees.offsets[-1]):.2f}",
        *(f"{1e9 * each / len(tokens):.1f}" for each in seconds),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of groups")
    parser.add_argument("--passes", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print_table(
        "Trees, in nanoseconds per token of the sequences",
        ["groups", "tokens", "fewer", "found", "rows", "documents", "fields"],
        [[kind, *measured(each, options.passes)] for kind, each in drawn(options.scale).items()],
    )


if __name__ == "__main__":
    main()
