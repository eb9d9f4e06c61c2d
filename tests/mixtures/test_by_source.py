"""Reports on the sources of a mixture: shares, counts, epochs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack import (
    BestFitDecreasing,
    Concat,
    PackedDataset,
    PackedLoader,
    SimilarityOrder,
    TokenRules,
    Topology,
    WindowConfig,
    sources,
)
from streampack.documents import Documents
from streampack.packing import Seamless
from tests.support.drawn import drawn

SEQ_LEN = 32


def corpus(seed: int, count: int, masked: bool = False) -> Documents:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 3 * SEQ_LEN, count)
    arrays = [rng.integers(0, 1000, n).astype(np.uint16) for n in lengths]
    mask = rng.random(int(lengths.sum())) < 0.5 if masked else None
    documents = Documents.from_arrays(arrays)
    return replace(documents, loss_mask=mask)


def dataset(mixture: Any, **options: Any) -> PackedDataset:
    settings = {
        "packer": BestFitDecreasing(seq_len=SEQ_LEN), "batch_size": 2, "lanes": 3,
        "window": WindowConfig(rows=16), "topology": Topology(0, 1),
        "token_rules": TokenRules(eos_id=1000, pad_id=1001),
    }  # fmt: skip
    return PackedDataset(mixture, **{**settings, **options})


@drawn(12)
@given(
    st.sampled_from([
        BestFitDecreasing(seq_len=SEQ_LEN), Concat(seq_len=SEQ_LEN), Seamless(seq_len=SEQ_LEN),
        BestFitDecreasing(seq_len=SEQ_LEN, overflow="drop"),
    ]),
    st.sampled_from(["document", "row"]), st.booleans(), st.integers(0, 5),
)  # fmt: skip
def test_counts_by_source_add_up_to_the_counts_of_the_batches(
    packer: Any, attention: Any, masked: bool, seed: int
) -> None:
    mixture = sources.Mixture(
        {"a": corpus(seed, 40, masked), "b": corpus(seed + 1, 30), "c": corpus(seed + 2, 1)},
        weights={"a": 2, "b": 1, "c": 1},
    )
    for batch in dataset(mixture, packer=packer, attention=attention):
        if not batch.num_documents:
            continue
        assert batch.by_source is not None
        tokens, documents, loss_tokens, _ = batch.by_source.T
        assert tokens.sum() == batch.num_tokens
        assert documents.sum() == batch.composition.documents
        assert loss_tokens.sum() == batch.num_loss_tokens
        pieces = batch.document_ids
        of = batch.source_ids[pieces.clip(0)]
        for number in range(3):
            mine = (of == number) & (pieces >= 0)
            assert tokens[number] == int(mine.sum())
            assert loss_tokens[number] == int((batch.labels[mine] != -100).sum())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("workers", [0, 2])
def test_the_report_holds_shares_beside_weights_and_goes_on_after_a_resume(workers: int) -> None:
    def loader() -> PackedLoader:
        mixture = sources.Mixture(
            {"a": corpus(1, 800), "b": corpus(2, 30)},
            weights={"a": 3, "b": 1},
            epochs={"b": None},
        )
        return PackedLoader(dataset(mixture), num_workers=workers)

    first = loader()
    batches = iter(first)
    for _ in range(300):
        next(batches)
    report = first.by_source()
    assert [row.name for row in report] == ["a", "b"]
    assert [row.expected for row in report] == pytest.approx([0.75, 0.25])
    assert report[1].observed == pytest.approx(0.25, abs=0.05)
    assert report[1].epochs > 1  # 30 documents, over and over
    assert str(report).splitlines()[0].split() == [
        "source", "expected", "observed", "tokens", "documents", "loss", "tokens", "epochs", "read"
    ]  # fmt: skip
    assert report.as_dict()["a"]["tokens"] == first.metrics().sources["a"].tokens
    again = loader()
    again.load_state_dict(first.state_dict())
    assert [row.tokens for row in again.by_source()] == [0, 0]
    following = iter(again)
    for _ in range(3):  # one of each lane
        next(following)
        next(batches)
    assert [row.epochs for row in again.by_source()] == [row.epochs for row in first.by_source()]
    following.close()
    batches.close()


def test_expected_shares_follow_weights_that_change_also_after_a_resume() -> None:
    knots = [(0, {"a": 1, "b": 0}), (8000, {"a": 1, "b": 0}), (8001, {"a": 0, "b": 1})]
    mixture = sources.Mixture({"a": corpus(1, 500), "b": corpus(2, 500)}, weights=knots)
    loader = PackedLoader(dataset(mixture))
    batches = iter(loader)
    while loader.metrics().composition.placed < 16_000:
        next(batches)
    expected = [row.expected for row in loader.by_source()]
    assert expected == pytest.approx([0.5, 0.5], abs=0.02)
    assert expected == pytest.approx([row.observed for row in loader.by_source()], abs=0.2)
    again = PackedLoader(dataset(mixture))
    again.load_state_dict(loader.state_dict())
    next(iter(again))
    assert [row.expected for row in again.by_source()] == pytest.approx([0, 1], abs=1e-6)


def test_a_mixture_in_an_order_is_counted_too() -> None:
    mixture = sources.Mixture({"a": corpus(1, 50), "b": corpus(2, 50)}, weights={"a": 1, "b": 1})
    loader = PackedLoader(
        dataset(
            mixture, packer=Concat(seq_len=SEQ_LEN), attention="row",
            order=SimilarityOrder(order_window_documents=20),
        )
    )  # fmt: skip
    list(loader)
    assert [row.epochs for row in loader.by_source()] == [1, 1]
    assert sum(row.documents for row in loader.by_source()) == 100


@pytest.mark.parametrize("at_end", ["share", "stop"])
def test_a_fully_delivered_source_has_been_read_once(at_end: Any) -> None:
    parts = {"a": corpus(1, 300), "b": corpus(2, 20)}
    mixture = sources.Mixture(parts, weights={"a": 0.3, "b": 0.7}, at_end=at_end)
    loader = PackedLoader(dataset(mixture, lanes=1))
    list(loader)
    a, b = loader.by_source()
    assert (b.documents, b.epochs) == (20, 1)
    assert (a.documents, a.epochs) == (300, 1) if at_end == "share" else a.epochs == 0
