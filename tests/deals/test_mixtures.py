"""Mixtures whose sources are dealt: even ends, shares that are kept, and one sequence."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import numpy as np
import pytest

from streampack import PackedDataset, PackedLoader, TokenRules, Topology, WindowConfig
from streampack.sources import Iterable, Mixture
from tests.support.memory_source import MemorySource
from tests.support.runs import identities, identity
from tests.support.simulated_ranks import over_legs

LANES = 4
PADDING = 4_000_000


def _source(seed: int, shards: int, first: int) -> MemorySource:
    """Shards of 100 documents, up to five times as long in one as in another."""
    numbers = np.random.default_rng(seed)
    typical = numbers.normal(2.5, 0.5, shards)
    found = []
    for mean in typical:
        lengths = np.exp(numbers.normal(mean, 0.8, 100)).astype(int) + 1
        ends = first + np.cumsum(lengths)
        first = int(ends[-1])
        found.append(
            [np.arange(end - n, end, dtype=np.uint32) for end, n in zip(ends, lengths, strict=True)]
        )
    return MemorySource(found, block_documents=16)


SOURCES = {
    "web": _source(1, 16, 0),
    "code": _source(2, 9, 1_000_000),
    "books": _source(3, 3, 2_000_000),
}
TOKENS = {
    name: sum(len(document) for shard in source.shards for document in shard)
    for name, source in SOURCES.items()
}


def dataset(topology: Topology | None = None, **options: Any) -> PackedDataset:
    mixture = {"quantum_documents": 4, **options.pop("mixture", {})}
    return PackedDataset(
        Mixture(SOURCES, **mixture),
        seq_len=32,
        batch_size=2,
        window=WindowConfig(rows=16),
        lanes=LANES,
        topology=topology or Topology(),
        token_rules=TokenRules(pad_id=PADDING),
        **options,
    )


MIXTURES: dict[str, dict[str, Any]] = {
    "by size": {},
    "by weights": {"weights": {"web": 0.3, "code": 0.3, "books": 0.4}},
    "until one ends": {"weights": {"web": 0.3, "code": 0.3, "books": 0.1}, "at_end": "stop"},
    "with an endless one": {"epochs": {"books": None}},
    "several epochs of one": {"epochs": {"books": 4}},
}


@pytest.mark.parametrize("name", MIXTURES)
def test_lanes_of_a_mixture_end_together(name: str) -> None:
    loader = PackedLoader(dataset(mixture=MIXTURES[name]))
    given: dict[int, int] = {}
    lanes: list[int] = []
    for batch in loader:
        ids = batch.input_ids.numpy().reshape(-1)
        for number in range(len(SOURCES)):
            low = number * 1_000_000
            own = ids[(ids >= low) & (ids < low + 1_000_000) & (ids != PADDING)]
            given[number] = given.get(number, 0) + len(own)
        lanes.append(batch.lane)
    turns = max(lanes.count(lane) for lane in range(LANES))
    assert len(lanes) > 0.95 * turns * LANES  # of cutting once, below 0.9
    epochs = {"several epochs of one": {"books": 4}}.get(name, {})
    if name in ("by size", "by weights", "several epochs of one"):
        assert list(given.values()) == [n * epochs.get(s, 1) for s, n in TOKENS.items()]


@pytest.mark.parametrize("name", MIXTURES)
def test_any_ranks_workers_and_stops_of_a_mixture_give_the_sequence_of_one(name: str) -> None:
    options = {"mixture": MIXTURES[name]}
    expected = identities(PackedLoader(dataset(**options)))
    legs = ((1, 2, 30), (3, 0, 25), (2, 0, 41), (4, 0, 18), (1, 0, 10_000))
    found = over_legs(lambda topology: dataset(topology, **options), legs)
    assert found == expected


def test_every_stop_of_a_mixture_gives_what_was_to_follow() -> None:
    expected = [identity(batch) for batch in PackedLoader(dataset())]
    loader, found = PackedLoader(dataset()), []
    while True:
        batches = [identity(batch) for batch in islice(loader, 7)]
        if not batches:
            break
        found += batches
        state = json.loads(json.dumps(loader.state_dict()))
        loader = PackedLoader(dataset())
        loader.load_state_dict(state)
    assert found == expected


@pytest.mark.parametrize("stop", [4, 150, 515, 650])
def test_a_second_epoch_added_on_the_way_gives_every_token_twice(stop: int) -> None:
    loader = PackedLoader(dataset())
    found = [batch.input_ids.numpy() for batch in islice(loader, stop)]
    longer = PackedLoader(dataset(epochs=2))
    longer.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    found += [batch.input_ids.numpy() for batch in longer]
    ids = np.concatenate(found, axis=None)
    _, counts = np.unique(ids[ids != PADDING], return_counts=True)
    assert len(counts) == sum(TOKENS.values())
    assert (counts == 2).all()


def test_what_is_left_when_an_iterable_has_ended_fills_batches() -> None:
    """However small its weight was beside what is not dealt, and may end at any time."""
    first = Iterable(lambda lane, lanes: iter([[PADDING + 1 + lane] * 20] * 20))
    mixture = Mixture({"first": first, "web": SOURCES["web"]}, weights={"first": 1, "web": 1e-4})
    loader = PackedLoader(
        PackedDataset(
            mixture, seq_len=32, batch_size=2, window=WindowConfig(rows=16), lanes=LANES,
            topology=Topology(), token_rules=TokenRules(pad_id=PADDING),
        )
    )  # fmt: skip
    tokens = [batch.num_tokens for batch in islice(loader, 10_000)]
    assert sum(tokens) == TOKENS["web"] + LANES * 20 * 20
    assert len(tokens) <= 1.1 * sum(tokens) / 64
