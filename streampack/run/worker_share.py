"""WorkerShare: the batches of one DataLoader worker; and its state, as torchdata saves it.

A DataLoader takes batches from its workers in turn. So a worker is a rank in a finer division of
the run: with empty batches where its lanes have no more, the turns keep the rank's order. Workers
that would not divide the lanes of the rank stay idle.

From the state of a torchdata `StatefulDataLoader` to ours, for elastic resume.

torchdata keeps a state of each worker's iterator, as of the last batch of it that the loop has
taken, and goes on with as many workers. `extract_state` puts them together into the state of the
rank, which `merge_states`, `PackedDataset` and `PackedLoader` take.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any

from streampack.batch import PackedBatch
from streampack.deals.sharing import Sharing
from streampack.errors import StateError
from streampack.job.ending import Alone
from streampack.job.topology import Topology
from streampack.run.fingerprint import changed_fields
from streampack.run.plan import RunPlan
from streampack.run.rank import RankRun, feed_in_process
from streampack.run.state import RunState, check_state

logger = logging.getLogger(__name__)


class WorkerShare(Iterator[PackedBatch]):
    """Batches of the lanes of one worker, and the state of what it has given.

    torchdata's `StatefulDataLoader` asks for that state after every batch, and keeps what belongs
    to the batches that its loop has taken.

    Args:
        plan: of the rank.
        start: where the rank goes on.
        sharing: of deals with the rank's other workers, and with other ranks.
        worker: number of this one among the rank's `workers`; 0 of 1 without worker processes.
    """

    def __init__(
        self, plan: RunPlan, start: RunState, sharing: Sharing, *, worker: int, workers: int
    ) -> None:
        own = plan.topology.lanes(start.next_batch, plan.config.lanes)
        used = max(n for n in range(1, workers + 1) if len(own) % n == 0)
        if worker == 0 and used < workers:
            logger.warning(
                "num_workers is %d, and each worker of a DataLoader runs as many of this rank's "
                "lanes (%d) as the others: %d get some, the rest none. Pass "
                "num_workers=%d, or use PackedLoader(num_workers=), which need not divide them.",
                workers,
                len(own),
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
        self._run = self._begin(
            RunState(
                start.fingerprint,
                self._plan.topology,
                start.next_batch,
                {lane: start.lane(lane) for lane in lanes},
                start.stepped_over,
            )
        )
        self._sharing = sharing
        self._batches: Generator[PackedBatch, None, None] | None = None

    def _begin(self, start: RunState) -> RankRun:
        return RankRun(self._plan, start, ranks=Alone())

    def __next__(self) -> PackedBatch:
        if self._ended:
            raise StopIteration
        if self._batches is None:
            self._batches = self._make()
        batch = next(self._batches, None)
        if batch is None:
            self._ended = True
            raise StopIteration
        self._run.take(batch)
        return batch

    def _make(self) -> Generator[PackedBatch, None, None]:
        """The batches up to the last one of these lanes; every lane has one, even if empty.

        An empty one carries the end of its lane: the loop knows it from nowhere else.
        """
        run, given = self._run, 0
        start, lanes = run.state.next_batch, run.lanes()
        nothing_given = any(run.state.lane(lane) is None for lane in lanes)
        for batch in run.batches(feed_in_process, sharing=self._sharing):
            given += 1
            yield batch
        if not given and nothing_given:
            for turn in range(len(lanes)):
                number = self._plan.topology.batch(start, turn)
                step, lane = divmod(number, self._plan.config.lanes)
                yield run.empty_batch(lane, step)

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state of what this iterator has given; see `extract_state`.

        torchdata sends what changes between two batches. It takes dicts apart for that and leaves
        lists whole, so each lane's state is in a list.
        """
        shared = self._plan.topology.shares(self._plan.config.lanes)
        if shared > 1:
            raise StateError(
                f"{shared} ranks run each of the {self._plan.config.lanes} lanes.",
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
        """Go on after a state of the same rank and worker.

        Raises:
            StateError: it is another one's, of another run, or damaged.
        """
        for name, value in self._place.items():
            if state.get(name) != value:
                raise StateError(
                    f"The loader's state has {name} {state.get(name)!r:.80}, and here it is "
                    f"{value}.",
                    "Keep their numbers, or load `extract_state` of it into a PackedDataset or "
                    "PackedLoader, with `merge_states` over all ranks.",
                )
        if self._place["worker"] < self._place["workers"]:
            saved = run_state(state)
            check_state(saved)
            changed_fields(saved["fingerprint"], self._plan.fingerprint)
            start = RunState.of_rank(saved, self._plan.fingerprint, self._plan.topology)
            self._run = self._begin(start)
            self._ended = state.get("ended") is True
        if self._batches is not None:
            self._batches.close()
            self._batches = None


def run_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of the lanes of one worker, from what `WorkerShare.state_dict` gave.

    Raises:
        StateError: it gave something else.
    """
    try:
        (head,) = state["head"]
        lanes = {lane: own for lane, (own,) in state["lanes"].items()}
        return {**head, "lanes": lanes}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise damaged_loader(f"Of the dataset it holds {state!r:.80}.") from error


def damaged_loader(fact: str) -> StateError:
    """The error for what no `StatefulDataLoader` over a `PackedDataset` can have saved."""
    return StateError(fact, "Pass what `StatefulDataLoader.state_dict()` returned, unchanged.")


def extract_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of this rank, from that of its `StatefulDataLoader` over a `PackedDataset`.

    Args:
        state: what ``StatefulDataLoader.state_dict()`` returned.

    Returns:
        What a `PackedLoader` whose loop had taken the same batches would have returned.

    Raises:
        StateError: it is of another dataset, damaged, or older than what the loop has taken.
    """
    missing = state.get("_steps_since_snapshot", 0)
    if missing:
        raise StateError(
            f"The state is as of {missing} batches before the last one that the loop took.",
            "Use snapshot_every_n_steps=1, or save after a step that it divides.",
            setting="snapshot_every_n_steps",
        )
    workers = _used_workers(state)
    topology = Topology(workers[0]["rank"], workers[0]["world_size"])
    parts = [run_state(worker) for worker in workers]
    for part in parts:
        check_state(part)
    if any(part["fingerprint"] != parts[0]["fingerprint"] for part in parts):
        raise damaged_loader("Its workers are of different runs.")
    lanes = {int(lane): own for part in parts for lane, own in part["lanes"].items()}
    return RunState(
        parts[0]["fingerprint"],
        topology,
        _next_batch(workers, parts, topology),
        lanes,
        parts[0]["stepped_over"],
    ).as_dict()


def _used_workers(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What `WorkerShare.state_dict` gave in each worker that had lanes, in their order."""
    try:
        workers = [state]  # of the loop's process
        if "_snapshot" in state:
            saved = state["_snapshot"]["_worker_snapshots"]
            workers = [saved[f"worker_{number}"] for number in range(len(saved))]
        found = [worker["fetcher_state"]["dataset_iter_state"] for worker in workers]
        return found[: found[0]["workers"]]
    except (KeyError, IndexError, TypeError) as error:
        raise damaged_loader("It has no states of the workers of a PackedDataset.") from error


def _next_batch(
    workers: list[dict[str, Any]], parts: list[dict[str, Any]], topology: Topology
) -> int:
    """Number of the first batch that the ranks have not taken, which the workers agree on."""
    ranks = topology.world_size
    # A worker's own place in the run is that of a rank among ranks x workers.
    coming = [part["next_batch"] + i * ranks for i, part in enumerate(parts)]
    going = [at for at, worker in zip(coming, workers, strict=True) if not worker["ended"]]
    if not going:  # all lanes are dry; the last rotation counts
        return int(max(part["next_batch"] for part in parts))
    if max(going) - min(going) >= ranks * len(workers):
        raise StateError(
            f"The next batches of the workers are {coming} of the run.",
            "Use in_order=True, and pass what `StatefulDataLoader.state_dict()` returned.",
            setting="in_order",
        )
    return int(min(going))
