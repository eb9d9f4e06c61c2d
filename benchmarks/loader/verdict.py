"""From the stages' costs to what limits, and what to do about it. Numbers in, words out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

__all__ = ["Costs", "Limit", "Pace", "judge", "making_s"]

Limit = Literal["storage", "reading", "tokenizer", "packing", "transfer", "loop"]

NEVER_WAITS = 0.01  # share of the time below which a loop counts as not waiting
FASTER = 1.25  # a loader this much faster than its loop need not let it wait
TAKING = 0.5  # share of the waits from which on they are the taking over of batches that are there
CROWDED = 0.6  # of what the stages promise: below it, processes take each other's time
ROOM = 1.2  # more than what is just needed


@dataclass(frozen=True)
class Costs:
    """Seconds per token of the stages, each measured by itself in one process.

    Attributes:
        storage: until bytes are there, beyond what reading them again takes.
        reading: decompressing and parsing; tokenizer: tokenizing, or checking ids.
        packing: window, planning, gathering rows.
        transfer: what the loop's own process spends on a batch that is made: receiving it from a
            worker, making its fields, copying it to the device.
    """

    storage: float
    reading: float
    tokenizer: float
    packing: float
    transfer: float


@dataclass(frozen=True)
class Pace:
    """The whole loader, and the loop beside it.

    Attributes:
        workers: processes; cores: of this rank; device: that batches go to.
        batch_tokens: tokens of a batch; rate: tokens per second that the loader gives at most.
        step_s: the loop's own time per batch, None if none was given.
        waiting: share of the loop's time that it waits; wait_p95_s: of its waits.
    """

    workers: int
    cores: int
    batch_tokens: float
    rate: float
    device: str = "cpu"
    step_s: float | None = None
    waiting: float = 0.0
    wait_p95_s: float = 0.0

    @property
    def needed(self) -> float | None:
        """Tokens per second of the loop if it never waits."""
        return self.batch_tokens / self.step_s if self.step_s else None

    @property
    def fast(self) -> bool:
        """Whether the loader gives clearly more than the loop needs."""
        return self.needed is not None and self.rate > FASTER * self.needed

    @property
    def wait_s(self) -> float:
        """Mean of the loop's waits."""
        return (self.step_s or 0.0) * self.waiting / (1 - self.waiting)


def making_s(costs: Costs) -> float:
    """Seconds per token of one process that makes batches; storage is read ahead meanwhile."""
    return max(costs.storage, costs.reading + costs.tokenizer + costs.packing)


def judge(costs: Costs, pace: Pace) -> tuple[Limit, list[str]]:
    """What limits, and sentences: the fact first, then the remedy."""
    step = pace.batch_tokens / pace.rate
    if pace.needed is not None and pace.waiting < NEVER_WAITS:
        return "loop", [
            f"The loop limits: the loader gives {pace.rate / pace.needed:.1f} times what it needs, "
            f"and it waits {100 * pace.waiting:.2f} % of the time.",
            f"Steps could be as short as {1000 * step:.3g} ms before it waited for data.",
        ]
    limit = _slowest(costs, pace)
    sentences = [_fact(limit, costs, pace), _remedy(limit, costs, pace)]
    if pace.needed is None:
        sentences.append(
            f"A loop with steps of {1000 * ROOM * step:.3g} ms or more per batch does not wait; "
            "--step-ms measures it with your own."
        )
    else:
        share = f"At steps of {1000 * (pace.step_s or 0):.3g} ms the loop waits "
        sentences.insert(0, f"{share}{100 * pace.waiting:.1f} % of the time.")
        if pace.fast and limit != "transfer":
            sentences.append(
                f"On average the loader gives {pace.rate / pace.needed:.1f} times what the loop "
                f"needs, but unevenly (p95 of the waits {1000 * pace.wait_p95_s:.3g} ms): "
                "more prefetch_factor= evens it out."
            )
    promised = _promised(costs, pace)
    if pace.workers and pace.rate < CROWDED * promised:
        sentences.append(
            f"The stages by themselves promise {promised / 1e6:.3g} M tokens/s and together give "
            f"{pace.rate / 1e6:.3g}: the processes take each other's cores ({pace.cores} for this "
            f"rank) or storage. Fewer workers or ranks per host may give as much."
        )
    return limit, sentences


def _promised(costs: Costs, pace: Pace) -> float:
    """Tokens per second if nothing disturbed anything else."""
    processes = max(min(pace.workers, pace.cores), 1)
    if not pace.workers:
        return 1 / (making_s(costs) + costs.transfer)
    return 1 / max(making_s(costs) / processes, costs.transfer)


def _slowest(costs: Costs, pace: Pace) -> Limit:
    making: dict[Limit, float] = {
        "storage": costs.storage,
        "reading": costs.reading,
        "tokenizer": costs.tokenizer,
        "packing": costs.packing,
    }
    processes = max(min(pace.workers, pace.cores), 1)
    if pace.fast and costs.transfer * pace.batch_tokens > TAKING * pace.wait_s:
        return "transfer"  # batches are there, and the loop's process is busy taking them over
    alone = costs.transfer > making_s(costs) / processes
    if alone if pace.workers else costs.transfer > max(making.values()):
        return "transfer"
    return max(making, key=lambda name: making[name])


def _fact(limit: Limit, costs: Costs, pace: Pace) -> str:
    names = {
        "storage": "waiting for storage",
        "reading": "decompressing and parsing",
        "tokenizer": "the tokenizer",
        "packing": "packing",
        "transfer": "taking batches over and making their fields"
        if pace.device == "cpu"
        else "taking batches over and copying them to the device",
    }
    seconds = getattr(costs, limit)
    where = (
        "in the loop's own process"
        if limit == "transfer" or not pace.workers
        else f"in each of {pace.workers} workers"
        if pace.workers > 1
        else "in the worker"
    )
    total = costs.storage + costs.reading + costs.tokenizer + costs.packing
    total += 0 if pace.workers else costs.transfer
    share = "" if limit == "transfer" and pace.workers else f", {100 * seconds / total:.0f} % of it"
    head = names[limit][0].upper() + names[limit][1:]
    return (
        f"{head} limits: {1000 * seconds * pace.batch_tokens:.3g} ms per batch {where}{share}; "
        f"the loader gives {pace.rate / 1e6:.3g} M tokens/s."
    )


def _remedy(limit: Limit, costs: Costs, pace: Pace) -> str:
    if limit == "transfer":
        sentences = [
            "It is hidden where the device computes meanwhile (no synchronisation per step).",
            "A few large batches cost less than many small ones (batch_tokens=).",
        ]
        if pace.device == "cpu":
            sentences.append(
                "On a GPU, batch.to(device) before any field is asked for moves an eighth of the "
                "bytes and makes the fields there."
            )
        return " ".join(sentences)
    workers = _workers(costs, pace)
    if limit == "storage":
        return (
            "Keep the shards nearer (the same region, a local disk), write them compressed "
            "(`streampack convert ... --compression zstd`), or read more at once: "
            f"{workers}, or more open shards: reading=sources.Reading(open_shards=4) of the source."
        )
    if limit == "reading":
        return (
            "Write the corpus as uncompressed MDS shards, which are mapped and not parsed, or use "
            f"{workers}."
        )
    if limit == "tokenizer":
        return (
            "Tokenize once and keep the ids (`streampack convert SOURCE DEST --tokenizer ...`), "
            f"or use {workers}."
        )
    return f"Use {workers}, or larger batches (batch_tokens=)."


def _workers(costs: Costs, pace: Pace) -> str:
    """How many worker processes, in words."""
    if pace.needed is None:
        return f"num_workers={min(pace.workers + 1, max(pace.cores, 1))} or more"
    wanted = math.ceil(ROOM * making_s(costs) * pace.needed)
    if wanted <= pace.workers:
        return f"more than num_workers={pace.workers} (the stages by themselves would do with that)"
    words = f"num_workers={wanted}"
    if wanted > pace.cores:
        words += f" (this rank has {pace.cores} cores)"
    return words
