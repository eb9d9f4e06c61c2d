from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from streampack import PackedDataset, PackedLoader, Topology
from streampack.errors import ConfigError
from streampack.sources import Items, Mixture, ReadOptions
from streampack.sources.error_policy import ErrorPolicy
from tests.support.source_contract import assert_source_contract

IDS = [[100 * i + k for k in range(1 + i * 7 % 11)] for i in range(90)]
TEXTS = [f"text {i} " * (1 + i % 5) for i in range(90)]


class MapStyle:
    """Map-style dataset as in torch: a length, and an item by its number."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> Any:
        if not 0 <= number < len(self.items):
            raise IndexError(number)
        return self.items[number]


def series(items: list[Any]) -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.Series(items, index=range(500, 500 - len(items), -1))


def object_array(items: list[Any]) -> Any:
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array


KINDS = {"list": list, "tuple": tuple, "map-style": MapStyle, "Series": series,
         "array": object_array}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("items", [IDS, TEXTS], ids=["ids", "texts"])
def test_contract_of_items_by_number(kind: str, items: list[Any]) -> None:
    source = Items(KINDS[kind](items), reading=ReadOptions(block_documents=7))
    assert_source_contract(source, items)
    assert_source_contract(pickle.loads(pickle.dumps(source)), items)


def test_contract_of_records() -> None:
    reading = ReadOptions(block_bytes=200)
    records = [{"text": text, "number": i} for i, text in enumerate(TEXTS)]
    assert_source_contract(Items(records, reading=reading), TEXTS)
    assert_source_contract(Items(MapStyle(records), text="text", reading=reading), TEXTS)


def test_contract_of_more_items_than_a_shard_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streampack.sources.indexed.SHARD_ITEMS", 512)
    items = [[i, i + 1] for i in range(600)]
    assert_source_contract(Items(items), items, lane_counts=(1, 5), restarts=2)


def test_a_list_is_shuffled_as_a_whole() -> None:
    (lane,) = Items([[i] for i in range(40_000)]).lanes(1, seed=1, epoch=0, shuffle=True)
    begins = [block.origin["shard"][0] for block, _ in lane.read(None, ErrorPolicy())]
    assert set(begins[:2]) != {0, 1}
    assert set(begins) == set(range(5))


def test_the_size_of_a_list_is_known_so_that_a_mixture_needs_no_weights() -> None:
    lists = {"a": [[1, 2]] * 300, "b": [[3, 4]] * 100}
    assert [Items(items).estimate_tokens() for items in lists.values()] == [600, 200]
    batch = next(iter(PackedLoader(PackedDataset(Mixture(lists), seq_len=64))))
    assert (batch.input_ids == 1).sum() > 2 * (batch.input_ids == 3).sum() > 0


def test_an_iterable_dataset_of_torch_is_iterated_although_it_has_a_length() -> None:
    wrapped = torch.utils.data.datapipes.iter.IterableWrapper([[1, 2]] * 5)
    dataset = PackedDataset(wrapped, seq_len=8, epochs=1)
    assert sum(batch.num_documents for batch in PackedLoader(dataset)) == 5


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_is_a_list_of_documents(layout: torch.layout) -> None:
    parts = [torch.tensor([1, 2, 3]), torch.tensor([4, 5])]
    nested = torch.nested.nested_tensor(parts, layout=layout)
    dataset = PackedDataset(nested, seq_len=5, batch_size=1, shuffle=False, topology=Topology())
    (batch,) = PackedLoader(dataset)
    assert sorted(batch.input_ids.ravel().tolist()) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("data", [(text for text in TEXTS), []], ids=["generator", "empty"])
def test_objects_without_items_by_index_are_refused(data: Any) -> None:
    with pytest.raises(ConfigError):
        Items(data)


@pytest.mark.parametrize(
    "setting",
    [("shuffle_blocks", "x"), ("shuffle_blocks", None), ("shuffle_blocks", 1), ("open_shards", 0),
     ("open_shards", None), ("block_documents", 0), ("block_documents", True),
     ("block_bytes", 1.5), ("max_document_bytes", -1)],
)  # fmt: skip
def test_options_of_reading_that_are_no_such_value_are_refused(setting: tuple[str, Any]) -> None:
    name, value = setting
    with pytest.raises(ConfigError) as caught:
        ReadOptions(**{name: value})
    assert caught.value.setting == name
