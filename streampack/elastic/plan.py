"""ElasticPlan: the plan of a run in which steps keep their batches while ranks change.

Step s consists of the next `step_batches` batches of the run. A lane belongs to one rank at a time,
so no two ranks read it, and every rank computes the map from lanes to ranks by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from streampack.job.topology import Topology
from streampack.run.plan import RunPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticPlan(RunPlan):
    """The plan of a rank that sees the whole run: its topology is a single rank's.

    Attributes:
        step_batches: batches of a step, over all ranks.
        members: number of ranks that take batches, and this process's rank, which is 0 if it takes
            none.
    """

    step_batches: int
    members: Topology

    @classmethod
    def of_run(cls, plan: RunPlan, step_batches: int, members: Topology) -> ElasticPlan:
        """Make the plan from the plan of a single rank."""
        return cls(
            config=plan.config,
            topology=plan.topology,
            fingerprint=plan.fingerprint,
            step_batches=step_batches,
            members=members,
        )

    @property
    def ranks(self) -> Topology:
        """The topology of this rank among all ranks."""
        return self.members

    def rank_of(self, lane: int) -> int:
        """Return the rank that runs a lane.

        Consecutive lanes go to consecutive ranks, so that a step's batches are spread evenly: to
        one batch where the lanes are a multiple of a step's batches, to two otherwise.
        """
        lanes, step_batches = self.config.lanes, self.step_batches
        place = lane % step_batches if lanes % step_batches == 0 else lane
        return place % self.members.world_size

    def steps_before(self, batch: int) -> int:
        """Return the number of steps before the batch with index `batch`."""
        return batch // self.step_batches

    def batch_after(self, batch: int, steps: int) -> int:
        """Return the index of the first batch `steps` steps after the step of `batch`."""
        return batch + steps * self.step_batches
