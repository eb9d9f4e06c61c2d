"""What `iter(PackedDataset)` is: the batches of one DataLoader worker, and their state.

A worker is a rank of its own in a finer division of the run: with empty batches for its dry lanes,
a DataLoader that takes batches from its workers in turn keeps the rank's order.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any

from streampack.batch import PackedBatch
from streampack.errors import ConfigError, StateError
from streampack.job.ending import Alone, Ending, Gap
from streampack.lane.lane import LaneConfig
from streampack.run.state import RunState, batches_given
from streampack.workers.delivery import Delivery
from streampack.workers.feed import feed_in_process, fill_gaps

__all__ = ["DatasetIterator", "run_state"]


class DatasetIterator(Iterator[PackedBatch]):
    """Batches of the lanes of one worker, and the state of what it has given.

    torchdata's `StatefulDataLoader` asks for that state behind every batch, and keeps what belongs
    to the batches that its loop has taken.

    Args:
        config: of the run.
        run: where the rank starts from.
        worker: number of this one among the rank's `workers`; 0 of 1 without worker processes.

    Raises:
        ConfigError: the workers do not divide the rank's lanes.
    """

    def __init__(self, config: LaneConfig, run: RunState, *, worker: int, workers: int) -> None:
        own = run.topology.lanes(run.next_batch, config.lanes)
        if len(own) % workers:
            valid = [str(n) for n in range(1, len(own) + 1) if len(own) % n == 0]
            raise ConfigError(
                f"{workers} DataLoader workers do not divide the {len(own)} lanes of this rank.",
                "A DataLoader takes batches from its workers in turn, so lanes would get out of "
                "order.",
                f"Use num_workers of {', '.join(valid)}, or PackedLoader, which takes any number.",
            )
        self._config = config
        self._topology = run.topology
        self._worker, self._workers = worker, workers
        self._place = run.topology.among_workers(worker, workers)
        lanes = self._place.lanes(run.next_batch, config.lanes)
        self._run = RunState(
            run.fingerprint,
            self._place,
            run.next_batch,
            {lane: run.lane(lane) for lane in lanes},
            run.stepped_over,
        )
        self._ended = False
        self._batches: Generator[Delivery, None, None] | None = None

    def __next__(self) -> PackedBatch:
        if self._ended:
            raise StopIteration
        if self._batches is None:
            self._batches = self._make()
        delivery = next(self._batches, None)
        if delivery is None:
            self._ended = True
            raise StopIteration
        lane, batch = delivery.lane, delivery.batch
        state = delivery.state if batch.num_documents else self._run.lane(lane)
        self._run.commit(lane, delivery.step, state)
        return batch

    def _make(self) -> Generator[Delivery, None, None]:
        """The batches up to the last one of these lanes; every lane has one, if it is empty.

        It carries the lane's end: whoever keeps the state of the run knows it from nowhere else.
        """
        config, run = self._config, self._run
        states = {lane: run.lane(lane) for lane in self._place.lanes(run.next_batch, config.lanes)}
        ending = Ending(
            feed_in_process(config, list(states), states, lambda lane, end, _: run.end(lane, end)),
            topology=self._place,
            start=run.next_batch,
            lanes=config.lanes,
            given={lane: batches_given(state) for lane, state in states.items()},
            ranks=None if config.epochs is None else Alone(),
        )
        given = 0
        for delivery in fill_gaps(ending, config, run.lane):
            given += 1
            yield delivery
        if not given and None in states.values():
            yield from fill_gaps(self._one_rotation(), config, run.lane)

    def _one_rotation(self) -> Iterator[Delivery | Gap]:
        start, place, lanes = self._run.next_batch, self._place, self._config.lanes
        for turn in range(len(place.lanes(start, lanes))):
            number = place.batch(start, turn)
            yield Gap(number % lanes, number // lanes)

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state of what this iterator has given; see `extract_state`.

        torchdata sends what changes between two batches. It takes dicts apart for that and leaves
        lists whole, so each lane's state is in a list.
        """
        head = self._run.as_dict()
        lanes = head.pop("lanes")
        return {
            "rank": self._topology.rank,
            "world_size": self._topology.world_size,
            "worker": self._worker,
            "workers": self._workers,
            "ended": self._ended,
            "head": [head],
            "lanes": {lane: [state] for lane, state in lanes.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on behind a state of the same rank and worker.

        Raises:
            StateError: it is another one's, of another run, or damaged.
        """
        here = {
            "rank": self._topology.rank,
            "world_size": self._topology.world_size,
            "worker": self._worker,
            "workers": self._workers,
        }
        for name, value in here.items():
            if state.get(name) != value:
                raise StateError(
                    f"The loader's state has {name} {state.get(name)!r:.80}, and here it is "
                    f"{value}.",
                    "A StatefulDataLoader goes on with the ranks and workers it was saved with.",
                    "Keep their numbers, or load `extract_state` of it into a PackedDataset or "
                    "PackedLoader, with `merge_states` over all ranks.",
                )
        self._run = RunState.load(run_state(state), self._run.fingerprint, self._place)
        self._ended = state.get("ended") is True
        if self._batches is not None:
            self._batches.close()
            self._batches = None


def run_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of the lanes of one worker, from what `DatasetIterator.state_dict` gave.

    Raises:
        StateError: it gave something else.
    """
    try:
        (head,) = state["head"]
        lanes = {lane: own for lane, (own,) in state["lanes"].items()}
        return {**head, "lanes": lanes}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"The loader's state holds {state!r:.80} of the dataset.",
            "It is not what an iterator of PackedDataset gives.",
            "Pass what `StatefulDataLoader.state_dict()` returned, unchanged.",
        ) from error
