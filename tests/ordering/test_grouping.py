"""GroupBy: documents of a key side by side, groups and documents as they arrived."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack import PackedDataset, PackedLoader, TokenRules, Topology
from streampack.documents.blocks import Documents
from streampack.errors import ConfigError
from streampack.ordering import GroupBy
from tests.support.memory_source import MemorySource
from tests.support.restoring import assert_restores_everywhere


def documents_of(keys: Any) -> Documents:
    block = Documents.from_arrays([np.full(3, i, dtype=np.uint32) for i in range(len(keys))])
    return replace(block, document_fields={"repo": np.asarray(keys)})


@given(st.lists(st.integers(-3, 3), min_size=1))
def test_groups_follow_one_another_as_their_first_documents_arrived(keys: list[int]) -> None:
    order, dropped = GroupBy("repo").order(documents_of(keys), seed=5)
    expected = sorted(range(len(keys)), key=lambda i: keys.index(keys[i]))
    assert (order.tolist(), dropped.tolist()) == (expected, [])


def test_a_function_gives_keys_of_any_kind() -> None:
    names = np.array(["b", "a", "b", "c", "a"])
    by_name = GroupBy(lambda documents: names[: len(documents)])
    assert by_name.order(documents_of([0] * 5))[0].tolist() == [0, 2, 1, 4, 3]
    for wrong in (np.zeros((5, 2)), np.zeros(3), np.array([None] * 5)):
        with pytest.raises(ConfigError, match="for 5 documents"):
            GroupBy(lambda documents, wrong=wrong: wrong).order(documents_of([0] * 5))


def by_shard(documents: Documents) -> Any:
    return documents.origin["shard"]


class Repositories(MemorySource):
    """Every document is of one of five repositories."""

    def read_shard(self, shard: int, *place: Any) -> Any:
        for block, end, reached in super().read_shard(shard, *place):
            yield replace(block, document_fields={"repo": block.origin["index"] % 5}), end, reached


def make(key: Any) -> PackedDataset:
    arrays = [np.full(5 + i % 4, i, dtype=np.uint32) for i in range(100)]
    return PackedDataset(
        Repositories([arrays[:50], arrays[50:]], block_documents=7),
        seq_len=32, batch_size=1, lanes=1, order=GroupBy(key, first_window_documents=10_000),
        attention="row", document_fields={"repo": "int64"}, topology=Topology(),
        token_rules=TokenRules(eos_id=9000, pad_id=9001), provenance=True,
    )  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("key", ["repo", by_shard], ids=["field", "function"])
def test_a_run_goes_by_keys_and_is_restored_everywhere(key: Any) -> None:
    assert_restores_everywhere(lambda: make(key))
    # Rows are shuffled; inside one the keys change seldom.
    changes = []
    for batch in PackedLoader(make(key)):
        origin = batch.provenance
        keys = origin["index"] % 5 if key == "repo" else origin["shard"]
        changes.append(int((keys[1:] != keys[:-1]).sum()))
    assert sum(changes) <= 4
