"""Rollouts divided among ranks, beside the ways of verl, prime-rl and TRL:
``python -m benchmarks.rollouts``.

The peers' rules as their sources have them in 2026, written anew here, since none installs without
a GPU's libraries:

- verl (`seqlen_balancing`): largest differencing (Karmarkar and Karp) divides the rollouts among
  ranks, as many on each, by 24576 * length + length ** 2. Each rank cuts its own into micro-batches
  by the same rule, as many as the tokens of the fullest rank take up. Nothing limits a micro-batch.
- prime-rl (`prepare_batch`): first-fit-decreasing into rows; the costliest rows are split until
  ranks divide their number (or rows are repeated without loss); largest differencing and exchanges
  give each rank as many rows, by their cost.
- TRL (GRPO): each rank has its own prompts; rollouts are shuffled, cut into micro-batches of equal
  numbers, and padded to the rank's longest.

A rank's micro-batch costs the sum of `Cost` over its documents (TRL's: padded). Ranks wait for each
other in every micro-batch; "time" is the sum of the costliest rank's over the cost without padding
and waits.
"""

from __future__ import annotations

import argparse
import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import print_table
from streampack import pack
from streampack.packing import Cost, FirstFitDecreasing

Rows = list[list[list[int]]]  # by rank and micro-batch, the numbers of the rollouts


@dataclass(frozen=True)
class Work:
    """A step's rollouts.

    Attributes:
        lengths: (N,) int64 tokens, one prompt after another; group: rollouts of a prompt.
        seq_len: slots of a row; ranks: data-parallel ranks.
        cost: of a document.
    """

    lengths: NDArray[np.int64]
    group: int
    seq_len: int
    ranks: int
    cost: Cost


def drawn(prompts: int, group: int, median: int, longest: int, seed: int) -> NDArray[np.int64]:
    """Lengths that differ between prompts and between the rollouts of one, cut at `longest`."""
    rng = np.random.default_rng(seed)
    hardness = rng.normal(0, 0.6, prompts)[:, None]
    tokens = median * np.exp(hardness + rng.normal(0, 0.5, (prompts, group)))
    return np.clip(tokens.astype(np.int64), 16, longest).ravel()


def differencing(values: list[int], parts: int, *, equal: bool) -> list[list[int]]:
    """Largest differencing: the numbers of the values in each part; `equal`: as many in all."""
    order = sorted(range(len(values)), key=lambda i: (values[i], i))
    starts = [order[i : i + parts] for i in range(0, len(order), parts)] if equal else None
    heap: list[tuple[int, int, list[tuple[int, list[int]]]]] = []
    for number, chosen in enumerate(starts or [[i] for i in order]):
        sums = [(values[i], [i]) for i in chosen] + [(0, [])] * (parts - len(chosen))
        sums.sort(key=lambda part: -part[0])
        heapq.heappush(heap, (sums[-1][0] - sums[0][0], number, sums))
    while len(heap) > 1:
        _, number, one = heapq.heappop(heap)
        _, _, other = heapq.heappop(heap)
        both = [(a[0] + b[0], a[1] + b[1]) for a, b in zip(one, reversed(other), strict=True)]
        both.sort(key=lambda part: -part[0])
        heapq.heappush(heap, (both[-1][0] - both[0][0], number, both))
    return [items for _, items in heap[0][2]]


def as_verl(work: Work, *, grouped: bool = False) -> Rows:
    """verl's way; with `grouped`, the rollouts of a prompt stay on one rank."""
    lengths = work.lengths.tolist()
    load = [24_576 * n + n * n for n in lengths]
    size = work.group if grouped else 1
    whole = [sum(load[i : i + size]) for i in range(0, len(load), size)]
    ranks = [
        [i * size + k for i in part for k in range(size)]
        for part in differencing(whole, work.ranks, equal=True)
    ]
    count = max(-(-sum(lengths[i] for i in own) // work.seq_len) for own in ranks)
    rows = []
    for own in ranks:
        parts = differencing([load[i] for i in own], count, equal=False)
        made = [[own[k] for k in part] for part in parts]
        made.sort(key=lambda row: -sum(load[i] for i in row))
        rows.append(made[::2][::-1] + made[1::2])
    return rows


def as_prime_rl(work: Work) -> Rows:
    """prime-rl's way."""
    lengths, cost = work.lengths, work.cost(work.lengths)
    packed = FirstFitDecreasing(seq_len=work.seq_len).plan(lengths, final=True, seed=0)
    rows = [part.tolist() for part in np.split(packed.document, packed.row_offsets[1:-1])]
    wanted = -(-len(rows) // work.ranks) * work.ranks
    while len(rows) < wanted and any(len(row) > 1 for row in rows):
        at = max((cost[row].sum(), i) for i, row in enumerate(rows) if len(row) > 1)[1]
        halves: list[list[int]] = [[], []]
        for i in sorted(rows[at], key=lambda i: -cost[i]):
            halves[int(cost[halves[0]].sum() > cost[halves[1]].sum())].append(i)
        rows[at] = halves[0]
        rows.append(halves[1])
    rows += [rows[0]] * (wanted - len(rows))
    loads = np.array([cost[row].sum() for row in rows])
    parts = exchanged(loads, differencing(loads.astype(int).tolist(), work.ranks, equal=True))
    return [[rows[i] for i in part] for part in parts]


def exchanged(loads: NDArray[np.float64], parts: list[list[int]]) -> list[list[int]]:
    """Two rows are exchanged as long as that makes the costliest rank cheaper."""
    held = np.array(parts)
    while True:
        sums = loads[held].sum(axis=1)
        top = int(np.argmax(sums))
        moved = loads[held[top]][:, None, None] - loads[held][None]  # (mine, rank, theirs)
        after = np.maximum(sums[top] - moved, (sums[None, :, None] + moved))
        after[:, top] = np.inf
        mine, rank, theirs = np.unravel_index(np.argmin(after), after.shape)
        if after[mine, rank, theirs] >= sums[top]:
            return held.tolist()
        held[top, mine], held[rank, theirs] = held[rank, theirs], held[top, mine]


def as_trl(work: Work) -> Rows:
    """TRL's way, with as many rollouts per micro-batch as a row of the longest have room."""
    own = np.arange(len(work.lengths)).reshape(work.ranks, -1)
    each = max(work.seq_len // int(work.lengths.max()), 1)
    rng = np.random.default_rng(0)
    rows = []
    for numbers in own:
        order = rng.permutation(numbers).tolist()
        rows.append([order[i : i + each] for i in range(0, len(order), each)])
    return rows


def as_streampack(work: Work, *, grouped: bool = False) -> Rows:
    """`pack`."""
    groups = np.arange(len(work.lengths)) // work.group if grouped else None
    plan = pack(work.lengths, seq_len=work.seq_len, ranks=work.ranks, groups=groups, cost=work.cost)
    return [
        [plan.documents(rank, place).tolist() for place in range(plan.microbatches)]
        for rank in range(work.ranks)
    ]


WAYS: dict[str, Callable[[Work], Rows]] = {
    "streampack": as_streampack,
    "verl": as_verl,
    "prime-rl": as_prime_rl,
    "TRL": as_trl,
    "streampack, prompts on one rank": lambda work: as_streampack(work, grouped=True),
    "verl, prompts on one rank": lambda work: as_verl(work, grouped=True),
}


def line(name: str, work: Work) -> list[str]:
    """Return a way's results as a line of the table."""
    way = WAYS[name]
    way(work)
    began = time.perf_counter()
    rows = way(work)
    spent = time.perf_counter() - began
    padded = np.array([work.lengths[np.concatenate(rank)].max() for rank in rows])
    costs, tokens = np.zeros((2, len(rows), len(rows[0])))
    slots = 0
    for r, rank in enumerate(rows):
        for m, row in enumerate(rank):
            sizes = work.lengths[row]
            if name == "TRL":
                sizes = np.full(len(row), padded[r])
            costs[r, m] = work.cost(sizes).sum()
            tokens[r, m] = sizes.sum()
            slots += int(sizes.sum()) if name == "TRL" else max(work.seq_len, int(sizes.sum()))
    ideal = work.cost(work.lengths).sum() / work.ranks
    used = int(work.lengths.sum())
    return [
        name,
        f"{len(rows[0])}",
        f"{costs.max(axis=0).sum() / ideal:.3f}",
        f"{100 * (1 - used / slots):.1f} %",
        f"{tokens.max() / work.seq_len:.2f}",
        f"{1e3 * spent:.1f} ms",
    ]


def main() -> None:
    """Print a table for each kind of work."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="the smallest kind only")
    args = parser.parse_args()
    cost = Cost.of_width(4096)
    kinds = ((64, 8, 700, 8192, 8), (128, 16, 3000, 32768, 8), (512, 16, 3000, 32768, 64))
    head = ["way", "micro-batches", "time", "padding", "fullest row", "planned in"]
    for prompts, group, median, seq_len, ranks in kinds[:1] if args.small else kinds:
        longest = seq_len // 2 if median < 1000 else seq_len
        work = Work(drawn(prompts, group, median, longest, args.seed), group, seq_len, ranks, cost)
        title = (
            f"{prompts} prompts of {group} rollouts, {ranks} ranks, rows of {seq_len}; lengths: "
            f"mean {work.lengths.mean():.0f}, longest {work.lengths.max()}"
        )
        print_table(title, head, [line(name, work) for name in WAYS])


if __name__ == "__main__":
    main()
