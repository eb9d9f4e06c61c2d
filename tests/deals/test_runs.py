"""Runs whose lanes are dealt: even ends, and one sequence wherever and however often it stops."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from streampack import PackedDataset, PackedLoader, TokenRules, Topology, WindowConfig, merge_states
from streampack.errors import StateError
from streampack.lane.state import decode_reports
from streampack.run.plan import RunPlan
from streampack.streams.hooks import Hook
from tests.support.forged import sign
from tests.support.memory_source import MemorySource, numbered_documents
from tests.support.runs import identities, identity, in_order
from tests.support.simulated_ranks import over_legs

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

LANES = 4


def _documents() -> list[list[Any]]:
    """Twenty shards of 150 documents, up to five times as long in one as in another."""
    numbers = np.random.default_rng(4)
    typical = numbers.normal(2.5, 0.5, 20)
    lengths = [np.exp(numbers.normal(mean, 0.8, 150)).astype(int) + 1 for mean in typical]
    documents = numbered_documents(np.concatenate(lengths).tolist())
    return [documents[i : i + 150] for i in range(0, len(documents), 150)]


DOCUMENTS = _documents()
TOKENS = sum(len(document) for shard in DOCUMENTS for document in shard)


def dataset(topology: Topology | None = None, **options: Any) -> PackedDataset:
    return PackedDataset(
        MemorySource(DOCUMENTS, block_documents=16),
        seq_len=32,
        batch_size=2,
        window=WindowConfig(rows=16),
        lanes=LANES,
        topology=topology or Topology(),
        token_rules=TokenRules(pad_id=4_000_000),
        **options,
    )


def once(**options: Any) -> PackedDataset:
    """The same with lanes that are cut once."""
    found = dataset(**options)
    plan = RunPlan.of(replace(found.plan.config, dealing=None), Topology())
    found.go_on(plan, plan.start())
    return found


def test_lanes_of_shards_that_differ_end_together() -> None:
    shares = {}
    for name, make in (("once", once), ("dealt", dataset)):
        loader = PackedLoader(make())
        batches = list(loader)
        assert sum(batch.composition.placed for batch in batches) == TOKENS
        metrics = loader.metrics()
        assert metrics.empty_batches == 0  # one rank has steps of its own batches only
        lanes = [batch.lane for batch in batches]
        turns = max(lanes.count(lane) for lane in range(LANES))
        shares[name] = 1 - len(lanes) / (turns * LANES)
        assert metrics.utilisation < metrics.composition.utilisation + 1e-9
    assert shares["once"] > 0.1
    assert shares["dealt"] < 0.02
    reports = decode_reports(loader.state_dict()["lanes"]["0"]["reports"])
    assert len(reports) > 5, "hardly anything was dealt"


def test_the_last_epoch_alone_has_an_end() -> None:
    loader = PackedLoader(dataset(epochs=3))
    lanes = [batch.lane for batch in loader]
    assert loader.metrics().composition.placed == 3 * TOKENS
    turns = max(lanes.count(lane) for lane in range(LANES))
    assert len(lanes) > 0.99 * turns * LANES


def one_long_document(topology: Topology) -> PackedDataset:
    """Of a document that is a hundred times as long as all others together, in six lanes."""
    documents = numbered_documents([7] * 50 + [20_000] + [9] * 50)
    return PackedDataset(
        MemorySource([documents[:50], documents[50:51], documents[51:]]),
        seq_len=32,
        batch_size=2,
        window=WindowConfig(rows=10),
        lanes=6,
        topology=topology,
        token_rules=TokenRules(pad_id=4_000_000),
    )


def test_one_rank_gives_no_empty_batch_while_lanes_wait_for_a_long_document() -> None:
    loader = PackedLoader(one_long_document(Topology()))
    assert all(batch.num_documents for batch in loader)
    assert loader.metrics().empty_batches == 0


def test_states_between_steps_that_one_rank_leaves_out_go_on_on_any_ranks() -> None:
    expected = identities(PackedLoader(one_long_document(Topology())))
    legs = ((1, 0, 21), (1, 2, 80), (3, 0, 31), (4, 0, 18), (1, 0, 43), (2, 0, 10_000))
    assert over_legs(one_long_document, legs) == expected


@pytest.mark.parametrize("filtered", [False, True])
def test_any_ranks_workers_and_stops_give_the_sequence_of_one(filtered: bool) -> None:
    options: dict[str, Any] = {"filter": Hook("some shards", _some_shards)} if filtered else {}
    expected = identities(PackedLoader(dataset(**options)))
    legs = ((1, 2, 60), (3, 0, 25), (2, 0, 41), (4, 0, 18), (1, 0, 10_000))
    found = over_legs(lambda topology: dataset(topology, **options), legs)
    assert found == expected


def test_a_state_that_was_dealt_by_another_revision_of_the_rule_is_refused() -> None:
    loader = PackedLoader(dataset())
    next(iter(loader))
    state = loader.state_dict()
    del state["fingerprint"]["dealing"]["revision"]
    with pytest.raises(StateError, match=r"dealt by revision 1 of the rule, .* by revision 4"):
        PackedLoader(dataset()).load_state_dict(sign(state))


def _some_shards(documents: Any, seeds: Any) -> Any:
    return documents.origin["shard"] % 3 != 1


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_of_a_dataloader_deal_among_themselves(workers: int) -> None:
    expected = [identity(batch) for batch in PackedLoader(dataset())]
    loader = DataLoader(dataset(), batch_size=None, num_workers=workers)
    assert identities(loader) == [batch for batch in expected if set(batch[2]) != {4_000_000}]
    over = PackedLoader(dataset(), num_workers=workers)
    assert [identity(batch) for batch in over] == expected


def test_ranks_that_are_not_connected_run_the_lanes_of_others_too(caplog: Any) -> None:
    expected = [identity(batch) for batch in PackedLoader(dataset())]
    found, states = [], []
    for rank in range(2):
        loader = PackedLoader(dataset(Topology(rank, 2)))
        found.append([identity(batch) for batch in islice(loader, 150)])
        states.append(loader.state_dict())
    assert in_order(found) == expected[:300]
    assert "not connected with this process" in caplog.text
    own = PackedLoader(dataset(Topology(1, 2)))
    own.load_state_dict(states[1])
    with pytest.raises(StateError, match="merge_states"):
        list(own)
    rest: list[Any] = []
    for rank in range(2):
        loader = PackedLoader(dataset(Topology(rank, 2)))
        loader.load_state_dict(merge_states(states))
        rest += identities(loader)
    coming = [batch for batch in expected[300:] if set(batch[2]) != {4_000_000}]
    assert sorted(rest, key=lambda batch: (batch[1], batch[0])) == coming
