"""PackedLoader.over: the order, end and state of a PackedLoader, over another loader."""

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
    Topology,
    WindowConfig,
    merge_states,
)
from streampack.lane.rotation import Sharing
from streampack.run.worker_share import WorkerShare
from tests.support.runs import filled, identity, uneven
from tests.support.simulated_ranks import on_ranks

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


def without(*shards: int) -> Any:
    """Makes a dataset whose lanes of these numbers, one shard each, have no documents left."""

    def wanted(documents: Documents, seeds: Any) -> Any:
        return ~np.isin(documents.origin["shard"], shards)

    hook = Hook(f"without {shards}", wanted)
    return lambda topology: uneven(topology, filter=hook, shuffle=False)


SOME, A_WORKERS = without(0, 5), without(1, 4, 7, 10)  # number 1 of 3 workers


@pytest.mark.parametrize("make", [SOME, A_WORKERS], ids=["some lanes", "a worker's lanes"])
@pytest.mark.parametrize("workers", [0, 3])
def test_every_state_goes_on_where_lanes_have_no_documents(make: Any, workers: int) -> None:
    loader = PackedLoader(make(Topology()), num_workers=workers)
    batches, states = [], []
    for batch in loader:
        batches.append(identity(batch))
        states.append(json.dumps(loader.state_dict()))
    assert batches == [identity(b) for b in PackedLoader(make(Topology()))]
    for taken in range(0, len(states), 7):
        again = PackedLoader(make(Topology()))
        again.load_state_dict(json.loads(states[taken]))
        assert batches[: taken + 1] + [identity(batch) for batch in again] == batches


def test_states_of_several_ranks_make_one_for_other_ranks() -> None:
    expected = [identity(batch) for batch in PackedLoader(SOME(Topology()))]

    def run(rank: int, ranks: Any) -> Any:
        loader, found = PackedLoader(SOME(Topology(rank, 3)), ranks=ranks), []
        for batch in loader:
            found.append(identity(batch))
            if len(found) == 31:
                break
        return found, loader.state_dict()

    results = on_ranks(3, run)
    taken = [batch for step in zip(*(found for found, _ in results), strict=True) for batch in step]
    state = json.loads(json.dumps(merge_states([state for _, state in results])))
    loader = PackedLoader(SOME(Topology()))
    loader.load_state_dict(state)
    assert filled(taken) + [identity(batch) for batch in loader] == expected


def test_workers_of_a_dataloader_that_do_not_divide_the_lanes_stay_idle(caplog: Any) -> None:
    expected = [identity(batch) for batch in PackedLoader(SOME(Topology()))]
    for workers in (5, 7, 14):
        loader = DataLoader(SOME(Topology()), batch_size=None, num_workers=workers)
        assert filled([identity(batch) for batch in loader]) == expected
    share = WorkerShare(
        SOME(Topology()).plan, SOME(Topology()).start(), Sharing(), worker=0, workers=5
    )
    assert "4 get some, the rest none" in caplog.text
    assert share.state_dict()["workers"] == 4


def test_the_lanes_are_the_same_whoever_asks_first() -> None:
    def asked(*questions: Any) -> dict[str, Any]:
        window = WindowConfig(rows=4)
        dataset = uneven(Topology(), lanes=None, window=window, epochs=20)
        for question in questions:
            question(dataset)
        return PackedLoader(dataset, num_workers=3).state_dict()["fingerprint"]

    plain = asked()
    assert plain["lanes"] > 1
    for question in (
        lambda dataset: dataset.plan.fingerprint,
        lambda dataset: dataset.estimate_steps(),
        lambda dataset: next(iter(PackedLoader(dataset))),
        lambda dataset: PackedLoader(dataset, num_workers=5).state_dict(),
        lambda dataset: next(iter(DataLoader(dataset, batch_size=None, num_workers=2))),
    ):
        assert asked(question) == plain
