"""Right loaders raise no alarm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import streampack
from streampack import (
    BestFitDecreasing,
    Concat,
    PackedBatch,
    PackedDataset,
    PackedLoader,
    Pad,
    TokenRules,
    Topology,
    marked_documents,
)
from streampack.checking.marked import MarkedDocuments
from tests.support.hand_packed import FORMS, flat, packed


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize("answers", [False, True])
def test_batches_packed_by_hand_have_no_fault(form: Callable[..., Any], answers: bool) -> None:
    documents = marked_documents(120, answers=answers)
    report = streampack.check([form(batch) for batch in packed(documents)], documents=documents)
    assert report.kinds == ()
    assert report.loss is not None
    assert report.loss.learnt == report.loss.learnable


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_batches_of_an_unknown_corpus_have_no_fault(form: Callable[..., Any]) -> None:
    batches = [form(batch) for batch in packed(marked_documents(60, answers=True))]
    report = streampack.check(batches, pad_id=0)
    assert report.kinds == ()
    assert report.truth == "claims"


@pytest.mark.parametrize("workers", [0, 2])
def test_our_loader_over_an_unknown_corpus_has_no_fault(workers: int) -> None:
    dataset = PackedDataset([[7, 8, 9, 7, 7] * (1 + n % 9) for n in range(300)], seq_len=64)
    report = streampack.check(PackedLoader(dataset, num_workers=workers))
    assert report.kinds == ()
    assert report.resumed


def ours(documents: MarkedDocuments, **options: Any) -> PackedLoader[Any]:
    transform = options.pop("transform", None)
    options = {"packer": BestFitDecreasing(seq_len=128), **options}
    dataset = PackedDataset(list(documents), batch_size=4, **options)
    return PackedLoader(dataset, transform=transform)


OURS: dict[str, dict[str, Any]] = {
    "batches": {},
    "transformers": {"transform": lambda batch: batch.hf()},
    "Megatron-LM": {"transform": PackedBatch.megatron},
    "JAX": {"transform": PackedBatch.numpy},
    "concatenated": {"packer": Concat(seq_len=128)},
    "padded": {"packer": Pad(seq_len=128), "token_rules": TokenRules(eos_id=1, pad_id=0)},
    "endless": {"epochs": None},
}


@pytest.mark.parametrize("name", OURS)
def test_our_loader_has_no_fault(name: str) -> None:
    report = streampack.check(lambda documents: ours(documents, **OURS[name]))
    assert report.kinds == ()
    assert report.resumed
    assert report.loss is not None
    assert report.loss.delivered == report.loss.tokens or not report.ended
    assert report.ended == (name != "endless")


def test_trees_have_no_fault() -> None:
    documents = marked_documents(100)
    records = [{"tokens": [ids, ids[:2]]} for ids in documents]  # the second is a prefix
    packer = BestFitDecreasing(seq_len=256, overflow="drop")
    dataset = PackedDataset(records, packer=packer, layout="tree")
    report = streampack.check(PackedLoader(dataset), documents=documents)
    assert report.kinds == ()


def test_ranks_of_our_loader_have_no_fault() -> None:
    def make(documents: MarkedDocuments, rank: int, world_size: int) -> PackedLoader[Any]:
        return ours(documents, topology=Topology(rank, world_size))

    report = streampack.check(make, ranks=2, resume_after=0)
    assert report.kinds == ()
    assert report.ranks == 2


def collated(documents: MarkedDocuments, **options: Any) -> Any:
    """A plain padded collator, as most first scripts have it."""

    def pad(records: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        longest = max(len(record["input_ids"]) for record in records)
        fill = {"input_ids": documents.pad_id, "labels": -100, "attention_mask": 0}
        return {
            name: torch.tensor(
                [record[name] + [value] * (longest - len(record[name])) for record in records]
            )
            for name, value in fill.items()
        }

    records = list(documents.records("input_ids", "labels", "attention_mask"))
    loader = options.pop("loader", DataLoader)
    return loader(records, batch_size=8, collate_fn=pad, **options)


@pytest.mark.parametrize("loader", [DataLoader, StatefulDataLoader])
def test_a_padded_collator_has_no_fault(loader: Any) -> None:
    report = streampack.check(lambda documents: collated(documents, loader=loader, shuffle=True))
    assert report.kinds == ()
    assert report.padding > 0
    assert report.resumed == (loader is StatefulDataLoader)


def test_flattened_batches_of_transformers_have_no_fault() -> None:
    from transformers import DataCollatorWithFlattening

    def make(documents: MarkedDocuments) -> Any:
        records = list(documents.records("input_ids", "labels"))
        collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True)
        return DataLoader(records, batch_size=8, collate_fn=collate)

    assert streampack.check(make, documents=marked_documents(answers=True)).kinds == ()


def test_documents_that_are_shifted_before_they_are_packed_have_no_fault() -> None:
    documents = marked_documents(100)
    slots = [
        (token, target, place)
        for ids in documents
        for place, (token, target) in enumerate(zip([1, *ids], [*ids, 2], strict=True))
    ]
    rows = torch.tensor(slots[: len(slots) // 128 * 128]).view(-1, 128, 3).unbind(2)
    batches = [
        ({"input": inputs[None], "positions": places[None]}, targets[None])
        for inputs, targets, places in zip(*rows, strict=True)
    ]
    report = streampack.check(batches, documents=documents, ignore=["documents-missing"])
    assert report.kinds == ()


def test_an_end_token_that_begins_a_row_is_not_padding() -> None:
    documents = marked_documents(lengths=[64] * 20, eos_id=2)
    ids = torch.tensor([token for document in documents for token in document])[: 64 * 20]
    batches = [{"input_ids": row, "labels": row} for row in ids.view(-1, 1, 64)]
    report = streampack.check(batches, documents=documents)
    assert "padding-seen" not in report.kinds
    assert report.padding == 0


def test_a_loader_may_fill_one_buffer_with_every_batch() -> None:
    documents = marked_documents(100)
    buffer: dict[str, torch.Tensor] = {}

    def batches() -> Any:
        for batch in packed(documents):
            for name, values in {**flat(batch), "cu_seq_lens_q": None}.items():
                if isinstance(values, torch.Tensor) and name != "cu_seq_lens_k":
                    buffer.setdefault(name, torch.zeros_like(values)).copy_(values)
            yield dict(buffer)

    assert streampack.check(batches(), documents=documents).kinds == ()
