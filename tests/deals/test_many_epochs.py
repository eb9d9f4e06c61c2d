"""Runs of many epochs: few deals, so that a lane's state is as small as that of a short run."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streampack import PackedDataset, PackedLoader, TokenRules, Topology, WindowConfig
from tests.support.memory_source import MemorySource, numbered_documents
from tests.support.runs import identities
from tests.support.simulated_ranks import over_legs

MOST_BYTES = 2000  # of a lane's state, its window of some 20 documents included


def dataset(
    epochs: int, spread: float, seed: int, topology: Topology | None = None
) -> PackedDataset:
    numbers = np.random.default_rng(seed)
    typical = numbers.normal(3.0, spread, 3)
    lengths = [np.exp(numbers.normal(mean, 0.9, 20)).astype(int) + 1 for mean in typical]
    documents = numbered_documents(np.concatenate(lengths).tolist())
    return PackedDataset(
        MemorySource([documents[at : at + 20] for at in (0, 20, 40)], block_documents=8),
        seq_len=64,
        batch_size=2,
        window=WindowConfig(rows=8),
        lanes=3,
        epochs=epochs,
        topology=topology or Topology(),
        token_rules=TokenRules(pad_id=4_000_000),
    )


@settings(max_examples=6, deadline=None)
@given(epochs=st.integers(5, 300), spread=st.sampled_from([0.0, 0.6]), seed=st.integers(0, 1 << 20))
def test_the_size_of_a_state_has_a_bound_whatever_the_number_of_epochs(
    epochs: int, spread: float, seed: int
) -> None:
    loader, lanes = PackedLoader(dataset(epochs, spread, seed)), [0, 0, 0]
    for batch in loader:
        lanes[batch.lane] += 1
        if lanes[batch.lane] % 31 == 1:
            states = loader.state_dict()["lanes"].values()
            assert max(len(json.dumps(state)) for state in states) < MOST_BYTES
    assert (
        max(len(json.dumps(state)) for state in loader.state_dict()["lanes"].values()) < MOST_BYTES
    )
    assert max(lanes) - min(lanes) < 8


@settings(max_examples=4, deadline=None)
@given(
    epochs=st.integers(5, 60),
    stops=st.lists(st.integers(1, 90), min_size=3, max_size=3),
    ranks=st.permutations([1, 2, 3]),
    seed=st.integers(0, 1 << 20),
)
def test_a_run_of_many_epochs_goes_on_the_same_on_any_ranks(
    epochs: int, stops: list[int], ranks: list[int], seed: int
) -> None:
    legs = [(count, 0, stop) for count, stop in zip(ranks, stops, strict=True)]
    expected = identities(PackedLoader(dataset(epochs, 0.6, seed)))
    found = over_legs(
        lambda topology: dataset(epochs, 0.6, seed, topology), (*legs, (1, 0, 10_000))
    )
    assert found == expected
