"""GroupedPlan, GroupedRun: the plan and the batches of a rank that shares batches with others.

A rank makes the batches of its lanes as any rank does. `CpGroups` tells which of them are this
rank's own, and the run counts the others of a step as taken too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from streampack.batch import PackedBatch
from streampack.context_parallel.groups import CpGroups, Step, least_lanes
from streampack.job.topology import Topology
from streampack.lane.config import MOST_LANES, LaneConfig
from streampack.packers.buckets import Buckets
from streampack.packing.packer import Packer
from streampack.run.plan import RunPlan, most_lanes
from streampack.run.rank import RankRun
from streampack.run.state import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedPlan(RunPlan):
    """The plan of a run with ranks that share batches.

    Attributes:
        groups: the ranks that share batches.
    """

    groups: CpGroups

    shares_batches: ClassVar[bool] = True
    most_workers: ClassVar[int | None] = 1  # because a worker makes whole steps

    @classmethod
    def of(cls, config: LaneConfig, topology: Topology) -> RunPlan:
        """Make the plan of a complete configuration; a single rank shares nothing."""
        groups = CpGroups.of(config, topology)
        if groups is None:
            return RunPlan.of(config, topology)
        plan = RunPlan.of(config, groups.lanes)
        return cls(
            config=plan.config, topology=plan.topology, fingerprint=plan.fingerprint, groups=groups
        )

    @classmethod
    def lanes(cls, config: LaneConfig, ranks: int) -> int:
        """Choose the number of lanes, which keeps the row length equal within each step."""
        packer = cast(Buckets, config.packer)
        least = least_lanes(packer, ranks)
        if least > MOST_LANES:
            return RunPlan.lanes(config, ranks)
        most = most_lanes(
            config, ranks // packer.cp[-1]
        )  # for the groups of ranks, which run different lanes
        return max(most - most % least, least)

    @property
    def ranks(self) -> Topology:
        """The topology of this rank among all ranks."""
        return self.groups.ranks

    def steps_before(self, batch: int) -> int:
        """Return the steps before a batch; approximate inside a turn of all lanes."""
        config = self.config
        share = config.packer._batch_share(batch // config.lanes, schedule_seed=config.seed)
        return round(batch / self.topology.world_size * share)

    def batch_after(self, batch: int, steps: int) -> int:
        """Return the index of the first batch of the turn of all lanes that has the step."""
        lanes = self.config.lanes
        if not steps:
            return batch
        turn, step = -(-batch // lanes), self.steps_before(batch) + steps
        later = range(turn * lanes, (turn + steps + 1) * lanes, lanes)
        return later[bisect_left(later, step, key=self.steps_before)]


def plan_of(packer: Packer) -> type[RunPlan]:
    """Return the class of the plan of a packer with `shares_batches`."""
    return GroupedPlan


class GroupedRun(RankRun):
    """The batches of a rank that shares batches, and a record of the batches taken.

    Arguments are the same as in `RankRun`.
    """

    plan: GroupedPlan

    def __init__(self, plan: GroupedPlan, *arguments: Any, **settings: Any) -> None:
        super().__init__(plan, *arguments, **settings)
        self._steps: dict[int, Step] = {}  # steps of batches that were given but not taken

    def continue_from(self, plan: RunPlan, start: RunState) -> None:
        """See `RankRun`."""
        super().continue_from(plan, start)
        self._steps.clear()

    def batches(self, *arguments: Any, **settings: Any) -> Generator[PackedBatch, None, None]:
        """Yield this rank's batch from the batches of its lanes in every step."""
        self._steps.clear()
        groups, lanes = self.plan.groups, super().batches(*arguments, **settings)
        with closing(lanes):
            for step in groups.steps(lanes):
                batch = step.batch
                if batch is None:
                    batch = self.empty_batch(step.lane, step.step)
                batch.cp_size, batch.cp_rank = groups.place(step.step)
                self._steps[self._number(batch)] = step
                yield batch

    def _commit_step(self, batch: PackedBatch) -> None:
        step = self._steps.pop(self._number(batch), None)
        if step is None:
            super()._commit_step(batch)
            return
        for each in (*step.before, batch, *step.after):
            self._commit(each)
        self.state.next_batch = step.end
        self._record_untaken(step.end)
