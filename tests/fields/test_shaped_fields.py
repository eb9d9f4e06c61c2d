"""Fields with several numbers per token stay with their tokens, against a slow reference."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

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
    merge_states,
    sources,
)
from streampack.documents import Documents
from streampack.errors import ConfigError
from streampack.forms.context_parallel import Layout
from streampack.packers.kinds import packer_kinds, with_rows
from streampack.packing import BestFitCrop, FirstFitDecreasing, Packer, Seamless
from streampack.testing import SimulatedRanks
from tests.support.drawn import drawn
from tests.support.memory_source import MemorySource, heavy_tailed, numbered_documents

PACKERS: list[Packer] = [
    BestFitDecreasing(seq_len=32),
    BestFitDecreasing(seq_len=32, overflow="truncate"),
    BestFitDecreasing(seq_len=32, align=8),
    FirstFitDecreasing(seq_len=32, overflow="drop"),
    *(with_rows(kind, 32) for kind in packer_kinds().values() if kind is not BestFitDecreasing),
    Concat(seq_len=32, atom=8),
    Seamless(seq_len=32, mask_repeated=True),
]
EOS = 9_999_999


def values_of(ids: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    """The values (T, *shape) of tokens, which follow from their ids; 0 of EOS."""
    number = np.asarray(ids).astype(np.int64)[:, None]
    made = (number * 7 + 3 * np.arange(math.prod(shape))) % (2 if dtype == "bool" else 120)
    return np.where(number == EOS, 0, made).astype(dtype).reshape(len(number), *shape)


def add_values(documents: Documents, seeds: Any, types: dict[str, Any]) -> Documents:
    fields = {name: values_of(documents.tokens, *declared) for name, declared in types.items()}
    return replace(documents, token_fields=fields)


def dataset(documents: Any, types: dict[str, Any], packer: Packer, **options: Any) -> PackedDataset:
    values: dict[str, Any] = {
        "window": WindowConfig(rows=8),
        "lanes": 2,
        "topology": Topology(),
        "token_rules": TokenRules(eos="append", eos_id=EOS),
        "map": Hook("values", partial(add_values, types=types)),
        "token_fields": types,
        "batch_size": 64 // packer.seq_lens[-1],
    }
    return PackedDataset(documents, packer=packer, **{**values, **options})


def assert_values(batch: PackedBatch, types: dict[str, Any]) -> list[int]:
    """Compare every slot with the reference; return the ids."""
    assert batch.fields.keys() == types.keys()
    ids = batch.input_ids.cpu().reshape(-1).numpy()
    real = (batch.document_ids.cpu().reshape(-1).numpy() >= 0) & (ids != EOS)
    for name, (dtype, shape) in types.items():
        values = batch.fields[name]
        assert tuple(values.shape) == (batch.rows, batch.seq_len, *shape)
        found = values.cpu().flatten(0, 1).numpy()
        assert found.dtype == np.dtype(dtype)
        assert (found[real] == values_of(ids[real], dtype, shape)).all()
        assert not found[~real].any()
    found_ids: list[int] = ids[real].tolist()
    return found_ids


@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=25),
    dtype=st.sampled_from(["bool", "uint8", "int8", "int16", "int64", "float16", "float64"]),
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
    packer=st.sampled_from(PACKERS),
    epochs=st.integers(1, 2),
)
@drawn(40)
def test_every_slot_has_the_values_of_its_token_with_every_packer_and_cut(
    lengths: list[int], dtype: str, shape: tuple[int, ...], packer: Packer, epochs: int
) -> None:
    types = {"one": (dtype, shape), "other": ("float32", (2,))}
    records = [
        {"ids": ids, **{name: values_of(ids, *of) for name, of in types.items()}}
        for ids in numbered_documents(lengths)
    ]
    source = sources.Items(records, tokens="ids", reading=sources.ReadOptions(block_documents=5))
    made = dataset(source, types, packer, epochs=epochs, map=None)
    ids = [number for batch in PackedLoader(made) for number in assert_values(batch, types)]
    if packer.overflow == "split" and not isinstance(packer, BestFitCrop | Seamless):
        assert sorted(ids) == sorted([*range(sum(lengths))] * epochs)


TYPES: dict[str, Any] = {"experts": ("int16", (3, 2)), "teacher": ("float16", (5,))}


def _on_ranks(ranks: int, state: Any, batches: int | None) -> tuple[list[Any], Any]:
    """Ids of the batches by their number on simulated ranks, and the merged state."""
    documents = numbered_documents(heavy_tailed(300, seed=5))
    together = SimulatedRanks(ranks)

    def run(rank: int) -> Any:
        source = MemorySource([documents[:100], documents[100:]], block_documents=16)
        made = dataset(source, TYPES, PACKERS[0], lanes=6, topology=Topology(rank, ranks))
        loader = PackedLoader(made, ranks=together[rank])
        if state is not None:
            loader.load_state_dict(state)
        found = [
            (batch.step * 6 + batch.lane, assert_values(batch, TYPES))
            for batch in islice(loader, batches)
        ]
        return found, json.loads(json.dumps(loader.state_dict()))

    with ThreadPoolExecutor(ranks) as pool:
        parts = list(pool.map(run, range(ranks)))
    found = [pair for pairs, _ in parts for pair in pairs if pair[1]]
    return found, merge_states([own for _, own in parts])


def test_they_stay_with_their_tokens_on_other_ranks_after_every_stop() -> None:
    whole, _ = _on_ranks(1, None, None)
    found, state = [], None
    for ranks, batches in ((2, 6), (3, 4), (1, 12), (6, None)):
        part, state = _on_ranks(ranks, state, batches)
        found += part
    assert sorted(found) == sorted(whole)


@pytest.mark.parametrize("layout", get_args(Layout))
def test_ranks_of_a_context_parallel_group_hold_every_value_once(layout: Layout) -> None:
    documents = numbered_documents([5, 23, 9, 30, 2, 1, 13, 32, 17])
    packer = BestFitDecreasing(seq_len=32, align=8)
    made = dataset(documents, TYPES, packer, token_rules=TokenRules())
    for batch in PackedLoader(made):
        parts = [batch.context_parallel(layout, cp_size=4, cp_rank=rank) for rank in range(4)]
        for name, (dtype, shape) in TYPES.items():
            flat = batch.fields[name].flatten(0, 1)
            for part in parts:
                own, ids = flat[part["slots"]], part["input_ids"].view(-1)
                assert tuple(own.shape) == (len(ids), *shape)
                real = ~part["padding_mask"].view(-1)
                expected = values_of(ids[real], dtype, shape)
                assert (own[real].numpy() == expected).all()
                assert not own[~real].any()


def test_they_go_to_a_device_in_one_buffer_and_to_workers_and_to_numpy() -> None:
    documents = numbered_documents(heavy_tailed(120, seed=2))
    made = dataset(documents, TYPES, PACKERS[0], token_rules=TokenRules())
    seen = 0
    for batch in PackedLoader(made, num_workers=1):
        seen += len(assert_values(batch, TYPES))
        assert_values(batch._moved(lambda buffer: buffer.clone()), TYPES)
        arrays = batch.numpy()["fields"]
        for name, values in batch.fields.items():
            assert (arrays[name] == values.numpy()).all()
            assert arrays[name].shape == tuple(values.shape)
    assert seen == sum(map(len, documents))


@pytest.mark.parametrize("wrong", [(3, 2), (6,), (2, 3, 1), ()])
def test_a_map_with_values_of_another_shape_is_refused(wrong: tuple[int, ...]) -> None:
    types = {"experts": ("int16", (2, 3))}
    hook = Hook("wrong", partial(add_values, types={"experts": ("int16", wrong)}))
    made = dataset(numbered_documents([5, 9]), types, PACKERS[0], map=hook)
    with pytest.raises(ConfigError) as caught:
        next(iter(PackedLoader(made)))
    assert caught.value.setting == "token_fields"


@pytest.mark.parametrize(
    "declared",
    [
        *(("int16", shape) for shape in (0, (), (2, -1), (2.0,), "a", True, (1 << 40, 1 << 40))),
        *(("bfloat16", 3), (3, "int16"), ("int16", 2, 3)),
    ],
)
def test_a_shape_that_cannot_be_is_refused(declared: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        PackedDataset([[1, 2]], seq_len=8, token_fields={"experts": declared})
    assert caught.value.setting == "token_fields"


def test_a_field_of_documents_has_one_number() -> None:
    with pytest.raises(ConfigError) as caught:
        PackedDataset([[1, 2]], seq_len=8, document_fields={"scores": ("float32", (2,))})
    assert caught.value.setting == "document_fields"


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=8),
    st.lists(st.integers(1, 3), max_size=2).map(tuple),
    st.data(),
)
@drawn(60)
def test_taking_documents_of_a_block_takes_their_values(
    lengths: list[int], shape: tuple[int, ...], data: st.DataObject
) -> None:
    total = sum(lengths)
    values = np.arange(total * math.prod(shape), dtype=np.float64).reshape(total, *shape)
    ids = np.split(np.arange(total, dtype=np.uint16), np.cumsum(lengths)[:-1])
    block = Documents.from_arrays(ids, token_fields={"values": values})
    order = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=6))
    taken = block.take(np.array(order, dtype=np.int64))
    joined = Documents.joined([taken, block[:1], taken])
    for made in (taken, joined):
        assert made.token_fields["values"].tolist() == values[made.tokens].tolist()
    assert torch.from_numpy(joined.token_fields["values"]).shape[1:] == shape


def test_lanes_are_chosen_by_the_memory_that_values_take() -> None:
    def lanes(**fields: Any) -> int:
        source = MemorySource([numbered_documents([40] * 400)] * 12)
        options = {"window": WindowConfig(rows=20), "lanes": None, "topology": Topology(0, 2)}
        made = dataset(source, {}, PACKERS[0], map=None, **{**options, "token_fields": fields})
        return made.plan.config.lanes

    alone = lanes()
    assert alone == lanes(few="float64")
    assert alone > lanes(many=("int16", (4096, 64))) >= 2  # 320 MB in each window
