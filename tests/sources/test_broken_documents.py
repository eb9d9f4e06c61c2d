"""In every format a broken document is named in the error, or skipped by itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from streampack import PackedDataset, PackedLoader, Topology, sources
from streampack.documents.fields import FieldSpec
from streampack.errors import ContentError
from tests.support.corpora import byte_tokenizer, npy_bytes, write_samples
from tests.support.flat_files import write_megatron
from tests.support.mosaic import streaming_module
from tests.support.recorded_skips import RecordedSkips
from tests.support.source_contract import read_all, read_lane

Rows = list[dict[str, Any]]
TYPES = {"ids": pa.list_(pa.int64()), "mask": pa.list_(pa.int64()), "text": pa.string()}


def lines(folder: Path, rows: Rows, **named: Any) -> Any:
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (folder / "a.jsonl").write_bytes(data)
    return sources.JSONL(folder / "a.jsonl", **named)


def compressed(folder: Path, rows: Rows, **named: Any) -> Any:
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (folder / "a.jsonl.zst").write_bytes(pa.compress(data, "zstd", asbytes=True))
    return sources.JSONL(folder / "a.jsonl.zst", **named)


def tar(folder: Path, members: list[dict[str, bytes]]) -> str:
    return str(write_samples(folder / "a.tar", members))


def json_members(folder: Path, rows: Rows, **named: Any) -> Any:
    path = tar(folder, [{"json": json.dumps(row).encode()} for row in rows])
    read = {name: f"json:{field}" for name, field in named.items() if name != "loss_mask"}
    return sources.WebDataset(path, **{**named, **read})


def npy_members(folder: Path, rows: Rows, **named: Any) -> Any:
    members = [{f"{name}.npy": npy_bytes(value) for name, value in row.items()} for row in rows]
    return sources.WebDataset(tar(folder, members), **{**named, "tokens": "ids.npy"})


def text_members(folder: Path, rows: Rows, **named: Any) -> Any:
    members = [{"txt": row["text"] if row["text"] != "ok" else b"ok"} for row in rows]
    return sources.WebDataset(tar(folder, members), text="txt")


def text_and_field_members(folder: Path, rows: Rows, **named: Any) -> Any:
    members = [
        {"txt": b"ok" if row["text"] == "ok" else row["text"], "score.npy": npy_bytes(3)}
        for row in rows
    ]
    source = sources.WebDataset(tar(folder, members), text="txt")
    return source._with_fields(FieldSpec(document={"score": np.dtype("int64")}))


def mds(folder: Path, rows: Rows, **named: Any) -> Any:
    columns = {name: "str" if name == "text" else "ndarray" for name in rows[0]}
    with streaming_module("base.format.mds") as module:
        with module.MDSWriter(columns=columns, out=str(folder / "mds")) as writer:
            for row in rows:
                writer.write({n: v if n == "text" else np.array(v) for n, v in row.items()})
    return sources.MDS(folder / "mds", **named)


def table_of(rows: Rows) -> pa.Table:
    columns = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if any(isinstance(value, bytes) for value in values):  # which are no UTF-8
            raw = [value.encode() if isinstance(value, str) else value for value in values]
            buffers = pa.array(raw, pa.binary()).buffers()
            columns[name] = pa.Array.from_buffers(pa.string(), len(values), buffers)
        else:
            columns[name] = pa.array(values, TYPES[name])
    return pa.table(columns)


def parquet(folder: Path, rows: Rows, **named: Any) -> Any:
    pq.write_table(table_of(rows), folder / "a.parquet", row_group_size=2)
    return sources.Parquet(folder / "a.parquet", **named)


def arrow(folder: Path, rows: Rows, **named: Any) -> Any:
    feather.write_feather(table_of(rows), str(folder / "a.feather"))
    return sources.Arrow(folder / "a.feather", **named)


def megatron(folder: Path, rows: Rows, **named: Any) -> Any:
    return sources.MegatronIndexed(
        write_megatron(folder / "a", [[np.array(row["ids"])] for row in rows], "int64")
    )


JSON_FORMS: dict[str, Callable[..., Any]] = {
    "JSON lines": lines,
    "compressed lines": compressed,
    "a tar of JSON": json_members,
    "a list": lambda folder, rows, **named: sources.Items(rows, **named),
    "a generator": lambda folder, rows, **named: sources.Iterable(lambda: iter(rows), **named),
}
ARRAYS: dict[str, Callable[..., Any]] = {"a tar of npy": npy_members, "MDS": mds}
TABLES: dict[str, Callable[..., Any]] = {
    "Parquet": parquet,
    "Arrow": arrow,
    "a table": lambda folder, rows, **named: sources.Table(table_of(rows), **named),
}
FLAT: dict[str, Callable[..., Any]] = {"Megatron": megatron}
TEXTS: dict[str, Callable[..., Any]] = {
    "a tar of txt": text_members,
    "a tar of txt and npy": text_and_field_members,
}
FORMATS = {**JSON_FORMS, **ARRAYS, **TABLES, **FLAT, **TEXTS}

IDS, MASKED, TEXT = {"ids": [1, 2]}, {"ids": [1, 2], "mask": [0, 1]}, {"text": "ok"}
MISSING = object()
#: A good row, a field, a wrong value of it, and the formats that can hold it.
WRONG: list[tuple[dict[str, Any], str, Any, tuple[dict[str, Any], ...]]] = [
    (IDS, "ids", [1, -1], (JSON_FORMS, ARRAYS, TABLES, FLAT)),
    (IDS, "ids", [1, 2**32], (JSON_FORMS, ARRAYS, TABLES, FLAT)),
    (IDS, "ids", [1.5], (JSON_FORMS, ARRAYS)),
    (IDS, "ids", [[1, 2]], (ARRAYS,)),  # in JSON it is a group of one document
    (IDS, "ids", 7, (JSON_FORMS, {"a tar of npy": npy_members})),
    (IDS, "ids", None, (JSON_FORMS, TABLES)),
    (IDS, "ids", [1, None], (JSON_FORMS, TABLES)),
    *(
        (IDS, "ids", value, (JSON_FORMS,))
        for value in (["1"], "ab", {}, [True], [2**70], [[1, None]], MISSING)
    ),
    (MASKED, "mask", [1], (JSON_FORMS, ARRAYS, TABLES)),
    (MASKED, "mask", [1, 3], (JSON_FORMS, ARRAYS, TABLES)),
    (MASKED, "mask", [0.5, 1], (JSON_FORMS, ARRAYS)),
    (MASKED, "mask", None, (JSON_FORMS, TABLES)),
    *((MASKED, "mask", value, (JSON_FORMS,)) for value in ("ab", [[1], [0]], MISSING)),
    (TEXT, "text", None, (JSON_FORMS, TABLES)),
    *((TEXT, "text", value, (JSON_FORMS,)) for value in (5, ["a"], MISSING)),
    (TEXT, "text", b"\xff", (TEXTS, TABLES, {"MDS": mds})),
]


def cases() -> Iterator[Any]:
    for good, field, value, able in WRONG:
        for kind in [kind for formats in able for kind in formats]:
            shown = "none" if value is MISSING else repr(value)
            yield pytest.param(kind, good, field, value, id=f"{kind}, {field}={shown}")


@pytest.mark.parametrize(("kind", "good", "field", "value"), [*cases()])
def test_an_invalid_document_is_named_and_skipped_alone(
    kind: str, good: dict[str, Any], field: str, value: Any, tmp_path: Path
) -> None:
    named = {"text": "text"} if "text" in good else {"tokens": "ids"}
    named |= {"loss_mask": "mask"} if "mask" in good else {}
    wrong = {**good, field: value}
    if value is MISSING:
        wrong = {**{name: good[name] for name in good if name != field}, "other": 1}
    (tmp_path / "whole").mkdir()
    whole = FORMATS[kind](tmp_path / "whole", [good] * 3, **named)
    expected = read_all(whole)
    (_, place, _) = [
        name for block, _ in read_lane(whole.lanes(1, seed=0, epoch=0, shuffle=False)[0])
        for name, _ in block
    ]  # fmt: skip
    source = FORMATS[kind](tmp_path, [good, wrong, good], **named)
    with pytest.raises(ContentError) as caught:
        read_all(source)
    assert (caught.value.shard, caught.value.index) == place
    assert not caught.value.rest_of_shard
    skips = RecordedSkips()
    assert read_all(source, skips) == expected[:2]
    assert [tuple(record[:3]) for record in skips.records] == [(*place, False)]


ITEMS: list[Any] = [
    "text", b"ab", None, 7, [1.5], [True], ["1"], [[1], [2, 3]], [[1, 2]], [-1], [2**32], [2**70],
    np.zeros(3), np.array([-3], dtype=np.int32), {"t": [1]},
]  # fmt: skip


@pytest.mark.parametrize("form", [sources.Items, lambda items: sources.Iterable(lambda: items)])
@pytest.mark.parametrize("item", ITEMS, ids=repr)
def test_an_item_of_another_kind_is_named_and_skipped_alone(form: Any, item: Any) -> None:
    good = np.array([5], dtype=np.int32) if isinstance(item, np.ndarray) else [5]
    with pytest.raises(ContentError) as caught:
        read_all(form([good, item, good]))
    assert caught.value.index == 1
    skips = RecordedSkips()
    assert read_all(form([good, item, good]), skips) == [(5,), (5,)]
    assert [record[:3] for record in skips.records] == [[0, 1, False]]


@pytest.mark.parametrize("item", [["a"], 3, None])
def test_an_item_other_than_a_record_is_skipped_alone(item: Any) -> None:
    skips = RecordedSkips()
    for source in (sources.Items, sources.Iterable):
        assert read_all(source([{"t": "a"}, item, {"t": "b"}], text="t"), skips) == ["a", "b"]
    assert skips.counts.skipped == 2


def test_a_text_file_above_the_limit_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "a.txt").open("wb") as file:
        file.truncate(8 << 30)  # of which nothing is stored
    source = sources.TextFiles(tmp_path)
    with pytest.raises(ContentError):
        read_all(source)


HALF = "half a character: \ud83d"
TALK = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
BAD_TALK = [TALK[0], {"role": "assistant", "content": HALF}]
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"


def chat_lines(folder: Path) -> tuple[Any, str]:
    records = [{"messages": TALK}, {"messages": BAD_TALK}]
    path = folder / "chat.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return sources.Chat(path, template=PLAIN), f"{path}"


HALVES: dict[str, Callable[[Path], tuple[Any, str]]] = {
    "a list": lambda _: (["good", HALF], "item 1 of the list"),
    "records": lambda _: ([{"text": "good"}, {"text": HALF}], "item 1 of the list"),
    "chats": lambda _: (
        sources.Chat([{"messages": TALK}, {"messages": BAD_TALK}], template=PLAIN),
        "item 1 of the list",
    ),
    "chats in a file": chat_lines,
    "an iterable": lambda _: (sources.Iterable(lambda: iter(["good", HALF])), "item 1 of lane 0"),
    "a mixture": lambda _: (
        sources.Mixture({"web": ["good", HALF]}, weights={"web": 1}),
        "item 1 of the list",
    ),
}


@pytest.mark.parametrize("form", HALVES)
def test_half_a_character_is_named_with_its_document(form: str, tmp_path: Path) -> None:
    data, name = HALVES[form](tmp_path)
    settings: dict[str, Any] = {"seq_len": 64, "tokenizer": byte_tokenizer(), "shuffle": False}
    with pytest.raises(ContentError) as caught:
        list(PackedLoader(PackedDataset(data, lanes=1, topology=Topology(), **settings)))
    assert name in str(caught.value.document)
    assert caught.value.index >= 1
    dataset = PackedDataset(data, lanes=1, on_error="skip", topology=Topology(), **settings)
    assert sum(batch.num_documents for batch in PackedLoader(dataset)) == 1
