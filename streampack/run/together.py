"""Ending together under other loaders: a torch DataLoader, or anything that gives batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from streampack.batch import PackedBatch
from streampack.dataset import PackedDataset
from streampack.job.ending import Ending, Ranks
from streampack.job.exchange import check_same_start, connect
from streampack.run.state import batches_given
from streampack.workers.delivery import Delivery
from streampack.workers.feed import fill_gaps

__all__ = ["end_together"]


def end_together(
    loader: Iterable[PackedBatch], dataset: PackedDataset, *, ranks: Ranks | None = None
) -> Iterator[PackedBatch]:
    """The batches of this rank's `loader`, with empty ones until every rank is through.

    Gives what `PackedLoader` gives, in the same order: all ranks leave after the same step.

    Args:
        loader: gives this rank's batches in order, for example
            ``DataLoader(dataset, batch_size=None, num_workers=n)``, from the place that the
            dataset starts from. Another iterable is taken to run no workers: where those choose
            the number of lanes, give the dataset ``lanes=``.
        dataset: what it loads, finite.
        ranks: who agrees; None finds the job's processes (see `streampack.job.exchange`).

    Raises (while iterating):
        StateError: the batches are not this rank's in their order.
        RankError: another rank died, or starts another run or from another place.
    """
    config = dataset.lane_config(max(getattr(loader, "num_workers", 0), 1))
    run = dataset.start()
    endless = config.epochs is None
    if not endless:
        ranks = ranks or connect(dataset.topology)
        check_same_start(ranks, run.next_batch, run.fingerprint)
    dtype = np.dtype(np.uint16 if config.row_format.pad_id < 1 << 16 else np.uint32)
    states = {lane: run.lane(lane) for lane in run.topology.lanes(run.next_batch, config.lanes)}

    def feed() -> Iterator[Delivery]:
        for batch in loader:
            if batch.num_documents:
                yield Delivery(batch, None, None, dtype)
            elif batch.state is not None:  # of a lane that has nothing at all, perhaps
                states[batch.lane] = batch.state

    ending = Ending(
        feed(),
        topology=dataset.topology,
        start=run.next_batch,
        lanes=config.lanes,
        given={lane: batches_given(state) for lane, state in states.items()},
        ranks=None if endless else ranks,
        own_only=True,
    )
    for delivery in fill_gaps(ending, config, states.get):
        if delivery.batch.num_documents and not delivery.has_next:
            states[delivery.lane] = delivery.batch.state
        yield delivery.batch
