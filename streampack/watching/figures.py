"""Figures of waits: of one rank, and of all ranks, with the stage that limits each."""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.metrics import LaneTimes

ENOUGH = 0.05  # share of exposed waits up to which the training step is the limit
SHOWN = 8  # ranks in a table

#: Stages that make a batch, in the process that makes it, with the lane times of each.
MAKING = {
    "storage": ("read_s",),
    "decoding": ("decode_s",),
    "iterable": ("iterate_s",),
    "tokenizing": ("prepare_s",),
    "hooks": ("hook_s",),
    "ordering": ("order_s",),
    "packing": ("pack_s", "gather_s"),
    "media": ("finish_s",),
    "sending": ("send_s",),
}
#: Changes that help, by limit.
REMEDIES = {
    "step": "The loader is fast enough: a faster loader gains nothing.",
    "other ranks": "This rank waits for another one: see `Waits.over_ranks`.",
    "loader": "The loader is no PackedLoader, so its stages are unknown.",
    "storage": "More workers, larger shards, a nearer store, or a cache on a local disk.",
    "decoding": "More workers, or shards of token ids (streampack convert); in Parquet small row "
    "groups.",
    "tokenizing": 'The extra "fast", or more workers; with Unigram or WordPiece tokenize once '
    "(streampack convert).",
    "iterable": "More workers and lanes, or an iterable or dataset that takes less time per item.",
    "hooks": "More workers, or a faster filter=, map= or stage; or change the data once, before.",
    "ordering": "More workers, a smaller ordering window, or order once (streampack order).",
    "packing": "More workers, more rows per batch, or a smaller window.",
    "media": "More workers, or smaller images.",
    "sending": "Fewer or narrower token fields, or num_workers=0.",
    "receiving": "Make the fields on the device (device=), or use fewer token fields.",
    "transform": "Do less in transform=, or do it on the device.",
    "other": "Report over more steps, as lanes count their stages once per round; or profile the "
    "loop, as the time is in none of them.",
}


@dataclass(frozen=True, slots=True)
class RankWaits:
    """Waits of one rank's loop for batches over an interval; `str` shows them as a table.

    Attributes:
        rank: index of the rank.
        steps: number of steps.
        seconds: length of the interval.
        wait_s: seconds that the loop stood in `next()`, whether or not its device still computed.
        exposed_s: seconds of these in which the device had no work either: the time that a perfect
            loader would save. Without a CUDA device equal to `wait_s`.
        ranks_s: seconds of `wait_s` in which the loader waited for other ranks.
        transform_s: seconds of `wait_s` after the batch had arrived, mostly in `transform=`.
        p50_s, p95_s, p99_s: quantiles of the waits of single steps.
        workers: number of worker processes; -1 if the stages of the loader are unknown.
        times: seconds by stage, summed over worker processes.
    """

    rank: int
    steps: int
    seconds: float
    wait_s: float
    exposed_s: float
    ranks_s: float
    transform_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    workers: int
    times: LaneTimes

    @property
    def waiting(self) -> float:
        """Share of the interval in exposed waits, 0 to 1."""
        return min(self.exposed_s / max(self.seconds, 1e-9), 1.0)

    @property
    def own_waiting(self) -> float:
        """Share of the interval in exposed waits that were not for other ranks, 0 to 1."""
        return min(max(self.exposed_s - self.ranks_s, 0.0) / max(self.seconds, 1e-9), 1.0)

    @property
    def occupancy(self) -> dict[str, float]:
        """Share of the interval in which each stage was at work, 0 to 1, by name.

        For "storage" to "sending" it is the share of all worker processes' time. "receiving" (in a
        thread), "transform" and, without workers, "other" are shares of the loop's process.
        """
        if self.workers < 0:
            return {}
        seconds = max(self.seconds, 1e-9)
        spent = {
            name: sum(getattr(self.times, part) for part in parts) for name, parts in MAKING.items()
        }
        loop = {"transform": self.transform_s}
        if self.workers:
            loop["receiving"] = self.times.receive_s
        else:
            known = sum(spent.values()) + self.transform_s + self.ranks_s
            loop["other"] = self.wait_s - known
        shares = {name: value / seconds / max(self.workers, 1) for name, value in spent.items()}
        shares |= {name: value / seconds for name, value in loop.items()}
        return {name: min(max(share, 0.0), 1.0) for name, share in shares.items()}

    @property
    def stage(self) -> str:
        """The stage that limits the loader: the longest one of its busiest process or thread."""
        shares = self.occupancy
        if not shares:
            return "loader"
        groups = [list(shares)]
        if self.workers:
            groups = [list(MAKING), ["receiving"], ["transform"]]
        busiest = max(groups, key=lambda names: sum(shares[name] for name in names))
        return max(busiest, key=lambda name: shares[name])

    @property
    def limit(self) -> str:
        """The limit of this rank: "step" (not the loader), "other ranks", or the `stage`."""
        if self.waiting < ENOUGH:
            return "step"
        return "other ranks" if self.ranks_s > self.exposed_s / 2 else self.stage

    def as_dict(self) -> dict[str, Any]:
        """Return flat names and values for a logger, with ``occupancy/STAGE``."""
        values = {name: value for name, value in asdict(self).items() if name != "times"}
        values |= {"waiting": self.waiting, "limit": self.limit}
        return values | {f"occupancy/{name}": share for name, share in self.occupancy.items()}

    def __str__(self) -> str:
        lines = [
            f"rank {self.rank}: the loop waited {self.waiting:.1%} of {self.seconds:.1f} s, "
            f"exposed {self.exposed_s:.2f} s of {self.wait_s:.2f} s in {self.steps:,} steps",
            f"waits: p50 {_ms(self.p50_s)}, p95 {_ms(self.p95_s)}, p99 {_ms(self.p99_s)}",
        ]
        where = f"{self.workers} workers" if self.workers > 0 else "the loop's process"
        shown = {name: share for name, share in self.occupancy.items() if share >= 0.005}
        if shown:
            lines.append(f"occupancy of {where}:")
            lines += [f"  {name:<11}{share:>5.0%}" for name, share in shown.items()]
        return "\n".join([*lines, f"limit: {self.limit}. {REMEDIES[self.limit]}"])

    def as_row(self) -> NDArray[np.float32]:
        """Return the figures as an array, for a collective."""
        *values, times = (getattr(self, name) for name in self.__slots__)
        return np.array([*values, *astuple(times)], dtype=np.float32)

    @classmethod
    def of_row(cls, row: NDArray[np.float32]) -> RankWaits:
        """Return the figures of an array that `as_row` made."""
        rank, steps, *seconds, workers = row[: len(cls.__slots__) - 1].tolist()
        times = LaneTimes(*row[len(cls.__slots__) - 1 :].tolist())
        return cls(int(rank), int(steps), *seconds, int(workers), times)  # type: ignore[call-arg]


@dataclass(frozen=True, slots=True)
class JobWaits:
    """Waits of all ranks over an interval; `str` shows the slowest ones as a table.

    Attributes:
        ranks: figures of every rank, in order.
    """

    ranks: tuple[RankWaits, ...]

    @property
    def slowest(self) -> RankWaits:
        """The rank that the others wait for.

        It has the largest exposed waits of its own, which leave out waiting for other ranks. If no
        rank has any to speak of, it has the longest steps.
        """
        slowest = max(self.ranks, key=lambda rank: rank.own_waiting)
        if slowest.own_waiting >= ENOUGH:
            return slowest
        return max(self.ranks, key=lambda rank: rank.seconds - rank.wait_s)

    @property
    def limit(self) -> str:
        """The limit of the job: "step" (not the loader), or a stage of the slowest rank."""
        slowest = self.slowest
        return slowest.stage if slowest.own_waiting >= ENOUGH else "step"

    def __str__(self) -> str:
        slowest = self.slowest
        head = f"{'rank':>6} {'waiting':>8} {'its own':>8} {'p50':>9} {'p99':>9}  stage"
        ordered = sorted(self.ranks, key=lambda rank: -rank.own_waiting)
        lines = [
            f"{rank.rank:>6} {rank.waiting:>8.1%} {rank.own_waiting:>8.1%} "
            f"{_ms(rank.p50_s):>9} {_ms(rank.p99_s):>9}  {rank.stage}"
            for rank in ordered[:SHOWN]
        ]
        if len(ordered) > SHOWN:
            lines.append(f"  and {len(ordered) - SHOWN} ranks that wait less")
        limit = f"limit: {self.limit} on rank {slowest.rank}. {REMEDIES[self.limit]}"
        return "\n".join([head, *lines, limit])


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
