"""WorkerShare: the batches of one DataLoader worker, and the state of it that torchdata saves.

A DataLoader takes batches from its workers in turn. So a worker is a rank in a finer division of
the run: empty batches for lanes that have ended keep the rank's order. The number of active workers
divides the lanes of the rank; further workers stay idle.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any

from streampack.batch import PackedBatch
from streampack.changes.fields import changed_fields
from streampack.deals.report_channel import ReportChannel
from streampack.errors import StateError
from streampack.job.ending import Alone
from streampack.run.feeds import InProcess
from streampack.run.plan import RunPlan
from streampack.run.rank import RankRun, run_of
from streampack.run.state import Deferred, RunState, check_state

logger = logging.getLogger(__name__)


class WorkerShare(Iterator[PackedBatch]):
    """Batches of the lanes of one worker, and the state after the batches it has given.

    torchdata's `StatefulDataLoader` asks for the state after every batch, and keeps the states of
    batches that its loop has taken.

    Args:
        plan: plan of the rank.
        start: state that the rank resumes from.
        sharing: channel of deals with the rank's other workers, and with other ranks.
        worker: index of this worker.
        workers: number of the rank's workers; 1 without worker processes.
    """

    def __init__(
        self, plan: RunPlan, start: RunState, sharing: ReportChannel, *, worker: int, workers: int
    ) -> None:
        lanes = plan.topology.lanes(start.next_batch, plan.config.lanes)
        used = max(n for n in range(1, workers + 1) if len(lanes) % n == 0)
        used = min(used, plan.most_workers or used)
        if worker == 0 and used < workers:
            logger.warning(
                "num_workers is %d, and each worker of a DataLoader runs as many of this rank's "
                "lanes (%d) as the others: %d get some, the rest none. Pass "
                "num_workers=%d, or use PackedLoader(num_workers=), which need not divide them.",
                workers,
                len(lanes),
                used,
                used,
            )
        topology = plan.topology
        self._place = {
            "rank": topology.rank,
            "world_size": topology.world_size,
            "worker": worker,
            "workers": used,
        }
        self._plan = replace(plan, topology=topology.among_workers(worker % used, used))
        self._ended = worker >= used
        lanes = self._plan.topology.lanes(start.next_batch, plan.config.lanes)
        if self._ended:
            lanes = lanes[:0]
        own_states: dict[int, Deferred] = {lane: start.lane(lane) for lane in lanes}
        self._run = self._begin(
            replace(start, topology=self._plan.topology, lanes=own_states, others={})
        )
        self._sharing = sharing
        self._batches: Generator[PackedBatch, None, None] | None = None

    def _begin(self, start: RunState) -> RankRun:
        return run_of(self._plan, start, ranks=Alone())

    def __next__(self) -> PackedBatch:
        if self._ended:
            raise StopIteration
        if self._batches is None:
            self._batches = self._run.batches(InProcess(), sharing=self._sharing)
        batch = next(self._batches, None)
        if batch is None:
            self._ended = True
            raise StopIteration
        self._run.take(batch)
        return batch

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return the JSON-able state after the batches that this iterator has given.

        torchdata sends differences between the states of two batches. It compares dicts by key and
        leaves lists whole, so each lane's state is in a list.
        """
        shared = self._plan.topology.shares(self._plan.config.lanes)
        if shared > 1:
            raise StateError(
                f"Each of the {self._plan.config.lanes} lanes must belong to one rank, got "
                f"{shared} ranks.",
                "Use PackedLoader(dataset, num_workers=...) and its state, or a number of ranks "
                "that divides the lanes.",
            )
        head = self._run.state.as_dict()
        lanes = head.pop("lanes")
        return {
            **self._place,
            "ended": self._ended,
            "head": [head],
            "lanes": {lane: [state] for lane, state in lanes.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state of the same rank and worker.

        Raises:
            StateError: the state is damaged, or of another worker, rank or run.
        """
        for name, value in self._place.items():
            if state.get(name) != value:
                raise StateError(
                    f"The loader's state must have {name} {value}, got {state.get(name)!r:.80}.",
                    "Keep the numbers of ranks and workers, or use PackedLoader(dataset); any "
                    "number of ranks and workers can resume from its state.",
                )
        if self._place["worker"] < self._place["workers"]:
            (head,) = state["head"]
            saved = {
                **head,
                "lanes": {lane: lane_state for lane, (lane_state,) in state["lanes"].items()},
            }
            check_state(saved)
            changed_fields(saved["fingerprint"], self._plan.fingerprint)
            start = RunState.of_rank(saved, self._plan.fingerprint, self._plan.topology)
            self._run = self._begin(start)
            self._ended = state["ended"]
        self._batches = None
