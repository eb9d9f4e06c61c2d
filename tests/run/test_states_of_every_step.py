"""A state saved after any step loads on any number of ranks, and the run goes on the same."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streampack import (
    PackedDataset,
    PackedLoader,
    TokenRules,
    Topology,
    WindowConfig,
    merge_states,
    sources,
)
from streampack.packing import BestFitDecreasing
from streampack.run.state import batches_due
from tests.support.drawn import drawn
from tests.support.memory_source import MemorySource, numbered_documents
from tests.support.runs import PAD, filled, identity, in_order
from tests.support.simulated_ranks import on_ranks
from tests.support.tree_reference import branching

RANKS = (1, 2, 3, 4, 5, 8, 12)
Make = Any


def run_with_states(make: Make, ranks: int, state: Any) -> tuple[list[Any], list[Any]]:
    """The batches to the end of the run, and the state before it and after each of its steps."""

    def one(rank: int, member: Any) -> tuple[list[Any], list[Any]]:
        loader = PackedLoader(make(Topology(rank, ranks)), ranks=member)
        if state is not None:
            loader.load_state_dict(state)
        batches, states = [], [loader.state_dict()]
        for batch in loader:
            batches.append(identity(batch))
            states.append(loader.state_dict())
        return batches, [*states, loader.state_dict()]

    batches, states = zip(*on_ranks(ranks, one), strict=True)
    merged = [merge_states(step) for step in zip(*states, strict=True)]
    return in_order(list(batches)), json.loads(json.dumps(merged))


def assert_lanes_agree(state: Any) -> None:
    """Every lane has given its batches before the next one of the run, unless it has ended."""
    for name, lane in state["lanes"].items():
        due = batches_due(int(name), state["next_batch"], len(state["lanes"]))
        given = 0 if lane is None else lane["step"] + lane["emitted"]
        assert given == due or (given < due and lane is not None and lane["final"])


def assert_every_state_goes_on(make: Make, first: int, second: int) -> None:
    """On `first` ranks: all states load; from some, `second` ranks give the rest, and so on."""
    batches, states = run_with_states(make, first, None)
    for state in states:
        assert_lanes_agree(state)
    for taken in {0, len(states) // 2, len(states) - 5, len(states) - 3, len(states) - 2}:
        if taken >= 0:
            rest, later = run_with_states(make, second, states[taken])
            assert filled(rest) == filled(batches[taken * first :])
            for state in later:
                assert_lanes_agree(state)


@st.composite
def small_runs(draw: st.DrawFn) -> Make:
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    lengths = rng.integers(1, draw(st.sampled_from([20, 90])), draw(st.integers(1, 80)))
    documents = numbered_documents(lengths)
    cuts = sorted(rng.integers(0, len(documents), draw(st.integers(0, 4))).tolist())
    bounds = list(zip([0, *cuts], [*cuts, len(documents)], strict=True))
    source: Any = MemorySource([documents[a:b] for a, b in bounds], block_documents=5)
    tree = draw(st.booleans())
    if tree:
        source = sources.Items(
            branching(documents, 24), reading=sources.ReadOptions(block_documents=5)
        )
    lanes = draw(st.integers(1, 12))
    epochs = draw(st.integers(1, 2))

    def make(topology: Topology) -> PackedDataset:
        return PackedDataset(
            source,
            packer=BestFitDecreasing(seq_len=32, overflow="error" if tree else "split"),
            layout="tree" if tree else "documents",
            batch_size=2,
            window=WindowConfig(rows=10),
            token_rules=TokenRules(pad_id=PAD, eos_id=PAD + 1),
            lanes=lanes,
            epochs=epochs,
            topology=topology,
        )

    return make


@drawn(25)
@given(small_runs(), st.sampled_from(RANKS), st.sampled_from(RANKS))
def test_every_state_of_a_run_loads_on_any_ranks_and_goes_on_the_same(
    make: Make, first: int, second: int
) -> None:
    assert_every_state_goes_on(make, first, second)
