"""Orders of micro-batches in pipelines, simulated: ``python -m benchmarks.pipelines``.

`pack` divides lognormal lengths among 8 ranks, and the micro-batches of a rank pass through a
pipeline, by 1F1B and by 1F1B with two chunks of layers on each stage (interleaved). Every stage
spends an equal part of a micro-batch's cost forward, and twice that backward. Sending takes no
time.
"""

from __future__ import annotations

import argparse
from itertools import chain, zip_longest
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import print_table
from streampack import pack
from streampack.packing import Cost

RANKS = 8
ORDERS: tuple[Literal["shuffled", "decreasing", "peaked"], ...]
ORDERS = ("shuffled", "decreasing", "peaked")


class Work(NamedTuple):
    """One micro-batch in one chunk of layers, forward or backward."""

    microbatch: int
    layers: int
    backward: bool


def schedule(stage: int, stages: int, chunks: int, count: int) -> list[Work]:
    """Return the work of a stage in its order; the chunks of layers are counted from the input.

    With several chunks, the micro-batches (`count`) are a multiple of the stages.
    """
    places = [(microbatch, 0) for microbatch in range(count)]
    warm = stages - stage - 1
    if chunks > 1:
        places = [
            (microbatch, chunk)
            for first in range(0, count, stages)
            for chunk in range(chunks)
            for microbatch in range(first, first + stages)
        ]
        warm = 2 * warm + (chunks - 1) * stages
    warm = min(warm, len(places))
    forward = [Work(m, chunk * stages + stage, False) for m, chunk in places]
    backward = [Work(m, (chunks - 1 - chunk) * stages + stage, True) for m, chunk in places]
    pairs = zip_longest(forward[warm:], backward)
    return forward[:warm] + [work for work in chain.from_iterable(pairs) if work is not None]


def bubble(costs: NDArray[np.float64], stages: int, chunks: int) -> float:
    """Return the share of the stages' time spent waiting; costs are (microbatches,), in order."""
    left = [schedule(stage, stages, chunks, len(costs))[::-1] for stage in range(stages)]
    free = np.zeros(stages)
    ended: dict[Work | None, float] = {None: 0.0}
    while any(left):
        for stage in range(stages):
            while left[stage] and (needed := _needed(left[stage][-1], stages * chunks)) in ended:
                work = left[stage].pop()
                part = costs[work.microbatch] / (stages * chunks) * (2 if work.backward else 1)
                free[stage] = ended[work] = max(free[stage], ended[needed]) + part
    return float(1 - 3 * costs.sum() / (stages * free.max()))


def _needed(work: Work, layers: int) -> Work | None:
    """The work with the result that this one takes in; None for the first chunk of layers."""
    if not work.backward:
        return work._replace(layers=work.layers - 1) if work.layers else None
    if work.layers == layers - 1:
        return work._replace(backward=False)
    return work._replace(layers=work.layers + 1)


def line(lengths: NDArray[np.int64], seq_len: int, stages: int, chunks: int) -> list[str]:
    """Return the cells of a pipeline's row in the table."""
    cost = Cost.of_width(4096)
    needed = pack(lengths, seq_len=seq_len, ranks=RANKS, cost=cost).microbatches
    count = -(-needed // stages) * stages
    cells = []
    for order in ORDERS:
        plan = pack(
            lengths, seq_len=seq_len, ranks=RANKS, cost=cost, microbatches=count, order=order
        )
        cells.append(np.mean([bubble(costs, stages, chunks) for costs in plan.costs]))
    cells.append(bubble(np.ones(count), stages, chunks))
    kind = "1F1B" if chunks == 1 else f"interleaved, {chunks} chunks"
    return [f"{seq_len}", f"{stages}", kind, f"{count}", *(f"{100 * c:.1f} %" for c in cells)]


def main() -> None:
    """Print the share of time that stages wait, by pipeline and order."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--median", type=int, default=3000, help="tokens of a document")
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    rows = []
    for seq_len, count in ((32_768, 2048), (131_072, 8192)):
        drawn = rng.lognormal(np.log(given.median), 1.3, count).astype(np.int64)
        lengths = np.clip(drawn, 16, seq_len)
        rows += [line(lengths, seq_len, stages, chunks) for stages in (4, 8) for chunks in (1, 2)]
    head = ["seq_len", "stages", "schedule", "micro-batches", *ORDERS, "equal micro-batches"]
    print_table("Time that stages wait", head, rows)


if __name__ == "__main__":
    main()
