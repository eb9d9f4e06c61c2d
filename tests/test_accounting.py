"""Lost tokens are counted once: behind the last batch, after a break, in every epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streampack import (
    PackedDataset,
    PackedLoader,
    SimilarityOrder,
    TokenRules,
    Topology,
    WindowConfig,
    sources,
)
from streampack.errors import ContentError
from streampack.forecasts.dry_run import stream_plan
from streampack.lane.lane import Lane
from streampack.lane.state import LaneEnd
from streampack.metrics import Metrics
from streampack.packing import BestFitDecreasing, Concat, Seamless, check_plan
from tests.support.lanes import SEQ_LEN, composition_of, lane_config, run
from tests.support.memory_source import MemorySource


def corpus(lengths: list[int]) -> MemorySource:
    documents = [np.full(n, 7, dtype=np.uint16) for n in lengths]
    return MemorySource([documents], block_documents=2)


def loader_over(lengths: list[int], workers: int = 0, **options: Any) -> PackedLoader:
    values: dict[str, Any] = {
        "packer": BestFitDecreasing(seq_len=SEQ_LEN, overflow="drop"),
        "batch_size": 1,
        "window": WindowConfig(rows=4),
        "lanes": 2,
        "topology": Topology(),
        "shuffle": False,
    }
    dataset = PackedDataset(corpus(lengths), **{**values, **options})
    return PackedLoader(dataset, num_workers=workers)


def counts(metrics: Metrics) -> tuple[Any, ...]:
    return metrics.batches, metrics.composition, metrics.empty_documents, metrics.skipped


@pytest.mark.sampled(1)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_that_breaks_after_every_batch_counts_everything_once(workers: int) -> None:
    lengths = [5, 0, 30, 100, 0, 0, 31, 32, 9, 0, 40, 3, 0, 8, 100, 100, 0] * (1 if workers else 3)
    epochs = 1 if workers else 2
    whole = loader_over(lengths, epochs=epochs)
    list(whole)
    broken = loader_over(lengths, workers, epochs=epochs)
    for _ in range(whole.metrics().batches):
        next(iter(broken))
    assert list(broken) == []
    assert counts(broken.metrics()) == counts(whole.metrics())


def test_broken_documents_are_counted_once_an_epoch_after_any_resume() -> None:
    broken = Broken([np.full(n, 7, dtype=np.uint16) for n in (5, 9, 5, 9, 5)])
    broken.prepare()
    config = lane_config(
        [5],
        BestFitDecreasing(seq_len=SEQ_LEN),
        source=broken,
        epochs=40,
        on_error="skip",
        window=WindowConfig(rows=20),
    )
    batches = run(Lane(config, 0))
    end = Lane(config, 0, batches[-1].start.state(batches[-1].emitted)).next()
    assert isinstance(end, LaneEnd)
    assert end.start.skipped == 2 * 40
    for batch in batches:
        lane = Lane(config, 0, batch.start.state(batch.emitted))
        rest = run(lane)
        last = (rest or [batch])[-1]
        assert last.start.state(last.emitted) == batches[-1].start.state(batches[-1].emitted)


class Broken(MemorySource):
    """Documents 1 and 3 are broken, every time they are read."""

    def __init__(self, documents: Any) -> None:
        super().__init__([documents], block_documents=2)

    def read_shard(self, shard: int, *place: Any) -> Any:
        skips = place[-1]
        for block, end, reached in super().read_shard(shard, *place):
            bad = block.origin["index"] % 2 == 1
            for i in block.origin["index"][bad].tolist():
                skips.handle(ContentError(f"Document {i} is broken.", shard=shard, index=i))
            yield block.take(np.flatnonzero(~bad)), end, reached


def test_a_document_counts_as_cut_if_its_last_piece_is_dropped_later() -> None:
    packer = BestFitDecreasing(seq_len=SEQ_LEN, extra_capacity=SEQ_LEN - 1)
    lengths = [2 * SEQ_LEN + 5, 3, 3 * SEQ_LEN + 1, 9, SEQ_LEN] * 40
    config = lane_config(lengths, packer, rows=1, window=WindowConfig(rows=4, carry=0.95))
    batches = run(Lane(config, 0))
    pieces: dict[tuple[int, int], int] = {}
    for batch in batches:
        assert batch.rows.provenance is not None
        for shard, index in batch.rows.provenance[["shard", "index"]].tolist():
            pieces[shard, index] = pieces.get((shard, index), 0) + 1
    cut = sum(count > 1 for count in pieces.values())
    assert composition_of(batches).documents_cut == cut


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rows", [1, 4, 9])
@pytest.mark.parametrize("lengths", [[1, 1, 2, 1, 3], [1, 5, 2, 9, 3, 1, 1]], ids=["short", "long"])
def test_a_row_of_seamless_drops_no_more_than_its_extra_capacity_however_often_it_stays(
    rows: int, lengths: list[int]
) -> None:
    """A piece wholly beyond seq_len is lost with the row that loses it, and not before."""
    packer = Seamless(seq_len=4, extra_capacity=3, max_repetition=0)
    lengths = lengths * 200
    config = WindowConfig(rows=-(-7 * rows // 4) + 8, min_fill=1, carry=0.9)
    plan = stream_plan(np.array(lengths), packer, config, batch_tokens=4 * rows, seed=1)
    check_plan(plan, np.array(lengths))
    short = len(plan.seq_len) - sum(length // 4 for length in lengths)
    assert plan.dropped.sum() <= short * 3
    dataset = PackedDataset(
        corpus(lengths),
        packer=packer,
        batch_size=rows,
        window=config,
        lanes=1,
        topology=Topology(),
    )
    loader = PackedLoader(dataset)
    list(loader)
    composition = loader.metrics().composition
    assert composition.placed + composition.dropped == sum(lengths)
    short = composition.rows - sum(length // 4 for length in lengths)
    assert composition.dropped <= short * 3


@pytest.mark.parametrize("workers", [0, 2])
def test_every_document_is_placed_dropped_or_a_duplicate(workers: int) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 60_000, n).astype(np.uint16) for n in rng.integers(1, 90, 120)]
    arrays = [arrays[i] for i in np.sort(np.append(np.arange(120), np.arange(0, 120, 3)))]
    dataset = PackedDataset(
        MemorySource([arrays[:80], arrays[80:]], block_documents=9),
        packer=Concat(seq_len=SEQ_LEN),
        order=SimilarityOrder(order_window_documents=50),
        attention="row",
        batch_size=2,
        window=WindowConfig(rows=16),
        lanes=3,
        epochs=2,
        topology=Topology(),
        shuffle=False,
        token_rules=TokenRules(eos_id=60_000, pad_id=60_001),
    )
    loader = PackedLoader(dataset, num_workers=workers)
    list(loader)
    metrics = loader.metrics()
    composition = metrics.composition
    accounted = composition.placed + composition.dropped + metrics.duplicate_tokens
    assert accounted == 2 * sum(map(len, arrays))
    assert composition.documents + metrics.duplicates == 2 * len(arrays) == 320
    assert 0 < metrics.duplicate_tokens < composition.placed
    assert "duplicate_tokens=" in repr(metrics)


@pytest.mark.parametrize("workers", [0, 1])
def test_tokens_of_a_mixture_are_counted_by_source(workers: int) -> None:
    parts = {"a": corpus([5, 70, 9] * 20), "b": corpus([31] * 40)}
    dataset = PackedDataset(
        sources.Mixture(parts, weights={"a": 1, "b": 1}), seq_len=SEQ_LEN, lanes=2,
        topology=Topology(),
    )  # fmt: skip
    loader = PackedLoader(dataset, num_workers=workers)
    found = np.zeros(2, dtype=np.int64)
    for batch in loader:
        pieces = batch.document_ids[batch.document_ids >= 0]
        found += np.bincount(batch.source_ids[pieces].numpy(), minlength=2)
        assert [own.tokens for own in loader.metrics().sources.values()] == found.tolist()
    given = loader.metrics().sources
    assert {name: own[:2] for name, own in given.items()} == {"a": (1680, 60), "b": (1240, 40)}
    assert loader.metrics().as_dict()["tokens/b"] == 31 * 40
