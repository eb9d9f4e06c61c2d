"""Lengths of answers that are sampled and trained, by the rule of the queue.

    python -m benchmarks.rollout_lengths

A simulation without a clock or a model: 128 groups are in flight, an answer takes as long as its
tokens (lognormal, median 1,000, up to 60 times as long), and a step of 64 groups takes no time.
Beside windowed FIFO, by the order that `streampack.rollouts` runs, stands a queue that gives the
trainer the groups that are finished first, and discards those that are older than two steps.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import print_table
from streampack.rollouts.schedule import Rule, Schedule, TicketId

GROUPS, STEPS, OLDEST = 64, 300, 2
BINS = np.array([0, 500, 1000, 2000, 4000, 8000, 16_000, 1 << 30])


def windowed(lengths: NDArray[np.int64]) -> list[int]:
    """Return the prompts that windowed FIFO trains, in the order of steps."""
    schedule = Schedule(Rule(GROUPS, steps_ahead=1, window=GROUPS), "simulated")
    running: list[tuple[int, TicketId]] = []
    now, trained = 0, []
    while schedule.steps < STEPS:
        while (serial := schedule.wanted()) is not None:
            heapq.heappush(running, (now + int(lengths[serial]), schedule.dispatch(now)))
        now, ticket = heapq.heappop(running)
        schedule.put(ticket, None)
        trained += [group.serial for group in schedule.next_step() or ()]
        schedule.publish(schedule.steps)
    return trained


def first_finished(lengths: NDArray[np.int64]) -> list[int]:
    """Return the prompts that a queue without an order trains, which discards old groups."""
    running: list[tuple[int, int, int]] = []  # end, prompt, steps at its dispatch
    now, next_prompt, steps, finished, trained = 0, 0, 0, [], []
    while steps < STEPS:
        while len(running) < 2 * GROUPS:
            heapq.heappush(running, (now + int(lengths[next_prompt]), next_prompt, steps))
            next_prompt += 1
        now, prompt, born = heapq.heappop(running)
        if steps - born <= OLDEST:
            finished.append(prompt)
        if len(finished) == GROUPS:
            trained, finished, steps = trained + finished, [], steps + 1
    return trained


def shares(lengths: NDArray[np.int64], trained: list[int]) -> NDArray[np.float64]:
    """Return the share of the prompts of each bin, (bins,), that was trained.

    Prompts that were in flight in the last tenth of the run are left out.
    """
    dispatched = np.arange(int(0.9 * max(trained)))
    bins = len(BINS) - 1
    by_length = np.digitize(lengths, BINS) - 1
    kept = np.intersect1d(dispatched, trained)
    counts = [np.bincount(by_length[part], minlength=bins) for part in (kept, dispatched)]
    return counts[0] / np.maximum(counts[1], 1)


def main() -> None:
    """Print a table."""
    rng = np.random.default_rng(0)
    lengths = np.clip(1000 * np.exp(rng.normal(0, 1.2, 100_000)), 8, 60_000).astype(np.int64)
    rules = {"windowed FIFO": windowed(lengths), "first finished": first_finished(lengths)}
    trained = {name: shares(lengths, prompts) for name, prompts in rules.items()}
    names = [
        f"{a:,} to {b:,}" for a, b in zip(BINS[:-2].tolist(), BINS[1:-1].tolist(), strict=True)
    ]
    names.append(f"{BINS[-2]:,} and more")
    rows = [
        [name, *(f"{part[i]:.1%}" for part in trained.values())] for i, name in enumerate(names)
    ]
    head = ["tokens of the answer", *(f"trained, {name}" for name in trained)]
    print_table("Share of the sampled prompts that are trained", head, rows)


if __name__ == "__main__":
    main()
