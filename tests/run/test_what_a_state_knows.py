"""A state is refused under arguments that change batches, and accepted under other changes."""

from __future__ import annotations

from dataclasses import replace
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
    sources,
)
from streampack.errors import StateError
from streampack.packing import Balance, BestFitDecreasing, Concat
from tests.support.corpora import byte_tokenizer

RECORDS = [
    {"text": "ab " * (1 + i % 7), "score": float(i), "group": i // 2, "kept": i % 2}
    for i in range(400)
]
IDS = [
    {"input_ids": [1 + i % 90] * (3 + i % 21), "weights": [1.0] * (3 + i % 21), "score": float(i)}
    for i in range(400)
]
SCORES = {"document_fields": {"score": "float32"}}


def dataset(source: Any = IDS, **options: Any) -> PackedDataset:
    if source is RECORDS:
        options["tokenizer"] = byte_tokenizer()
    if "packer" not in options:
        options.setdefault("seq_len", 32)
    return PackedDataset(source, **{"batch_size": 2, "lanes": 1, "topology": Topology(), **options})


def same(documents: Any, seeds: Any) -> Any:
    return documents


def kept(documents: Any, seeds: Any) -> Any:
    return np.ones(len(documents), dtype=np.bool_)


def of_shape(shape: tuple[int, ...]) -> dict[str, Any]:
    """Options of a run with several numbers per token, which a map makes."""

    def add(documents: Any, seeds: Any) -> Any:
        ones = np.ones((len(documents.tokens), *shape))
        return replace(documents, token_fields={"experts": ones})

    return {"map": Hook("ones", add), "token_fields": {"experts": ("int16", shape)}}


def saved(made: PackedDataset) -> tuple[dict[str, Any], Any]:
    """The state after two batches, and the third."""
    loader = PackedLoader(made)
    batches = iter(loader)
    next(batches), next(batches)
    state = loader.state_dict()
    return state, next(batches)


#: Field of the state that the error names, first options, and options changed on resuming.
CHANGES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("attention", {}, {"attention": "row"}),
    ("attention", {"attention": "row"}, {"attention": "document"}),
    ("balance", {}, {"packer": BestFitDecreasing(seq_len=32, choice=Balance("attention"))}),
    ("batch_tokens", {}, {"batch_size": 3}),
    ("eos", {}, {"token_rules": TokenRules(eos="append", eos_id=5)}),
    ("fields", {}, SCORES),
    ("fields", {}, {"token_fields": {"weights": "float32"}}),
    ("fields", SCORES, {"document_fields": {"score": "float64"}}),
    ("fields", of_shape((2, 3)), of_shape((3, 2))),
    ("fields", of_shape((2, 3)), of_shape((6,))),
    ("filter", {}, {"filter": Hook("kept", kept)}),
    ("map", {}, {"map": Hook("same", same)}),
    ("map", {"map": Hook("same", same)}, {"map": Hook("other", same)}),
    ("order", {"packer": Concat(seq_len=32)}, {"order": SimilarityOrder()}),
    ("packer", {}, {"packer": BestFitDecreasing(seq_len=32, overflow="drop")}),
    ("packer", {}, {"seq_len": 16, "batch_size": 4}),
    ("seed", {}, {"seed": 1}),
    ("shuffle", {}, {"shuffle": False}),
    ("window", {}, {"window": WindowConfig(rows=9)}),
    ("tokenizer", {"source": RECORDS}, {"token_rules": TokenRules(eos_id=7)}),
    ("tokenizer", {"source": RECORDS}, {"token_rules": TokenRules(eos="as-is")}),
]


@pytest.mark.parametrize(("field", "first", "then"), CHANGES)
def test_a_changed_argument_is_refused_by_its_name(
    field: str, first: dict[str, Any], then: dict[str, Any]
) -> None:
    state, _ = saved(dataset(**first))
    together = {**first, **then}
    if "packer" in then:
        together.pop("seq_len", None)
    with pytest.raises(StateError, match=rf"^`{field}"):
        PackedLoader(dataset(**together)).load_state_dict(state)


@pytest.mark.parametrize(
    "then",
    [
        {"epochs": 2},
        {"on_error": "skip"},
        {"provenance": True},
        {"window": WindowConfig(memory_limit=1 << 20)},
        {"lanes": None},
        {"token_rules": TokenRules(pad_id=9)},  # of padding, from which nothing is learnt
        {"token_rules": TokenRules(vocab_size=999)},
    ],
)
def test_other_arguments_leave_the_batches_as_they_are(then: dict[str, Any]) -> None:
    state, following = saved(dataset())
    loader = PackedLoader(dataset(**then))
    loader.load_state_dict(state)
    found = next(iter(loader))
    real = following.document_ids >= 0
    assert found.document_ids.equal(following.document_ids)
    assert found.input_ids[real].equal(following.input_ids[real])
    assert found.labels.equal(following.labels)


def test_attention_changes_if_allowed_and_rows_stay() -> None:
    state, following = saved(dataset())
    loader = PackedLoader(dataset(attention="row"))
    loader.load_state_dict(state, allow={"attention"})
    found = next(iter(loader))
    assert found.input_ids.equal(following.input_ids)
    assert found.num_segments < following.num_segments


def test_of_documents_in_memory_numbers_and_lengths_are_compared() -> None:
    documents = [[1 + i % 90] * (3 + i % 21) for i in range(2000)]
    state, following = saved(dataset(documents))
    other_ids = PackedLoader(dataset([[99] * len(ids) for ids in documents]))
    other_ids.load_state_dict(state)  # not noticed, see docs/resume.md
    assert next(iter(other_ids)).num_tokens == following.num_tokens
    with pytest.raises(StateError, match="manifest"):
        PackedLoader(dataset(documents[1:])).load_state_dict(state)
    other_lengths = PackedLoader(dataset([[*ids, 5] for ids in documents]))
    other_lengths.load_state_dict(state)
    with pytest.raises(StateError):
        next(iter(other_lengths))


def test_a_state_of_other_weights_is_refused_with_both_values() -> None:
    def loader(weights: Any) -> PackedLoader:
        parts = {"web": [[1] * 9] * 40, "code": [[2] * 9] * 40}
        source = sources.Mixture(parts, weights=weights)
        return PackedLoader(PackedDataset(source, seq_len=32, batch_size=1, topology=Topology()))

    first = loader({"web": 9, "code": 1})
    next(iter(first))
    with pytest.raises(StateError) as found:
        loader([(0, {"web": 1, "code": 1}), (500, {"web": 1, "code": 3})]).load_state_dict(
            first.state_dict()
        )
    assert found.value.setting == "source.shares"
    assert "{'web': 0.9, 'code': 0.1}" in str(found.value)
    assert "(500, {'web': 0.25, 'code': 0.75})" in str(found.value)
