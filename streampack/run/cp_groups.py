"""CpGroups: ranks that share batches, in groups that a step's row length decides.

A batch of rotation r has rows of one length L, and cp(L) neighbouring ranks share it. So R ranks
take R / cp(L) batches in a step, numbers from ``k * R / cp(L)`` on in their rotation: batch g comes
after batch g - 1, whatever R is. Groups of cp(L) ranks lie inside those of the highest degree.

A group of the highest degree is one data-parallel rank for all that makes batches
(`CpGroups.lanes`): all of its ranks run the same lanes, those with ``lane % groups == group``. In a
step of degree c these give highest / c batches, one for each c of its ranks, in order. Every rank
takes its own and counts the others as taken too. So nothing is communicated, the state is that of
the group, and making batches costs what it costs where all of them are shared by so many ranks.
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
from streampack.packing import Buckets, Packer


class LaneTopology(Topology):
    """The ranks among which lanes are divided once and for all, wherever a run goes on from."""

    def batch(self, start: int, step: int) -> int:
        """Number of this rank's batch at local step `step` of a run started at `start`."""
        return start + (self.rank - start) % self.world_size + step * self.world_size

    def step_at(self, start: int) -> int:
        """Number of rank 0's batch in the first step: of some ranks it may have been taken."""
        return start - start % self.world_size

    def takes(self, number: int, start: int) -> bool:
        """Whether batch `number` is this rank's."""
        return number % self.world_size == self.rank

    def among_workers(self, worker: int, workers: int) -> Topology:
        """This place: all batches of a step are one worker's."""
        return self


def least_lanes(packer: Packer, ranks: int) -> int:
    """What the lanes must be a multiple of so that all batches of a step are of one rotation.

    Where the degrees do not divide the ranks, it is more than there can be.
    """
    if any(ranks % degree for degree in packer.cp):
        return MOST_LANES + 1
    return math.lcm(*(ranks // degree for degree in packer.cp))


class Step(NamedTuple):
    """What the lanes of a rank give in a step: its own batch, and those beside it, in order.

    Attributes:
        before, after: other ranks' batches; own: the rank's, None if its lane has none.
        lane, step: of its own; end: number of the first batch of the step after it.
    """

    before: list[PackedBatch]
    own: PackedBatch | None
    after: list[PackedBatch]
    lane: int
    step: int
    end: int


@dataclass(frozen=True)
class CpGroups:
    """A rank's place among ranks that share batches.

    Args:
        ranks: this rank, among all.
        packer: whose `cp` says how many share a batch; seed: of its schedule.
        num_lanes: of the run.
    """

    ranks: Topology
    packer: Buckets
    seed: int
    num_lanes: int

    @classmethod
    def of(cls, config: LaneConfig, ranks: Topology) -> CpGroups | None:
        """The groups of a run; None where nothing is shared, as on one rank.

        Raises:
            ConfigError: the degrees do not divide the ranks, or the groups not the lanes.
        """
        packer, number, lanes = config.packer, ranks.world_size, config.lanes
        if not isinstance(packer, Buckets) or packer.cp[-1] == 1 or number == 1:
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
        """The largest group that this rank is in, among all such groups."""
        highest = self.packer.cp[-1]
        return LaneTopology(self.ranks.rank // highest, self.ranks.world_size // highest)

    def place(self, step: int) -> tuple[int, int]:
        """How many ranks share a batch of this number of any lane, and which of them this is."""
        degree = self.packer.cp_at(step, schedule_seed=self.seed)
        return degree, self.ranks.rank % degree

    def steps(self, batches: Iterable[PackedBatch]) -> Iterator[Step]:
        """The steps of this rank, from what its lanes give in their order."""
        step: Step | None = None
        for batch in batches:
            number = batch.step * self.num_lanes + batch.lane
            if step is not None and number >= step.end:
                yield step
                step = None
            step = step or self.step_of(batch)
            if batch.lane == step.lane:
                step = step._replace(own=batch)
            else:
                (step.before if batch.lane < step.lane else step.after).append(batch)
            if number + self.lanes.world_size >= step.end:
                yield step
                step = None
        if step is not None:
            yield step

    def step_of(self, batch: PackedBatch) -> Step:
        """The step in which some lane gives this batch, without batches."""
        degree, _ = self.place(batch.step)
        lanes, inside = self.lanes, self.ranks.rank % self.packer.cp[-1]
        taken = self.ranks.world_size // degree
        first = batch.lane - batch.lane % taken
        own = first + inside // degree * lanes.world_size + lanes.rank
        return Step([], None, [], own, batch.step, batch.step * self.num_lanes + first + taken)
