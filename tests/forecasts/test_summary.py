"""A run printed as a tree."""

from __future__ import annotations

import re
from typing import Any

import pytest

from streampack import PackedDataset, Topology
from streampack.sources import Items, Mixture

DOCUMENTS = [[1, 2, 3], [4, 5], [6]] * 20


def dataset(source: Any, **settings: Any) -> PackedDataset:
    settings = {"seq_len": 8, "batch_size": 2, "topology": Topology(), **settings}
    return PackedDataset(source, **settings)


def test_a_dataset_is_printed_without_reading_a_document() -> None:
    class Counted(list[list[int]]):
        reads = 0

        def __getitem__(self, index: Any) -> Any:
            self.reads += 1
            return super().__getitem__(index)

    documents = Counted(DOCUMENTS)
    run = dataset(Items(documents))
    reads = documents.reads
    assert "Items" in str(run)
    assert "fingerprint" not in str(run)
    assert documents.reads == reads


def test_the_first_and_last_shares_of_each_source_are_printed() -> None:
    mixture = Mixture(
        {"web": DOCUMENTS, "code": DOCUMENTS},
        weights=[(0, {"web": 3, "code": 1}), (50, {"web": 1, "code": 1})],
    )
    web, code = str(dataset(mixture).plan).splitlines()[1:3]
    assert re.search(r"75.0%.*50.0%.*web", web)
    assert re.search(r"25.0%.*50.0%.*code", code)


def test_many_sources_take_a_bounded_number_of_lines() -> None:
    mixture = Mixture({f"part{i}": DOCUMENTS for i in range(100)})
    assert len(str(dataset(mixture).plan).splitlines()) < 40


@pytest.mark.parametrize("setting", [{"seed": 1}, {"batch_size": 3}, {"map": None}])
def test_the_last_line_differs_where_runs_differ(setting: dict[str, Any]) -> None:
    one, other = (str(dataset(DOCUMENTS, **s).plan).splitlines()[-1] for s in ({}, setting))
    assert "fingerprint" in one
    assert (one == other) == (setting == {"map": None})


def test_explain_begins_with_the_tree() -> None:
    run = dataset(DOCUMENTS)
    assert str(run.explain()).startswith(str(run.plan))
    assert str(run) == str(run.plan)
