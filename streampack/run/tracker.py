"""StateTracker: the state of a run whose batches come through a plain torch DataLoader."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from streampack.batch import PackedBatch
from streampack.dataset import PackedDataset
from streampack.errors import StateError

__all__ = ["StateTracker"]


class StateTracker:
    """Keeps the state of what a loop has taken, batch by batch.

    A DataLoader's workers make batches ahead, so only the loop knows what it has taken. Every batch
    carries the state of its lane; the tracker is shown each one.

    Args:
        dataset: what the DataLoader loads; make the tracker before the DataLoader is iterated.
    """

    def __init__(self, dataset: PackedDataset) -> None:
        self.dataset = dataset
        self._run = dataset.start()

    def update(self, batch: PackedBatch) -> None:
        """Take note that the loop has taken `batch`, the next one of this rank.

        When the DataLoader begins anew, where the dataset does, so does the tracker.

        Raises:
            StateError: it is a batch that was taken before.
        """
        topology = self._run.topology
        number = batch.step * self._run.fingerprint["lanes"] + batch.lane
        if number < self._run.next_batch + topology.rank:
            again = self.dataset.start()
            if number < again.next_batch + topology.rank or number >= (
                again.next_batch + topology.world_size
            ):
                raise StateError(
                    f"Batch {number} was given, and this rank is at batch "
                    f"{self._run.next_batch + topology.rank}.",
                    "It was counted before.",
                    "Give every batch once, in the order in which the DataLoader yields them.",
                )
            self._run = again
        self._run.commit(batch.lane, batch.step, batch.state)

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state behind the last batch given to `update`; as `PackedLoader`'s."""
        self._run.require_own_lanes()
        return self._run.as_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Collection[str] = ()) -> None:
        """Make the dataset, and the next iteration of its DataLoader, go on behind a state.

        Raises:
            StateError: the state is of another run; see `PackedDataset.load_state_dict`.
        """
        self.dataset.load_state_dict(state, allow=allow)
        self._run = self.dataset.start()
