"""Every run is one sequence of batches, whatever ranks, workers, loaders and stops it has."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache, partial
from itertools import chain, cycle
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from streampack import (
    Hook,
    PackedDataset,
    PackedLoader,
    TokenRules,
    Topology,
    WindowConfig,
    sources,
)
from streampack.deals.report_channel import ReportChannel
from streampack.documents import Documents
from streampack.packing import Buckets
from streampack.workers.share import WorkerShare
from tests.support import grouped_runs
from tests.support.dealt_runs import (
    MIXTURES,
    SHORT_ALONE,
    SHORT_SOURCES,
    dealt,
    dealt_mixture,
    of_many_epochs,
    one_long_document,
)
from tests.support.memory_source import MemorySource
from tests.support.runs import DOCUMENTS, PAD, identities, uneven
from tests.support.simulated_ranks import over_legs
from tests.support.tree_reference import branching

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


def without(*shards: int) -> Hook:
    """A filter that leaves nothing of these shards."""

    def wanted(documents: Documents, seeds: Any) -> Any:
        return ~np.isin(documents.origin["shard"], shards)

    return Hook(f"without {shards}", wanted)


def evaluation(topology: Topology) -> PackedDataset:
    source = MemorySource([DOCUMENTS[:60], DOCUMENTS[60:]], block_documents=9)
    rules = TokenRules(pad_id=PAD)
    return PackedDataset.evaluation(source, seq_len=32, token_rules=rules, topology=topology)


def trees(mixed: bool, topology: Topology) -> PackedDataset:
    parts = {
        name: sources.Items(branching(part, 24), reading=sources.ReadOptions(block_documents=9))
        for name, part in (("a", DOCUMENTS[:30]), ("b", DOCUMENTS[200:]))
    }
    source = sources.Mixture(parts, weights={"a": 1, "b": 1}) if mixed else parts["b"]
    return dealt(topology, source, layout="tree", epochs=2, window=WindowConfig(rows=8))


def filtered(*shards: int) -> Callable[[Topology], PackedDataset]:
    """Lanes of one shard each, without the shards of these indices."""
    return lambda topology: uneven(topology, filter=without(*shards), shuffle=False)


def short(topology: Topology, **options: Any) -> PackedDataset:
    return dealt(topology, MemorySource(SHORT_ALONE, block_documents=16), **options)


RUNS: dict[str, Callable[[Topology], PackedDataset]] = {
    "uneven lanes": uneven,
    "buckets": lambda topology: uneven(topology, packer=Buckets(seq_lens=(8, 16, 32))),
    "empty lanes": filtered(0, 5),
    "empty lanes of a worker": filtered(1, 4, 7, 10),
    "dealt": short,
    "dealt and filtered": lambda topology: short(topology, filter=without(*range(1, 20, 3))),
    **{f"mixture {name}": partial(dealt_mixture, name, of=SHORT_SOURCES) for name in MIXTURES},
    "many epochs": lambda topology: of_many_epochs(15, 0.6, 1, topology),
    "one long document": one_long_document,
    "groups in rows": lambda topology: grouped_runs.dataset(topology=topology),
    "groups in batches": lambda topology: grouped_runs.dataset(seq_len=16, topology=topology),
    "evaluation": evaluation,
    "trees": lambda topology: trees(False, topology),
    "trees of a mixture": lambda topology: trees(True, topology),
}
LONG: dict[str, Callable[[Topology], PackedDataset]] = {
    "dealt, long": dealt,
    "dealt and filtered, long": lambda topology: dealt(topology, filter=without(*range(1, 20, 3))),
    **{f"mixture {name}, long": partial(dealt_mixture, name) for name in MIXTURES},
    "epochs, long": lambda topology: of_many_epochs(40, 0.6, 1, topology),
}
#: In the gate; at night all runs are in both tests.
OVER_LEGS = (
    "uneven lanes",
    "buckets",
    "empty lanes",
    "dealt and filtered",
    "evaluation",
    "trees of a mixture",
)
BY_LOADERS = ("empty lanes of a worker",)
assert {*OVER_LEGS, *BY_LOADERS} <= {*RUNS}


def all_but_slow(quick: Collection[str]) -> list[Any]:
    """All runs, the slow ones with their marker."""
    return [
        pytest.param(name, marks=() if name in quick else pytest.mark.slow)
        for name in {**RUNS, **LONG}
    ]


#: Ranks, workers and steps; the last ones over and over until the run ends.
LEGS = [(1, 2, 60), (3, 0, 25), (2, 0, 41), (4, 0, 18), (1, 3, 31)]
SHORT = [(1, 0, 121), (3, 0, 37), (5, 0, 43)]


@cache
def sequence_of_one(name: str) -> list[Any]:
    return identities(PackedLoader({**RUNS, **LONG}[name](Topology())))


@pytest.mark.parametrize("name", all_but_slow(OVER_LEGS))
def test_any_ranks_workers_and_stops_give_the_sequence_of_one(name: str) -> None:
    make = {**RUNS, **LONG}[name]
    assert over_legs(make, chain(LEGS, cycle(SHORT))) == sequence_of_one(name)


@pytest.mark.parametrize("name", all_but_slow(BY_LOADERS))
def test_every_loader_gives_the_sequence_of_one(name: str) -> None:
    make, expected = {**RUNS, **LONG}[name], sequence_of_one(name)
    assert identities(PackedLoader(make(Topology()), num_workers=5)) == expected
    assert identities(DataLoader(make(Topology()), batch_size=None, num_workers=3)) == expected


def test_workers_of_a_dataloader_that_do_not_divide_the_lanes_stay_idle(caplog: Any) -> None:
    dataset = RUNS["empty lanes"](Topology())
    expected = identities(PackedLoader(dataset))
    loader = DataLoader(dataset, batch_size=None, num_workers=5)
    assert identities(loader) == expected
    for workers, busy in ((5, 4), (14, 12)):
        begins = dataset._begins()
        share = WorkerShare(dataset.plan, begins, ReportChannel(), worker=0, workers=workers)
        assert share.state_dict()["workers"] == busy
        assert f"{busy} get some, the rest none" in caplog.text


def test_the_lanes_are_the_same_for_any_first_question() -> None:
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
