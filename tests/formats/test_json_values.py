"""Values of JSON come out of every source as they are in JSON lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampack import sources
from streampack.errors import ContentError
from streampack.sources.error_policy import ErrorPolicy
from tests.support.chats import write_lines

datasets = pytest.importorskip("datasets")
WITH_JSON = pytest.mark.skipif(not hasattr(datasets, "Json"), reason="datasets before 4.8")


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def asked(**arguments: Any) -> list[dict[str, Any]]:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    return [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]


TALK = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
#: Values with differing fields become `Json`: in schemas of tools, and in whole messages.
TOOLS = [
    {"messages": TALK, "tools": [tool("ferry", harbour={"type": "string", "default": None})]},
    {"messages": TALK, "tools": [tool("tide", metres={"enum": [1, "a", None]}, at={"type": "x"})]},
]
MESSAGES = [{"messages": asked(x=1, none=None)}, {"messages": asked(x=["a", {"y": None}])}]
MIXED = [
    {"messages": [*TALK, {"role": "user", "content": [{"type": "text", "text": "c"}]}, TALK[1]]}
]


def conversations(data: Any, **given: Any) -> list[tuple[Any, Any]]:
    source = sources.Chat(data, **given)
    (lane,) = source.lanes(1, seed=0, epoch=0, shuffle=False)
    found = [c for block, _ in lane.read(None, ErrorPolicy()) for c in block.conversations]  # type: ignore[union-attr]
    return [(list(c.messages), c.tools) for c in found]


def loaded(file: Path) -> Any:
    return datasets.load_dataset(
        "json", data_files=str(file), split="train", cache_dir=str(file.parent / "cache")
    )


def parquet(file: Path) -> Path:
    loaded(file).to_parquet(str(file.with_suffix(".parquet")))
    return file.with_suffix(".parquet")


def saved(file: Path) -> Path:
    loaded(file).save_to_disk(str(file.with_suffix("")))
    return file.with_suffix("")


def without_types(file: Path) -> Path:
    """A table with JSON as plain text, marked in the schema's features, as before Arrow had it."""
    table = pq.read_table(parquet(file))
    plain = pa.Table.from_pylist(table.to_pylist())
    pq.write_table(plain.replace_schema_metadata(table.schema.metadata), file.with_suffix(".pq"))
    return file.with_suffix(".pq")


WAYS: dict[str, Callable[[Path], Any]] = {
    "dataset": loaded,
    "rows": lambda file: loaded(file).with_transform(lambda batch: batch),
    "folder": saved,
    "parquet": parquet,
    "parquet of text": without_types,
    "stream": lambda file: datasets.load_dataset(
        "json", data_files=str(file), split="train", streaming=True
    ),
    "stream of a dataset": lambda file: loaded(file).to_iterable_dataset(),
    "arrow": lambda file: pq.read_table(parquet(file)),
}


@WITH_JSON
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("records", [TOOLS, MESSAGES, MIXED], ids=["tools", "messages", "content"])
def test_json_features_of_datasets_equal_the_lines(
    records: list[Any], way: str, tmp_path: Path
) -> None:
    file = Path(write_lines(tmp_path / "a.jsonl", records))
    assert "Json" in str(loaded(file).features)
    assert conversations(WAYS[way](file)) == conversations(file)


def test_nulls_of_json_stay_and_nulls_of_structs_go(tmp_path: Path) -> None:
    lines = [
        {"messages": asked(x=1, y=None), "tools": [tool("f", x={"default": None})]},
        {"messages": asked(z=[None, {"a": None}])},
    ]
    (first, tools), (second, _) = conversations(write_lines(tmp_path / "a.jsonl", lines))
    assert first[1]["tool_calls"][0]["function"]["arguments"] == {"x": 1, "y": None}
    assert tools[0]["function"]["parameters"]["properties"] == {"x": {"default": None}}
    assert second[1]["tool_calls"][0]["function"]["arguments"] == {"z": [None, {"a": None}]}
    assert conversations(lines) == [(first, tools), (second, None)]

    rows = [{"messages": asked(x=1)}, {"messages": asked(z="a")}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    found = conversations(tmp_path / "a.parquet")
    assert [messages[1]["tool_calls"][0]["function"]["arguments"] for messages, _ in found] == [
        {"x": 1},
        {"z": "a"},
    ]


def test_maps_of_arrow_are_objects(tmp_path: Path) -> None:
    arguments = pa.map_(pa.string(), pa.struct([("a", pa.int64()), ("b", pa.int64())]))
    function = pa.struct([("name", pa.string()), ("arguments", arguments)])
    message = pa.struct(
        [
            ("role", pa.string()),
            ("content", pa.string()),
            ("tool_calls", pa.list_(pa.struct([("function", function)]))),
        ]
    )
    call = {"function": {"name": "f", "arguments": [("x", {"a": 1}), ("y", {"b": 2})]}}
    talk = [TALK[0], {"role": "assistant", "content": "", "tool_calls": [call]}]
    schema = pa.schema([("messages", pa.list_(message))])
    table = pa.Table.from_pylist([{"messages": talk}], schema=schema)
    pq.write_table(table, tmp_path / "a.parquet")
    for data in (table, tmp_path / "a.parquet"):
        ((messages, _),) = conversations(data)
        assert messages[1]["tool_calls"][0]["function"]["arguments"] == {
            "x": {"a": 1},
            "y": {"b": 2},
        }


def test_text_that_is_not_json_breaks_its_record_alone(tmp_path: Path) -> None:
    texts = [json.dumps(TALK), '[{"role"', json.dumps(TALK)]
    column = pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts))
    pq.write_table(pa.table({"messages": column}), tmp_path / "a.parquet")
    source = sources.Chat(tmp_path / "a.parquet")
    (lane,) = source.lanes(1, seed=0, epoch=0, shuffle=False)
    skips = ErrorPolicy("skip")
    assert sum(len(block) for block, _ in lane.read(None, skips)) == 2
    assert skips.counts.skipped == 1
    with pytest.raises(ContentError) as caught:
        list(lane.read(None, ErrorPolicy()))
    assert "row 1 of" in str(caught.value.document)
