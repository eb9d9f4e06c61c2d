"""`per_token`: values of documents for each of their tokens, on every rank in every step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from streampack import BestFitDecreasing, PackedBatch, PackedDataset, PackedLoader, Topology, pack
from streampack.errors import ConfigError

DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
RECORDS: list[dict[str, Any]] = [
    {"tokens": [1 + i] * (1 + 3 * i % 7), **dict.fromkeys(DTYPES, i % 2)} for i in range(20)
]


def batches(records: list[dict[str, Any]]) -> list[PackedBatch]:
    dataset = PackedDataset(
        records, packer=BestFitDecreasing(seq_len=8), batch_size=2, lanes=2, topology=Topology(),
        document_fields={name: name for name in DTYPES},
    )  # fmt: skip
    loader = PackedLoader(dataset)
    return [*loader, loader._run.empty_batch(0, 9)]


def test_every_token_has_the_value_of_its_document_and_padding_has_0() -> None:
    *filled, empty = batches(RECORDS)
    for batch in filled:
        for name in DTYPES:
            values = batch.per_token(name)
            assert values.dtype == getattr(torch, name)
            expected = torch.where(batch.padding_mask, 0, (batch.input_ids - 1) % 2)
            assert torch.equal(values.long(), expected)
    for name in DTYPES:
        values = empty.per_token(name)
        assert values.shape == (2, 8)
        assert values.dtype == getattr(torch, name)
        assert not values.any()
    assert not empty.per_token(empty.source_ids).any()


def test_gradients_flow_to_values_that_the_loop_computed() -> None:
    batch, *_, empty = batches(RECORDS)
    for each in (batch, empty):
        values = torch.ones(each.num_documents, 3, requires_grad=True)
        spread = each.per_token(values)
        assert spread.shape == (2, 8, 3)
        spread.sum().backward()
        counts = torch.bincount(each.document_ids[~each.padding_mask], minlength=len(values))
        assert values.grad is not None
        assert torch.equal(values.grad, counts[:, None].expand(-1, 3).float())


@pytest.mark.parametrize("values", ["none", 3.0, np.zeros(2), torch.zeros(99), torch.tensor(1.0)])
def test_columns_without_a_value_per_document_are_refused(values: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        batches(RECORDS)[0].per_token(values)
    assert caught.value.setting == "values"


def test_trees_refuse_it_because_a_token_may_belong_to_several_documents() -> None:
    ids = [[7, 8, 1], [7, 8, 2, 3]]
    plan = pack([3, 4], groups=[0, 0], ids=ids, layout="tree", seq_len=6)
    with pytest.raises(ConfigError) as caught:
        _ = next(plan.batches(ids)).per_token
    assert caught.value.setting == "layout"
