"""CpGroups: ranks that share batches, in groups sized by the row length of a step.

A batch of rotation r has rows of one length L, and cp(L) neighbouring ranks share it. So R ranks
take R / cp(L) batches in a step, from index ``k * R / cp(L)`` on in their rotation: batch g comes
after batch g - 1, for any R. Groups of cp(L) ranks lie inside the groups of the highest degree.

Everything that makes batches treats a group of the highest degree as one data-parallel rank
(`CpGroups.lanes`): all of its ranks run the same lanes, with ``lane % groups == group``. In a step
of degree c these lanes give highest / c batches, one for every c ranks, in order. Every rank takes
its batch and counts the others as taken too. So nothing is communicated, the group has one state,
and making batches costs as much as if the highest degree applied to every batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from streampack.batch import PackedBatch
from streampack.errors import ConfigError
from streampack.job.topology import Topology
from streampack.lane.config import MOST_LANES, LaneConfig
from streampack.packing import Buckets


class LaneTopology(Topology):
    """Ranks with a fixed division of lanes, independent of the batch that a run resumes at."""

    def batch(self, start: int, step: int) -> int:
        """Return the index of this rank's batch at local step `step` of a run from `start` on."""
        return start + (self.rank - start) % self.world_size + step * self.world_size

    def step_at(self, start: int) -> int:
        """Return the index of rank 0's batch in the first step; some ranks may have taken it."""
        return start - start % self.world_size

    def takes(self, number: int, start: int) -> bool:
        """Return whether this rank takes batch `number`."""
        return number % self.world_size == self.rank

    def among_workers(self, worker: int, workers: int) -> Topology:
        """Return this topology unchanged: one worker makes all batches of a step."""
        return self


def least_lanes(packer: Buckets, ranks: int) -> int:
    """Return the divisor of valid lane counts, which keep all batches of a step in one rotation.

    If the degrees do not divide the ranks, the result exceeds any possible number of lanes.
    """
    if any(ranks % degree for degree in packer.cp):
        return MOST_LANES + 1
    return math.lcm(*(ranks // degree for degree in packer.cp))


class Step(NamedTuple):
    """The batches that the lanes of a rank give in one step, in order.

    Attributes:
        before, after: batches of other ranks of the group.
        batch: batch of this rank; None if its lane has none.
        lane, step: lane of `batch`, and its index in that lane.
        end: index of the first batch of the following step.
    """

    before: list[PackedBatch]
    batch: PackedBatch | None
    after: list[PackedBatch]
    lane: int
    step: int
    end: int


@dataclass(frozen=True)
class CpGroups:
    """A rank's place among ranks that share batches.

    Args:
        ranks: topology of this rank among all ranks.
        packer: packer with the degrees of context parallelism in `cp`.
        seed: seed of the packer's schedule.
        num_lanes: number of lanes of the run.
    """

    ranks: Topology
    packer: Buckets
    seed: int
    num_lanes: int

    @classmethod
    def of(cls, config: LaneConfig, ranks: Topology) -> CpGroups | None:
        """Return the groups of a run; None if no batch is shared, as on one rank.

        Raises:
            ConfigError: the degrees do not divide the ranks, or the groups not the lanes.
        """
        packer, number, lanes = config.packer, ranks.world_size, config.lanes
        if not isinstance(packer, Buckets) or not packer._shares_batches or number == 1:
            return None
        if lanes % least_lanes(packer, number):
            most = packer.cp[0] * lanes
            work = [n for n in range(2, most + 1) if not lanes % least_lanes(packer, n)]
            raise ConfigError(
                f"{number} ranks cannot share {lanes} lanes with cp={packer.cp}.",
                f"Use {', '.join(map(str, work)) or 'another number of'} ranks, or pass lanes=, a "
                f"multiple of the ranks, which are a multiple of {packer.cp[-1]}.",
                setting="topology",
            )
        return cls(ranks, packer, config.seed, lanes)

    @property
    def lanes(self) -> LaneTopology:
        """Return the topology of this rank's group of the highest degree among all such groups."""
        highest = self.packer.cp[-1]
        return LaneTopology(self.ranks.rank // highest, self.ranks.world_size // highest)

    def place(self, step: int) -> tuple[int, int]:
        """Return the number of ranks that share batch `step` of any lane, and this rank's index."""
        degree = self.packer.cp_at(step, schedule_seed=self.seed)
        return degree, self.ranks.rank % degree

    def steps(self, batches: Iterable[PackedBatch]) -> Iterator[Step]:
        """Yield the steps of this rank, from the batches of its lanes in their order."""
        step: Step | None = None
        for batch in batches:
            number = batch.step * self.num_lanes + batch.lane
            if step is not None and number >= step.end:
                yield step
                step = None
            step = step or self.step_of(batch)
            if batch.lane == step.lane:
                step = step._replace(batch=batch)
            else:
                (step.before if batch.lane < step.lane else step.after).append(batch)
            if number + self.lanes.world_size >= step.end:
                yield step
                step = None
        if step is not None:
            yield step

    def step_of(self, batch: PackedBatch) -> Step:
        """Return the step in which a lane gives `batch`, without its batches."""
        degree, _ = self.place(batch.step)
        lanes, inside = self.lanes, self.ranks.rank % self.packer.cp[-1]
        taken = self.ranks.world_size // degree
        first = batch.lane - batch.lane % taken
        number = first + inside // degree * lanes.world_size + lanes.rank
        return Step([], None, [], number, batch.step, batch.step * self.num_lanes + first + taken)
