"""Conversations in memory: the same batches as the same records in a file."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streampack import PackedBatch, PackedDataset, PackedLoader, Topology, sources
from streampack.errors import ConfigError, ContentError
from streampack.tokenization import load_tokenizer
from tests.support.chats import CHATML, bpe_tokenizer, messages, write_lines
from tests.support.drawn import sampled
from tests.support.source_contract import assert_source_contract

BPE = bpe_tokenizer()
SMALL = sources.ReadOptions(block_documents=7)
Records = list[dict[str, Any]]
CHATS: Records = [
    {"id": i, "messages": messages(*(f"{i} and {k}?" for k in range(2 + 2 * (i % 3))))}
    for i in range(40)
]
PAIRS: Records = [
    {
        "prompt": messages(f"question {i}"),
        "chosen": [{"role": "assistant", "content": f"good {i}"}],
        "rejected": [{"role": "assistant", "content": f"bad {i}"}],
        "margin": float(i),
    }
    for i in range(40)
]
SHARED: dict[str, Records] = {
    "messages": CHATS,
    "conversations": [
        {"conversations": [{"from": "human", "value": f"{i}?"}, {"from": "gpt", "value": f"{i}!"}]}
        for i in range(40)
    ],
    "completion": [{"prompt": f"{i} is", "completion": f" {i}"} for i in range(40)],
    "labels": [{"input_ids": [i, i + 1, 300], "labels": [-100, i + 1, 300]} for i in range(40)],
}


def hf_dataset(records: Records) -> Any:
    return pytest.importorskip("datasets").Dataset.from_list(records)


def transformed(records: Records) -> Any:
    numbers = hf_dataset([{"n": i} for i in range(len(records))])
    return numbers.with_transform(
        lambda rows: {name: [records[n][name] for n in rows["n"]] for name in records[0]}
    )


def hf_stream(records: Records) -> Any:
    return hf_dataset(records).to_iterable_dataset(num_shards=1)


def arrays(records: Records) -> Records:
    """The same, with tuples for lists, and arrays for lists of numbers."""

    def changed(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return np.array(value) if isinstance(value[0], int) else tuple(value)

    return [{name: changed(value) for name, value in record.items()} for record in records]


KINDS: dict[str, Callable[[Records], Any]] = {
    "list": lambda records: records,
    "tuples": lambda records: tuple(arrays(records)),
    "generator function": lambda records: lambda: (record for record in records),
    "function of lanes": lambda records: lambda lane, lanes: records[lane::lanes],
    "Dataset": hf_dataset,
    "Dataset with a transform": transformed,
    "IterableDataset": hf_stream,
    "pyarrow": pa.Table.from_pylist,
    "pandas": lambda records: pa.Table.from_pylist(records).to_pandas().to_dict("records"),
}
ANY_LANES = [
    "list", "function of lanes", "Dataset", "Dataset with a transform", "pyarrow",
]  # fmt: skip


def chat(data: Any, **options: Any) -> sources.Chat:
    return sources.Chat(data, template=CHATML, reading=SMALL, **options)


def loader(source: Any, **settings: Any) -> PackedLoader:
    chosen: dict[str, Any] = {"seq_len": 96, "batch_size": 1, "tokenizer": load_tokenizer(BPE)}
    chosen |= {"lanes": 1, "shuffle": False, "topology": Topology(), **settings}
    return PackedLoader(PackedDataset(source, **chosen))


def ids(batches: Any) -> list[tuple[list[int], list[int]]]:
    return [(batch.input_ids.ravel().tolist(), batch.labels.ravel().tolist()) for batch in batches]


def learnt_texts(batches: Any) -> list[str]:
    """The texts of all documents, sorted."""
    found: list[PackedBatch] = list(batches)
    return sorted(
        batch.decode(number, BPE) for batch in found for number in range(batch.num_documents)
    )


@pytest.mark.sampled(12)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHARED)
def test_records_in_memory_give_the_batches_of_a_file(
    kind: str, shape: str, tmp_path: Path
) -> None:
    records = SHARED[shape]
    before = copy.deepcopy(records)
    in_file = ids(loader(chat(write_lines(tmp_path / "a.jsonl", records))))
    assert len(in_file) > 1
    assert ids(loader(chat(KINDS[kind](records)))) == in_file
    assert records == before


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_over_records_in_memory_goes_on_where_it_was(kind: str) -> None:
    data = KINDS[kind](CHATS)
    lanes = 3 if kind in ANY_LANES else 1
    settings: dict[str, Any] = {"shuffle": True, "lanes": lanes, "epochs": 2}
    whole = ids(loader(chat(data), **settings))
    assert len(whole) > 9
    for step in sampled((1, 5, len(whole) - 1, 0), part=1 / 2):
        first = loader(chat(data), **settings)
        assert ids(islice(first, step)) == whole[:step]
        again = loader(chat(data), **settings)
        again.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert ids(again) == whole[step:]


@pytest.mark.parametrize("kind", ["list", "Dataset", "pyarrow"])
def test_contract_of_records_by_number(kind: str) -> None:
    source = sources.Chat(KINDS[kind](CHATS), reading=SMALL)
    assert_source_contract(
        source, [json.dumps(record["messages"], sort_keys=True) for record in CHATS]
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
def test_pairs_in_memory_stay_together_with_their_fields(kind: str) -> None:
    fields = {"chosen": "bool", "margin": "float32"}
    found: dict[float, list[str]] = {}
    pairs = loader(chat(KINDS[kind](PAIRS)), document_fields=fields, shuffle=True)
    for batch in pairs:
        chosen, rejected = batch.pairs()
        for good, bad in zip(chosen.tolist(), rejected.tolist(), strict=True):
            margin = float(batch.document_fields["margin"][good])
            assert margin == float(batch.document_fields["margin"][bad])
            found[margin] = [batch.decode(number, BPE) for number in (good, bad)]
    assert sorted(found) == [float(i) for i in range(40)]
    for margin, (good, bad) in found.items():
        assert f"good {margin:.0f}<" in good
        assert f"bad {margin:.0f}<" in bad


@pytest.mark.parametrize(
    "data",
    [
        [],
        lambda: iter([]),
        [{"text": "a"}],
        lambda: [{"text": "a"}],
        pa.table({"text": ["a"]}),
        [CHATS[0]["messages"]],
        (path for path in ["a.jsonl"]),
        CHATS[0],
        {"train": CHATS},
        [{**CHATS[0], **PAIRS[0]}],
        3,
    ],
    ids=lambda value: type(value).__name__,
)
def test_files_without_conversations_are_refused_at_once(data: Any) -> None:
    with pytest.raises(ConfigError):
        sources.Chat(data).prepare()


def test_a_stream_has_as_many_lanes_as_shards() -> None:
    source = chat(hf_dataset(CHATS).to_iterable_dataset(num_shards=4))
    assert learnt_texts(loader(source, lanes=4, shuffle=True)) == learnt_texts(loader(chat(CHATS)))
    with pytest.raises(ConfigError):
        loader(source, lanes=5)


CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
NO_JSON = [
    {"role": np.array(["user"])},
    {"tool_calls": np.array([1, 2])},
    {"tool_calls": iter([CALL])},
    {"tool_calls": [{"name": "f", "arguments": range(3)}]},
]


@pytest.mark.parametrize("harm", NO_JSON)
def test_values_that_json_cannot_hold_are_named(harm: dict[str, Any]) -> None:
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", **harm}]
    data = [CHATS[0], {"messages": talk}]
    with pytest.raises(ContentError):
        list(loader(chat(data)))


def test_arrays_inside_arrays_are_lists() -> None:
    talk = [
        {"role": role, "content": [{"type": "text", "text": text}]}
        for role, text in (("user", "Which way?"), ("assistant", "That way."))
    ]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"enum": ["a", "b"]}}}]
    records = [{"messages": talk, "tools": tools}] * 3
    assert ids(loader(chat(KINDS["pandas"](records)))) == ids(loader(chat(records)))


def test_values_that_only_templates_read_may_be_anything() -> None:
    talk = [{"role": "user", "content": "a", "at": datetime(2026, 1, 1)}, *messages("b", "c")[1:]]
    (batch,) = loader(chat([{"messages": talk}]))
    assert batch.num_documents == 1


def test_values_nested_deeper_than_json_allows_are_skipped_in_memory_too() -> None:
    deep: Any = 0
    for _ in range(5000):
        deep = [deep]
    tools = [{"type": "function", "function": {"name": "f", "parameters": deep}}]
    source = sources.Chat([*CHATS[:3], {**CHATS[3], "tools": tools}], template=CHATML)
    made = PackedDataset(
        source, seq_len=256, tokenizer=BPE, on_error="skip", topology=Topology(), lanes=1
    )
    loader = PackedLoader(made)
    assert sum(batch.num_documents for batch in loader) == 3
    assert loader.metrics().skipped == 1


@pytest.mark.parametrize("wrong", [["a", "text"], None, 3], ids=repr)
def test_an_item_other_than_a_record_is_named(wrong: Any) -> None:
    records = [*CHATS[:3], wrong]
    for data in (records, lambda: iter(records)):
        with pytest.raises(ContentError) as caught:
            list(loader(chat(data)))
        assert caught.value.index == 3
