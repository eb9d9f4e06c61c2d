"""A user's own stages: their results are packed, and their settings are part of the state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from streampack import PackedDataset, PackedLoader, TokenRules
from streampack.documents import Documents
from streampack.errors import ConfigError, ContentError, StateError
from streampack.stages.base import Place

CORPUS = [list(range(10 * i, 10 * i + 10)) for i in range(50)]


@dataclass(frozen=True)
class Shift:
    by: int

    def __call__(self, documents: Documents, place: Place) -> Documents:
        return replace(documents, tokens=documents.tokens + np.uint16(self.by))

    def describe(self) -> Mapping[str, Any]:
        return {"by": self.by}


@dataclass(frozen=True)
class Returns:
    value: Any

    def __call__(self, documents: Documents, place: Place) -> Any:
        return self.value

    def describe(self) -> Mapping[str, Any]:
        return {}


def dataset(*stages: Any, **settings: Any) -> PackedDataset:
    return PackedDataset(CORPUS, seq_len=64, batch_size=1, stages=stages, **settings)


def tokens(made: PackedDataset) -> list[int]:
    return sorted(
        token
        for batch in made
        for token in batch.input_ids[batch.document_ids >= 0].flatten().tolist()
    )


def test_stages_follow_one_another_and_the_map() -> None:
    def odd(documents: Documents, seeds: Any) -> np.ndarray:
        return np.array([documents.document(i)[0] // 10 % 2 == 1 for i in range(len(documents))])

    made = dataset(Shift(1), Shift(2), filter=odd)
    expected = sorted(token + 3 for document in CORPUS[1::2] for token in document)
    assert tokens(made) == expected


def test_a_state_is_refused_if_a_stage_has_other_settings() -> None:
    loader = PackedLoader(dataset(Shift(1)))
    next(iter(loader))
    state = loader.state_dict()
    PackedLoader(dataset(Shift(1))).load_state_dict(state)
    for other in (dataset(Shift(2)), dataset(), dataset(Shift(1), Shift(1))):
        with pytest.raises(StateError) as caught:
            PackedLoader(other).load_state_dict(state)
        assert caught.value.setting == "stages"


def test_a_state_of_a_run_without_stages_has_no_word_of_them() -> None:
    assert "stages" not in dataset().plan.fingerprint


@pytest.mark.parametrize("wrong", [None, [[1, 2]], np.arange(3)])
def test_a_stage_that_returns_no_documents_is_named(wrong: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        list(dataset(Returns(wrong)))
    assert caught.value.setting == "stages"


@pytest.mark.parametrize("wrong", [Shift, 7, lambda documents, place: documents])
def test_objects_other_than_stages_are_refused_when_the_dataset_is_built(wrong: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        dataset(wrong)
    assert caught.value.setting == "stages"


def test_ids_that_a_stage_makes_are_in_the_vocabulary() -> None:
    with pytest.raises(ContentError):
        list(dataset(Shift(500), token_rules=TokenRules(vocab_size=600)))


@dataclass(frozen=True)
class Counts:
    """Writes the column `writes`: the length, or one more than the column `reads`."""

    writes: Any = ("length",)
    reads: Any = ()
    keeps: bool = True

    def __call__(self, documents: Documents, place: Place) -> Documents:
        fields = dict(documents.document_fields)
        for name in self.writes if self.keeps else ():
            fields[name] = fields[self.reads[0]] + 1 if self.reads else documents.lengths
        return replace(documents, document_fields=fields)

    def describe(self) -> Mapping[str, Any]:
        return {}


def test_a_column_that_a_stage_writes_and_a_later_one_changes_is_in_the_batch() -> None:
    both = (Counts(), Counts(reads=("length",)))
    for batch in dataset(*both, document_fields={"length": "int32"}):
        assert (batch.document_fields["length"] == 11).all()


def test_a_column_for_a_later_stage_alone_need_not_be_declared() -> None:
    made = dataset(Counts(("n",)), Counts(("m",), reads=("n",)), document_fields={"m": "int32"})
    for batch in made:
        assert list(batch.document_fields) == ["m"]
        assert (batch.document_fields["m"] == 11).all()


@pytest.mark.parametrize(
    "stages",
    [
        (Counts(("other",)),),  # no batch would have it
        (Counts(("length",), reads=("other",)),),  # nobody writes it
        (Counts(("length",), reads=("other",)), Counts(("other",))),  # it is written later
        (Counts(), Counts()),  # both write it
        (Counts("length"),),
        (Counts((1,)),),
    ],
)
def test_columns_that_contradict_each_other_are_refused_when_the_dataset_is_built(
    stages: tuple[Any, ...],
) -> None:
    with pytest.raises(ConfigError) as caught:
        dataset(*stages, document_fields={"length": "int32"})
    assert caught.value.setting == "stages"


def test_a_stage_that_does_not_write_its_declared_columns_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        list(dataset(Counts(keeps=False), document_fields={"length": "int32"}))
    assert caught.value.setting == "stages"
