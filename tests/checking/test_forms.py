"""Batches in the forms of training scripts: other names, tuples, views, lists of microbatches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import streampack
from streampack import marked_documents
from streampack.checking.marked import MarkedDocuments
from streampack.errors import ConfigError
from tests.support.hand_packed import Packed, flat, megatron, packed, positions


@dataclass
class Example:
    """A batch with attributes."""

    tokens: Any
    loss_mask: Any
    labels: Any
    segment_ids: Any


class Keyed:
    """A batch with keys that is no Mapping, as a TensorDict."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def keys(self) -> Any:
        return self.values.keys()

    def __getitem__(self, key: str) -> Any:
        return self.values[key]


def nested(batch: Packed) -> Any:
    counts = [int((row > 0).sum()) for row in batch.segments]
    pieces: dict[str, list[torch.Tensor]] = {"input_ids": [], "labels": []}
    for row, count in enumerate(counts):
        lengths = batch.segments[row, :count].bincount()[1:].tolist()
        for name, values in (("input_ids", batch.tokens), ("labels", batch.labels)):
            pieces[name] += values[row, :count].split(lengths)
    return {
        name: torch.nested.nested_tensor(parts, layout=torch.jagged)
        for name, parts in pieces.items()
    }


def by_lengths(batch: Packed) -> Any:
    """As OLMo-core: lengths by row, filled with zeros, and a mask of labels that loops copy."""
    lengths = [row.unique_consecutive(return_counts=True)[1] for row in batch.segments]
    return {
        "input_ids": batch.tokens,
        "doc_lens": torch.nn.utils.rnn.pad_sequence(lengths, batch_first=True),
        "max_doc_lens": [int(row.max()) for row in lengths],
        "label_mask": batch.labels != -100,
        "attention_mask": (batch.segments > 0).float(),
    }


FORMS: dict[str, Callable[[Packed], Any]] = {
    "dataclass": lambda b: Example(
        b.tokens, (b.targets != -100).float(), b.targets.clamp(min=0), b.segments
    ),
    "keys": lambda b: Keyed(flat(b)),
    "nested": nested,
    "lengths": by_lengths,
    "llm-foundry": lambda b: {
        "input_ids": b.tokens,
        "labels": b.labels,
        "attention_mask": (b.segments > 0).long(),
        "sequence_id": b.segments - 1,
    },
    "nanotron": lambda b: {
        "input_ids": b.tokens.numpy(),
        "position_ids": b.positions.numpy(),
        "label_ids": b.targets.clamp(min=0).numpy(),
        "label_mask": (b.targets != -100).numpy(),
    },
    "EasyLM": lambda b: {
        "input_tokens": b.tokens.numpy(),
        "target_tokens": b.targets.clamp(min=0).numpy(),
        "loss_masks": (b.targets != -100).float().numpy(),
        "segment_ids": b.segments.numpy(),
    },
    "tuple of Megatron-LM": lambda b: (
        *(b.tokens, b.targets.clamp(min=0), (b.targets != -100).float()),
        *(~b.mask, b.positions),
    ),
    "batch and state": lambda b: (positions(b), {"epoch": 1}),
    "microbatches in one array": lambda b: {
        name: values.view(2, 2, -1) for name, values in positions(b).items()
    },
    "microbatches in a list": lambda b: [
        {name: values[rows] for name, values in positions(b).items()}
        for rows in (slice(0, 2), slice(2, 4))
    ],
    "boundaries with a placeholder of a mask": lambda b: {
        **megatron(b),
        "attention_mask": torch.ones(1),
        "tokens": b.tokens.view(1, -1),
        "cu_seqlens": torch.cat([b.cu_seqlens, torch.full((5,), -1)])[None].int(),
        "cu_seqlens_argmin": torch.tensor([[len(b.cu_seqlens)]]),
    },
}


@pytest.mark.parametrize("name", FORMS)
def test_a_right_batch_of_any_form_has_no_fault(name: str) -> None:
    documents = marked_documents(120)
    batches = (FORMS[name](batch) for batch in packed(documents))
    report = streampack.check(batches, documents=documents)
    assert report.kinds == ()
    assert report.boundaries
    assert report.loss is not None
    assert report.loss.learnt == report.loss.learnable


@pytest.mark.parametrize("name", ["dataclass", "lengths", "nanotron", "tuple of Megatron-LM"])
def test_labels_across_borders_of_any_form_are_named(name: str) -> None:
    documents = marked_documents(120)
    batches = list(packed(documents))
    for batch in batches:
        batch.labels = torch.where(batch.segments > 0, batch.tokens, -100)
    report = streampack.check(map(FORMS[name], batches), documents=documents)
    assert report.kinds == ("labels-across-borders",)


@pytest.mark.parametrize("name", ["seq_idx", "cu_seq_lens_k"])
def test_each_claim_of_boundaries_is_compared(name: str) -> None:
    documents = marked_documents(60)
    wrong = {
        "seq_idx": lambda b: torch.zeros_like(b.tokens.view(1, -1)),
        "cu_seq_lens_k": lambda b: b.cu_seqlens[[0, -1]],
    }[name]
    batches = [
        {**flat(batch), name: wrong(batch), "max_length_k": 10**6} for batch in packed(documents)
    ]
    report = streampack.check(batches, documents=documents)
    assert report.kinds == ("documents-see-each-other", "padding-seen")
    assert name in report.faults[0].detail


def concatenated(documents: MarkedDocuments, begin: int, end: int) -> torch.Tensor:
    return torch.tensor([token for ids in documents for token in [begin, *ids, end]])


@pytest.mark.parametrize("shifted", [True, False])
def test_an_end_token_before_a_begin_token_is_not_padding(shifted: bool) -> None:
    def make(documents: MarkedDocuments) -> Iterator[Any]:
        ids = concatenated(documents, 1, 2)
        rows = torch.cat([ids, torch.zeros(-len(ids) % 61).long()])
        for row in rows.view(-1, 1, 61):
            if shifted:  # views of the row, each one token later, and a state
                yield np.stack([row[:, :-1].numpy(), row[:, 1:].numpy()], axis=-1), {"at": 1}
            else:
                yield {"input_ids": row, "labels": row}

    ignore = ["tokens-missing", "documents-missing"]
    report = streampack.check(make, ignore=ignore)
    assert report.kinds[:2] == ("documents-see-each-other", "labels-across-borders")
    assert report.padding < 61
    assert (report.unread == ("item 1 of the tuple",)) == shifted


def test_a_row_that_begins_with_the_end_of_a_document_may_count_on() -> None:
    documents = marked_documents(lengths=[63] * 40)  # rows of 32 begin with an end token
    ids = concatenated(documents, 1, 2)[1:]
    places = torch.cat([torch.arange(64), torch.arange(65).repeat(39)])
    rows = zip(ids[: len(ids) // 32 * 32].view(-1, 1, 32),
               places[: len(ids) // 32 * 32].view(-1, 1, 32), strict=True)  # fmt: skip
    batches = [
        {
            "input_ids": row,
            "labels": torch.where(place == 0, -100, row),
            "position_ids": place,
        }
        for row, place in rows
    ]
    report = streampack.check(batches, documents=documents, eos_id=2, bos_id=1)
    assert "positions-do-not-restart" not in report.kinds


def test_a_mask_beside_ids_is_not_taken_for_targets() -> None:
    documents = marked_documents(lengths=[20] * 40)
    ids = torch.tensor([*documents]).view(-1, 4, 20)
    report = streampack.check([(row, torch.ones_like(row)) for row in ids], documents=documents)
    assert report.kinds == ()
    report = streampack.check(
        [(row, torch.ones_like(row), row.roll(-1, 1)) for row in ids], documents=documents
    )
    assert report.learnt == report.slots


def test_a_batch_without_labels_is_named() -> None:
    documents = marked_documents(lengths=[20] * 40)
    batches = [{"input_ids": torch.tensor([ids]), "extra": 1} for ids in documents]
    report = streampack.check(batches, documents=documents)
    assert report.learnt is None
    assert "no labels" in str(report)
    assert report.unread == ("extra",)


def test_a_state_is_saved_behind_the_last_microbatch_of_a_list() -> None:
    class Steps:
        def __init__(self, documents: MarkedDocuments) -> None:
            self.batches, self.at = [positions(batch) for batch in packed(documents)], 0

        def __iter__(self) -> Iterator[Any]:
            while self.at < len(self.batches):
                self.at += 4
                yield self.batches[self.at - 4 : self.at]

        def state_dict(self) -> dict[str, int]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.at = state["at"]

    report = streampack.check(Steps)
    assert report.kinds == ()
    assert report.resumed


def test_texts_keep_their_ids_beside_special_tokens() -> None:
    from transformers import PreTrainedTokenizerFast

    documents = marked_documents(20)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=documents.tokenizer(), pad_token="<0>", eos_token="<2>"
    )
    texts = [record["text"] for record in documents.records("text")]
    assert [tokenizer(text)["input_ids"] for text in texts] == [*documents]


def test_an_object_that_is_not_a_batch_is_named_by_its_entries() -> None:
    with pytest.raises(ConfigError) as unknown:
        streampack.check([{"chosen_input_ids": torch.ones(1, 4), "rejected_input_ids": None}])
    assert unknown.value.setting == "loader"
    assert "chosen_input_ids" in str(unknown.value)
