"""Trees have fields of several numbers once per slot, on which the sequences must agree."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streampack import PackedDataset, PackedLoader, Topology, WindowConfig, pack, sources
from streampack.errors import ConfigError, ContentError
from streampack.trees.batch import TreeBatch
from tests.support.drawn import drawn
from tests.support.tree_reference import groups


def routes(ids: list[int]) -> Any:
    """The routes of a sequence's tokens, (T, 3, 2), which follow from the prefix up to each."""
    made = np.zeros((len(ids), 3, 2), dtype=np.int16)
    state = 7
    for t, number in enumerate(ids):
        state = (state * 31 + number + 1) % 9973
        made[t] = (state + np.arange(6).reshape(3, 2)) % 128
    return made


def assert_routes(batch: TreeBatch) -> int:
    """Compare every sequence's values with its own; return the tokens compared."""
    values = batch.fields["routes"]
    assert tuple(values.shape) == (batch.rows, batch.seq_len, 3, 2)
    assert not values[batch.document_ids < 0].any()
    assert batch.fields["place"].shape == batch.slot.shape
    of_sequences = values.flatten(0, 1)[batch.slot]
    ids = batch.input_ids.view(-1)[batch.slot]
    for number in range(batch.num_documents):
        own = batch.sequence_ids == number
        assert of_sequences[own].tolist() == routes(ids[own].tolist()).tolist()
        assert batch.fields["place"][own].tolist() == list(range(int(own.sum())))
    return len(ids)


def record(tokens: list[list[int]]) -> dict[str, Any]:
    return {
        "tokens": tokens,
        "routes": [routes(one).tolist() for one in tokens],
        "place": [[*range(len(one))] for one in tokens],
    }


def dataset(records: list[Any], **options: Any) -> PackedDataset:
    values: dict[str, Any] = {
        "seq_len": 48,
        "batch_size": 2,
        "lanes": 3,
        "layout": "tree",
        "window": WindowConfig(rows=8),
        "topology": Topology(),
        "token_fields": {"routes": ("int16", (3, 2)), "place": "int32"},
    }
    return PackedDataset(sources.Items(records, tokens="tokens"), **{**values, **options})


def branching(count: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(2)
    made = []
    for _ in range(count):
        prompt = rng.integers(0, 50, rng.integers(1, 9)).tolist()
        answers = [rng.integers(0, 3, rng.integers(1, 7)).tolist() for _ in range(4)]
        made.append(record([prompt + answer for answer in answers]))
    return made


def test_every_slot_has_the_values_of_its_sequences_through_stops() -> None:
    records = branching(120)
    total = sum(len(one) for each in records for one in each["tokens"])
    loader, seen = PackedLoader(dataset(records)), 0
    while batches := list(islice(loader, 4)):
        seen += sum(assert_routes(batch) for batch in batches)
        state = loader.state_dict()
        loader = PackedLoader(dataset(records))
        loader.load_state_dict(state)
    assert seen == total


@pytest.mark.parametrize("layout", ["documents", "tree"])
def test_a_group_of_either_layout_has_its_values(layout: str) -> None:
    records = branching(20)
    for batch in PackedLoader(dataset(records, layout=layout)):
        if layout == "tree":
            assert_routes(batch)
            continue
        for number in range(batch.num_documents):
            own = batch.document_ids == number
            expected = routes(batch.input_ids[own].tolist())
            assert batch.fields["routes"][own].tolist() == expected.tolist()


@given(st.lists(groups(empty=False), min_size=1, max_size=4))
@drawn(40)
def test_packed_trees_have_their_values(drawn: Any) -> None:
    ids = [list(each) for group in drawn for each in group]
    group = [number for number, each in enumerate(drawn) for _ in each]
    plan = pack(
        [len(one) for one in ids], groups=group, ids=ids, layout="tree", seq_len=256, ranks=2
    )
    fields = {
        "routes": [torch.from_numpy(routes(one)) for one in ids],
        "place": [np.arange(len(one)) for one in ids],
    }
    seen = 0
    for rank in range(2):
        for batch in plan.batches(ids, rank=rank, token_fields=fields):
            if batch.num_documents:
                seen += assert_routes(batch)
    assert seen == sum(map(len, ids))


def disagreeing() -> tuple[list[dict[str, Any]], int]:
    """Records, one of which has sequences that disagree; and the tokens of the others."""
    records = branching(30)
    good = sum(len(one) for each in records[1:] for one in each["tokens"])
    records[0]["routes"][2][0][1][0] += 1  # of the first token, which all sequences share
    return records, good


def test_sequences_that_disagree_are_an_error_or_a_skip_of_their_record() -> None:
    records, good = disagreeing()
    with pytest.raises(ContentError) as caught:
        list(PackedLoader(dataset(records)))
    assert "item 0" in str(caught.value.document)
    loader = PackedLoader(dataset(records, on_error="skip"))
    assert sum(assert_routes(batch) for batch in loader) == good
    assert loader.metrics().skipped == 1


def test_packed_sequences_that_disagree_are_an_error() -> None:
    records, _ = disagreeing()
    ids, values = records[0]["tokens"], records[0]["routes"]
    lengths, group = [len(one) for one in ids], [0] * len(ids)
    plan = pack(lengths, groups=group, ids=ids, layout="tree", seq_len=128)
    with pytest.raises(ConfigError) as caught:
        list(plan.batches(ids, token_fields={"routes": values}))
    assert caught.value.document is not None
