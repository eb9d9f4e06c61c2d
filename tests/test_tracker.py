"""What a StateTracker keeps is complete: also of lanes that have nothing at all."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from streampack import (
    Documents,
    Hook,
    PackedLoader,
    StateTracker,
    Topology,
    end_together,
    merge_states,
)
from tests.simulated_ranks import on_ranks
from tests.test_ending import uneven
from tests.test_loader import identity

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

PAD = 4_000_000


def without(*shards: int) -> Any:
    """Makes a dataset whose lanes of these numbers, one shard each, have no documents left."""

    def wanted(documents: Documents, seeds: Any) -> Any:
        return ~np.isin(documents.origin["shard"], shards)

    hook = Hook(f"without {shards}", wanted)
    return lambda topology: uneven(topology, filter=hook, shuffle=False)


SOME, A_WORKERS = without(0, 5), without(1, 4, 7, 10)  # number 1 of 3 workers


def full(batches: list[Any]) -> list[Any]:
    return sorted(batch for batch in batches if set(batch[2]) != {PAD})


@pytest.mark.parametrize("make", [SOME, A_WORKERS], ids=["some lanes", "a worker's lanes"])
@pytest.mark.parametrize("together", [False, True], ids=["plain", "end_together"])
@pytest.mark.parametrize("workers", [0, 3])
def test_every_state_goes_on_where_lanes_have_no_documents(
    make: Any, together: bool, workers: int
) -> None:
    dataset = make(Topology())
    tracker = StateTracker(dataset)
    loader: Any = DataLoader(dataset, batch_size=None, num_workers=workers)
    batches, states = [], []
    for batch in end_together(loader, dataset) if together else loader:
        tracker.update(batch)
        batches.append(identity(batch))
        states.append(json.dumps(tracker.state_dict()))
    assert full(batches) == full([identity(b) for b in PackedLoader(make(Topology()))])
    assert any(set(batch[2]) == {PAD} for batch in batches[:12])
    for taken in range(0, len(states), 7):
        again = PackedLoader(make(Topology()))
        again.load_state_dict(json.loads(states[taken]))
        rest = [identity(batch) for batch in again]
        if together:
            assert batches[: taken + 1] + rest == batches
        assert full(batches[: taken + 1] + rest) == full(batches)


def test_the_trackers_of_several_ranks_make_one_state_for_other_ranks() -> None:
    expected = [identity(batch) for batch in PackedLoader(SOME(Topology()))]

    def run(rank: int, ranks: Any) -> Any:
        dataset = SOME(Topology(rank, 3))
        tracker, found = StateTracker(dataset), []
        for batch in end_together(dataset, dataset, ranks=ranks):
            tracker.update(batch)
            found.append(identity(batch))
            if len(found) == 31:
                break
        return found, tracker.state_dict()

    results = on_ranks(3, run)
    taken = [batch for step in zip(*(found for found, _ in results), strict=True) for batch in step]
    state = json.loads(json.dumps(merge_states([state for _, state in results])))
    loader = PackedLoader(SOME(Topology()))
    loader.load_state_dict(state)
    assert taken + [identity(batch) for batch in loader] == expected
