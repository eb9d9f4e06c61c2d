"""Ordering windows inside lanes: every document once, resumable after any batch."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampack import (
    Hook,
    PackedDataset,
    PackedLoader,
    SimilarityOrder,
    TokenRules,
    Topology,
    WindowConfig,
)
from streampack.errors import StateError
from streampack.metrics import Metrics
from streampack.ordering import BM25, HashedNgrams, TokenEmbedder
from streampack.packing import Concat
from streampack.packing.rng import permutation
from tests.support.memory_source import MemorySource
from tests.support.restoring import assert_restores_everywhere
from tests.support.topics import together, topical

SEQ_LEN = 128


def float_vectors(documents: Any) -> np.ndarray:
    return np.random.default_rng(documents.tokens[:8]).normal(size=(len(documents), 4))


class Shuffled:
    """A random order; each document comes `times` times."""

    order_window_documents = 16

    def __init__(self, *, times: int = 1, exact: bool = True) -> None:
        self.times = times
        self.exact = exact

    def order(self, documents: Any, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        order = permutation(len(documents), seed)
        return np.repeat(order, self.times), np.zeros(0, dtype=np.int64)

    def describe(self) -> dict[str, Any]:
        return {"kind": "Shuffled", "times": self.times}


ORDERS: dict[str, Any] = {
    "similarity": SimilarityOrder(order_window_documents=16),
    "growing": SimilarityOrder(order_window_documents=16, first_window_documents=2),
    "growing-float": SimilarityOrder(
        order_window_documents=16,
        first_window_documents=3,
        embedder=TokenEmbedder("random", float_vectors),
    ),
    "bm25": SimilarityOrder(order_window_documents=16, embedder=BM25()),
    "limited": SimilarityOrder(order_window_documents=16, max_similarity=0.5, row_tokens=SEQ_LEN),
    "one-window": SimilarityOrder(order_window_documents=1000),
    "tiny": SimilarityOrder(order_window_documents=1),
    "float": SimilarityOrder(
        order_window_documents=16, embedder=TokenEmbedder("random", float_vectors)
    ),
    "shuffled": Shuffled(),
    "repeated": Shuffled(times=3),
    "inexact": Shuffled(exact=False),
}


def make_dataset(order: Any, *, count: int = 60, copies: int = 6, **options: Any) -> PackedDataset:
    documents, _ = topical(count)
    arrays = [documents.document(i) for i in range(count)]
    arrays += [arrays[i] for i in range(0, count, max(count // copies, 1))] if copies else []
    source = MemorySource([arrays[: count // 2], arrays[count // 2 :]], block_documents=7)
    values: dict[str, Any] = {
        "order": order,
        "seq_len": SEQ_LEN,
        "batch_size": 4,
        "window": WindowConfig(rows=20),
        "attention": "row",
        "lanes": 2,
        "topology": Topology(),
        "token_rules": TokenRules(eos_id=9000, pad_id=9001),
    }
    return PackedDataset(source, **{**values, **options})


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", ORDERS)
@pytest.mark.parametrize("epochs", [1, 2])
def test_restoring_after_every_batch_gives_the_same_rest(kind: str, epochs: int) -> None:
    assert_restores_everywhere(lambda: make_dataset(ORDERS[kind], epochs=epochs))


def placed(loader: PackedLoader) -> list[tuple[int, int]]:
    """(shard, index) of every document of which something was placed, repeats counted."""
    rows = [batch.provenance for batch in loader]
    pieces = np.concatenate(rows)
    first = pieces[pieces["start"] == 0]
    return sorted(zip(first["shard"].tolist(), first["index"].tolist(), strict=True))


def test_every_document_comes_once_but_for_the_near_duplicates_which_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    everything = placed(PackedLoader(make_dataset(None, provenance=True)))
    assert len(everything) == 66
    order = SimilarityOrder(order_window_documents=1000, duplicates_folder=tmp_path / "dropped")
    loader = PackedLoader(make_dataset(order, provenance=True, lanes=1))
    with caplog.at_level(logging.INFO, "streampack"):
        found = placed(loader)
    missing = sorted(set(everything) - set(found))
    assert len(found) == len(set(found)) == 60
    metrics = loader.metrics()
    assert metrics.duplicates == metrics.as_dict()["duplicates"] == 6
    (record,) = [r for r in caplog.records if "near-duplicates" in r.message]
    assert f"6 near-duplicates of {metrics.duplicate_tokens} tokens" in record.message
    named = named_in(tmp_path / "dropped")
    assert [r["document"] for r in named] == [f"document {i} of memory-{s}" for s, i in missing]
    assert sum(r["tokens"] for r in named) == metrics.duplicate_tokens
    assert {r["like"] for r in named} <= {f"document {i} of memory-{s}" for s, i in found}


def named_in(folder: Path) -> list[dict[str, Any]]:
    lines = [line for file in folder.iterdir() for line in file.read_text().splitlines()]
    return sorted(map(json.loads, lines), key=lambda record: int(record["document"].split()[1]))


@pytest.mark.parametrize("inexact", [False, True])
def test_duplicates_are_counted_and_named_once_however_often_a_run_is_resumed(
    inexact: bool, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"order_window_documents": 40}
    if inexact:
        options["embedder"] = TokenEmbedder("hashed", HashedNgrams())
    once = SimilarityOrder(**options, duplicates_folder=tmp_path / "once")
    often = SimilarityOrder(**options, duplicates_folder=str(tmp_path / "often"))
    whole = PackedLoader(make_dataset(once, lanes=1, copies=20))
    for _ in whole:
        pass
    total, state = Metrics(), None
    while True:
        loader = PackedLoader(make_dataset(often, lanes=1, copies=20))
        if state is not None:
            loader.load_state_dict(json.loads(state))
        if next(iter(loader), None) is None:
            break
        total += loader.metrics()
        state = json.dumps(loader.state_dict())
    metrics = whole.metrics()
    assert total.duplicates == metrics.duplicates > 0
    assert total.duplicate_tokens == metrics.duplicate_tokens
    assert total.composition == metrics.composition
    assert named_in(tmp_path / "often") == named_in(tmp_path / "once")
    assert len(named_in(tmp_path / "once")) == metrics.duplicates


def test_the_next_epoch_is_not_a_duplicate_of_this_one() -> None:
    order = SimilarityOrder(order_window_documents=1000)
    once = placed(PackedLoader(make_dataset(order, copies=0, provenance=True)))
    twice = placed(PackedLoader(make_dataset(order, copies=0, provenance=True, epochs=2)))
    assert twice == sorted(once * 2)


def test_rows_hold_related_documents() -> None:
    def share(order: Any) -> float:
        documents, topic = topical(400, seed=1)
        source = MemorySource([[documents.document(i) for i in range(400)]], block_documents=50)
        dataset = PackedDataset(
            source, packer=Concat(seq_len=512), batch_size=1, lanes=1, provenance=True,
            topology=Topology(),
            order=order, attention="row", token_rules=TokenRules(eos_id=9000),
        )  # fmt: skip
        rows = [batch.provenance["index"] for batch in PackedLoader(dataset)]
        return float(np.mean([together(topic, row) for row in rows if len(row) > 1]))

    assert share(SimilarityOrder()) > 0.8
    assert share(None) < 0.2


def test_a_batch_seldom_holds_rows_that_follow_one_another() -> None:
    documents, _ = topical(2000, seed=2)
    source = MemorySource([[documents.document(i) for i in range(2000)]], block_documents=50)
    dataset = PackedDataset(
        source, seq_len=512, batch_size=2, order=SimilarityOrder(), attention="row",
        window=WindowConfig(rows=64), lanes=1, provenance=True,
        token_rules=TokenRules(eos_id=9000),
        topology=Topology(),
    )  # fmt: skip
    rows = beside = 0
    for batch in PackedLoader(dataset):
        pieces = batch.provenance
        _, counts = np.unique(pieces["index"], return_counts=True)
        rows += 2
        beside += int((counts > 1).sum())  # the document cut between two rows is in both
    assert rows > 500
    assert beside / rows < 0.03  # of two rows drawn from 64, one follows the other in 1 of 32


def test_masks_and_hooks_come_before_the_order() -> None:
    seen = []

    def note(documents: Any, seeds: Any) -> np.ndarray:
        seen.append(len(documents))
        return documents.lengths > 40

    dataset = make_dataset(
        SimilarityOrder(order_window_documents=16), filter=Hook("long", note), provenance=True
    )
    kept = placed(PackedLoader(dataset))
    assert sum(seen) == 66 > len(kept)


def test_a_state_of_another_order_is_refused() -> None:
    loader = PackedLoader(make_dataset(SimilarityOrder(order_window_documents=16)))
    next(iter(loader))
    for other in (SimilarityOrder(order_window_documents=16, k=9), None, Shuffled()):
        options = {} if other else {"seq_len": None, "packer": Concat(seq_len=SEQ_LEN)}
        with pytest.raises(StateError, match=r"order"):
            PackedLoader(make_dataset(other, **options)).load_state_dict(loader.state_dict())


def test_the_state_of_an_exact_order_is_small() -> None:
    loader = PackedLoader(make_dataset(SimilarityOrder(order_window_documents=4096), count=1500))
    for batch in loader:
        if batch.step == 30:
            break
    assert len(json.dumps(loader.state_dict())) < 8 * 1024
