"""Stopped anywhere and gone on with on any topology, a run is the run that was never stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from streampack import (
    Concat,
    Hook,
    PackedBatch,
    PackedDataset,
    PackedLoader,
    SimilarityOrder,
    TokenRules,
    Topology,
    WindowConfig,
    merge_states,
    sources,
)
from streampack.documents import Documents
from streampack.packing import Balance
from tests.support.corpora import byte_tokenizer
from tests.support.drawn import drawn
from tests.support.every_source import PACKERS, SEQ_LEN, SOURCES
from tests.support.memory_source import MemorySource
from tests.support.simulated_ranks import on_ranks

LANES = (1, 2, 4, 6, 12)
RANKS = (1, 2, 3, 5, 6, 8, 12, 24)
Make = Callable[[Topology], PackedDataset]


@dataclass(frozen=True)
class Leg:
    """Part of a run: on so many ranks, with so many workers each, for so many steps."""

    ranks: int
    workers: int
    steps: int


def identity(batch: PackedBatch) -> tuple[Any, ...]:
    arrays = (batch.input_ids, batch.labels, batch.position_ids, batch.document_ids)
    return (
        batch.step,
        batch.lane,
        *(array.ravel().tolist() for array in arrays),
        batch.cu_seqlens.tolist(),
        batch.source_ids.tolist(),
    )


def global_batches(ranks: list[list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
    """The batches of all ranks in the order of the run."""
    assert len({len(batches) for batches in ranks}) == 1, "a rank left before the others"
    return [batch for step in zip(*ranks, strict=True) for batch in step]


def run_leg(make: Make, leg: Leg, state: Any) -> tuple[list[tuple[Any, ...]], Any]:
    """The leg's batches, and the state behind them as it is after a way through JSON."""

    def one(rank: int, member: Any) -> tuple[list[tuple[Any, ...]], Any]:
        dataset = make(Topology(rank, leg.ranks))
        loader = PackedLoader(dataset, num_workers=leg.workers, ranks=member)
        if state is not None:
            loader.load_state_dict(state)
        batches = [identity(batch) for batch in islice(loader, leg.steps)]
        return batches, loader.state_dict()

    ranks, states = zip(*on_ranks(leg.ranks, one), strict=True)
    return global_batches(list(ranks)), json.loads(json.dumps(merge_states(states)))


def assert_legs(make: Make, lanes: int, legs: list[Leg]) -> None:
    whole = [identity(batch) for batch in PackedLoader(make(Topology()))]
    found: list[tuple[Any, ...]] = []
    state = None
    for leg in [*legs, Leg(1, 0, 100_000)]:
        batches, state = run_leg(make, leg, state)
        found += batches
    numbers = [step * lanes + lane for step, lane, *_ in found]
    assert numbers == sorted(set(numbers))
    assert filled(found) == filled(whole)  # how many empty ones there are depends on the ranks


def filled(batches: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the batches that hold documents."""
    return [batch for batch in batches if set(batch[-3]) != {-1}]


# ------------------------------------------------------------------ strategies


def reverse_some(documents: Documents, seeds: NDArray[np.uint64]) -> Documents:
    tokens = documents.tokens.copy()
    for i in np.flatnonzero(seeds % np.uint64(2)):
        part = slice(documents.offsets[i], documents.offsets[i + 1])
        tokens[part] = tokens[part][::-1]
    return Documents(tokens, documents.offsets, documents.origin, documents.loss_mask)


def no_sevenths(documents: Documents, seeds: NDArray[np.uint64]) -> NDArray[np.bool_]:
    return np.asarray(documents.lengths % 7 != 0)


@st.composite
def memory_sources(draw: st.DrawFn) -> MemorySource:
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    count, mean, spread = draw(st.integers(1, 250)), draw(st.sampled_from([1, 2, 3])), 1.0
    lengths = np.minimum(np.exp(rng.normal(mean, spread, count)).astype(int) + 1, 700)
    if draw(st.integers(0, 4)) == 0:
        lengths[rng.integers(0, count)] = 3000  # longer than any window
    lengths[0] += lengths[0] % 7 == 0  # a filter that drops everything is an error
    dtype = draw(st.sampled_from([np.uint16, np.uint32]))
    top = 60_000 if dtype == np.uint16 else 1_000_000
    documents = [rng.integers(0, top, n).astype(dtype) for n in lengths]
    masks = None
    if draw(st.booleans()):
        masks = [rng.random(n) < 0.7 for n in lengths]
    cuts = sorted(draw(st.lists(st.integers(0, count), max_size=3)))
    bounds = list(zip([0, *cuts], [*cuts, count], strict=True))
    return MemorySource(
        [documents[a:b] for a, b in bounds],
        None if masks is None else [masks[a:b] for a, b in bounds],
        block_documents=draw(st.integers(1, 40)),
        open_shards=draw(st.integers(1, 3)),
    )


@st.composite
def mixtures(draw: st.DrawFn) -> sources.Mixture:
    names = [f"source {i}" for i in range(draw(st.integers(2, 3)))]
    return sources.Mixture(
        {name: draw(memory_sources()) for name in names},
        weights={name: draw(st.sampled_from([1, 2, 5])) for name in names},
        at_end=draw(st.sampled_from(["share", "stop"])),
        quantum_documents=draw(st.integers(1, 9)),
    )


@st.composite
def options(draw: st.DrawFn) -> dict[str, Any]:
    packer = draw(st.sampled_from(PACKERS))
    values: dict[str, Any] = {
        "packer": packer,
        "batch_size": draw(st.integers(1, 3)),
        "window": WindowConfig(
            rows=draw(st.integers(8, 30)),
            documents=draw(st.sampled_from([20, 65_536])),
            max_carries=draw(st.sampled_from([1, 16])),
        ),
        "attention": draw(st.sampled_from(["document", "row"])),
        "seed": draw(st.integers(0, 99)),
        "shuffle": draw(st.booleans()),
        "epochs": draw(st.integers(1, 2)),
        "map": Hook("reverse-some", reverse_some) if draw(st.booleans()) else None,
        "filter": Hook("no-sevenths", no_sevenths) if draw(st.booleans()) else None,
    }
    if draw(st.integers(0, 5)) == 0:
        order = SimilarityOrder(order_window_documents=30, first_window_documents=10)
        values |= {"order": order, "packer": Concat(seq_len=SEQ_LEN), "attention": "row"}
    elif values["attention"] == "document" and packer.seq_lens == (SEQ_LEN,):
        values["packer"] = replace(packer, choice=draw(st.sampled_from([None, Balance()])))
    return values


@st.composite
def runs(
    draw: st.DrawFn, most_lanes: int = LANES[-1], most_ranks: int = RANKS[-1]
) -> tuple[int, list[Leg]]:
    """A number of lanes and two to five legs on any numbers of ranks."""
    lanes = draw(st.sampled_from([n for n in LANES if n <= most_lanes]))
    ranks = st.sampled_from([n for n in RANKS if n <= most_ranks])
    legs = st.builds(Leg, ranks=ranks, workers=st.just(0), steps=st.integers(0, 25))
    return lanes, draw(st.lists(legs, min_size=2, max_size=5))


def dataset_maker(source: Any, lanes: int, values: dict[str, Any]) -> Make:
    source.prepare()

    def make(topology: Topology) -> PackedDataset:
        ids = (
            {"token_rules": TokenRules(eos_id=256)}
            if source.tokenized
            else {"tokenizer": byte_tokenizer()}
        )
        return PackedDataset(source, lanes=lanes, topology=topology, **ids, **values)

    return make


@drawn(12, least=2)
@given(st.one_of(memory_sources(), mixtures()), options(), runs())
def test_any_stops_on_any_topologies_give_the_uninterrupted_sequence(
    source: Any, values: dict[str, Any], run: tuple[int, list[Leg]]
) -> None:
    lanes, legs = run
    assert_legs(dataset_maker(source, lanes, values), lanes, legs)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", [kind for kind in SOURCES if not kind.startswith("chat")])
def test_every_source_goes_on_anywhere(kind: str, tmp_path: Path) -> None:
    source = SOURCES[kind](tmp_path)
    source.prepare()

    @drawn(2)
    @given(options(), runs(source.max_lanes() or 4, most_ranks=6))
    def check(values: dict[str, Any], run: tuple[int, list[Leg]]) -> None:
        lanes, legs = run
        if source.max_lanes() == 1:
            lanes = 1
        assert_legs(dataset_maker(source, lanes, values), lanes, legs)

    check()


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_workers_are_free_on_every_leg(seed: int) -> None:
    rng = np.random.default_rng(seed)
    documents = [
        rng.integers(0, 999, n).astype(np.uint16) for n in rng.integers(1, 3 * SEQ_LEN, 200)
    ]
    source = MemorySource([documents[:90], documents[90:]], block_documents=9)
    values = {
        "packer": PACKERS[int(rng.integers(len(PACKERS)))],
        "batch_size": 2,
        "window": WindowConfig(rows=10),
    }
    legs = [Leg(1, int(rng.integers(1, 4)), int(rng.integers(1, 30))) for _ in range(3)]
    assert_legs(dataset_maker(source, 6, values), 6, legs)
