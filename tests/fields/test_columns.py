"""Fields of tokens and documents come back at their places, whatever happens on the way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from streampack import (
    BestFitDecreasing,
    Concat,
    Hook,
    PackedBatch,
    PackedDataset,
    PackedLoader,
    TokenRules,
    Topology,
    WindowConfig,
)
from streampack.documents import Documents
from streampack.errors import ContentError
from streampack.packers.kinds import packer_kinds, with_rows
from streampack.packing import FirstFitDecreasing
from streampack.sources import Mixture
from tests.support.memory_source import MemorySource, token_hash

PADDING = 4_000_000
PACKERS = [
    BestFitDecreasing(seq_len=32),
    FirstFitDecreasing(seq_len=32, overflow="truncate"),
    BestFitDecreasing(seq_len=32, align=8),
    *(with_rows(kind, 32) for kind in packer_kinds().values() if kind is not BestFitDecreasing),
]


def _source(seed: int = 0) -> MemorySource:
    lengths = np.exp(np.random.default_rng(seed).normal(2.8, 0.9, 400)).astype(int) + 1
    documents = [np.arange(n, dtype=np.uint32) for n in lengths]
    return MemorySource([documents[i : i + 50] for i in range(0, 400, 50)], block_documents=16)


def dataset(source: Any = None, packer: Any = PACKERS[0], **options: Any) -> PackedDataset:
    values: dict[str, Any] = {
        "batch_size": 128 // packer.seq_lens[-1],
        "window": WindowConfig(rows=16),
        "lanes": 2,
        "topology": Topology(),
        "token_rules": TokenRules(pad_id=PADDING, eos_id=PADDING + 1),
        "provenance": True,
        "token_fields": {
            "weights": "float32",
            "logprobs": "float64",
            "kept": "int32",
            "experts": ("int32", (3, 2)),
            "teacher": ("float32", (5,)),
        },
        "document_fields": {"advantage": "float32", "length_before": "int64"},
    }
    return PackedDataset(source or _source(), packer=packer, **{**values, **options})


def assert_fields_in_place(batch: PackedBatch) -> int:
    """Every value belongs to its token and document; return the number of tokens checked."""
    assert batch.provenance is not None
    pieces = batch.document_ids.cpu().numpy().ravel()
    place = batch.provenance["shard"].astype(np.int64) * 1009 + batch.provenance["index"]
    looked = 0
    for name, values in batch.document_fields.items():
        assert values.cpu().numpy().tolist() == token_hash(name, place, 0).tolist()
    ids = batch.input_ids.cpu().numpy().ravel()
    real = (pieces >= 0) & (ids < PADDING)  # a token's id is its place in the document
    for name, values in batch.fields.items():
        shape = {"experts": (3, 2), "teacher": (5,)}.get(name, ())
        assert values.shape == (*batch.input_ids.shape, *shape)
        found = values.flatten(0, 1).cpu().numpy()
        assert (found[real] == token_hash(name, place[pieces[real]], ids[real], shape)).all()
        assert (found[~real] == 0).all()
        looked += int(real.sum())
    return looked


def _stopped(make: Any, every: int) -> Iterator[PackedBatch]:
    loader = PackedLoader(make())
    while True:
        batches = list(islice(loader, every))
        yield from batches
        if not batches:
            return
        state = json.loads(json.dumps(loader.state_dict()))
        loader = PackedLoader(make())
        loader.load_state_dict(state)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("packer", PACKERS, ids=lambda packer: repr(packer)[:40])
def test_values_stay_with_their_tokens_through_every_packer_and_stop(packer: Any) -> None:
    seen = 0
    for batch in _stopped(lambda: dataset(packer=packer), 5):
        seen += assert_fields_in_place(batch)
        assert batch.fields["weights"].dtype == torch.float32
        assert batch.fields["logprobs"].dtype == torch.float64
        assert batch.fields["kept"].dtype == batch.fields["experts"].dtype == torch.int32
        assert batch.document_fields["length_before"].dtype == torch.int64
    assert seen > 10_000


def test_they_travel_from_workers_and_in_one_copy_to_a_device() -> None:
    for batch in PackedLoader(dataset(), num_workers=1, device="cpu"):
        assert_fields_in_place(batch)
        assert_fields_in_place(batch.pin_memory() if torch.cuda.is_available() else batch)
        staged = batch._moved(lambda buffer: buffer.clone())
        assert_fields_in_place(staged)


def test_they_follow_documents_of_a_mixture_and_changed_settings() -> None:
    mixture = Mixture({"a": _source(1), "b": _source(2)}, weights={"a": 1, "b": 2})
    loader = PackedLoader(dataset(mixture))
    assert sum(assert_fields_in_place(batch) for batch in islice(loader, 20)) > 1_000
    changed = PackedLoader(dataset(mixture, BestFitDecreasing(seq_len=64)))
    changed.load_state_dict(loader.state_dict(), allow={"packer"})
    assert sum(assert_fields_in_place(batch) for batch in changed) > 10_000


def _doubled(documents: Documents, seeds: Any) -> Documents:
    offsets = documents.offsets - documents.offsets[0]
    low, high = documents.offsets[0], documents.offsets[-1]
    return replace(
        documents,
        tokens=documents.tokens[low:high],
        offsets=offsets,
        token_fields={"doubled": 2.0 * documents.tokens[low:high]},
        document_fields={"size": documents.lengths},
    )


def test_a_map_makes_fields() -> None:
    made = dataset(
        map=Hook("doubled", _doubled),
        token_fields={"doubled": "float32"},
        document_fields={"size": "int32"},
        packer=Concat(seq_len=32),
    )
    for batch in PackedLoader(made):
        real = batch.document_ids >= 0
        assert batch.fields["doubled"][real].equal(2.0 * batch.input_ids[real].float())
        assert (batch.document_fields["size"] > 0).all()


def _wrong(value: float) -> Hook:
    def change(documents: Documents, seeds: Any) -> Documents:
        values = np.ones(len(documents.tokens))
        if documents.origin["shard"][0] == 3:
            values[documents.offsets[1] - 1] = value
        return replace(documents, token_fields={"weights": values}, document_fields={})

    return Hook(f"wrong {value}", change)


@pytest.mark.parametrize("value", [float("nan"), 1e9])
def test_a_value_that_is_nan_or_does_not_fit_is_an_error_of_its_document(value: float) -> None:
    options: dict[str, Any] = {
        "map": _wrong(value),
        "token_fields": {"weights": "float16"},
        "document_fields": None,
    }
    with pytest.raises(ContentError, match="weights"):
        list(PackedLoader(dataset(**options)))
    loader = PackedLoader(dataset(**options, on_error="skip"))
    assert all(batch.fields["weights"].isfinite().all() for batch in loader)
    assert loader.metrics().skipped > 0
