"""Fields are read from the columns, keys and members that every format has for them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import torch

from streampack import (
    BestFitDecreasing,
    PackedBatch,
    PackedDataset,
    PackedLoader,
    Topology,
    WindowConfig,
    sources,
)
from streampack.documents import Documents
from streampack.errors import ConfigError, ContentError
from streampack.sources.error_policy import ErrorPolicy
from tests.support.chats import write_lines
from tests.support.columns import KINDS, Columns
from tests.support.corpora import byte_tokenizer, write_samples
from tests.support.mosaic import streaming_module

SEQ_LEN = 32
LENGTHS = (np.exp(np.random.default_rng(3).normal(2.4, 0.8, 150)).astype(int) + 1).tolist()
TOKEN_FIELDS = {
    "place": "float32",
    "kept": "bool",
    "experts": ("int16", (2, 3)),
    "teacher": ("float16", (4,)),
}
DOCUMENT_FIELDS = {"score": "float64", "size": "int32"}


def records(text: bool = False) -> list[dict[str, Any]]:
    """Document i holds the id i, so many times; its fields say which it is, and where in it."""
    found = []
    for i, length in enumerate(LENGTHS):
        document: dict[str, Any] = {"score": i / 2, "size": length}
        if text:
            found.append({"text": chr(97 + i % 26) * length, **document})
            continue
        places = [float(n) for n in range(length)]
        kept = [n % 3 == 0 for n in range(length)]
        several = {
            "experts": [experts(i, n).tolist() for n in range(length)],
            "teacher": [[n / 4, i / 4, 0.5, -1.0] for n in range(length)],
        }
        found.append({"ids": [i] * length, "place": places, "kept": kept, **several, **document})
    return found


def experts(i: int, n: int) -> Any:
    """The values of token n of document i, (2, 3)."""
    return np.arange(6).reshape(2, 3) * 7 + n + 40 * i


def with_fixed_sizes() -> pa.Table:
    """The columns, in types with the shapes."""
    types = {
        "experts": pa.list_(pa.list_(pa.list_(pa.int16(), 3), 2)),
        "teacher": pa.large_list(pa.list_(pa.float16(), 4)),
    }
    table = pa.table(columns())
    for name, kind in types.items():
        column = table[name].cast(kind)
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def _parquet_of_fixed_sizes() -> str:
    pq.write_table(with_fixed_sizes(), "fixed.parquet", row_group_size=37)
    return "fixed.parquet"


def _arrow_of_fixed_sizes() -> str:
    feather.write_feather(with_fixed_sizes(), "fixed.feather", chunksize=41)
    return "fixed.feather"


def columns(text: bool = False) -> Columns:
    return {name: [row[name] for row in records(text)] for name in records(text)[0]}


def _tar(members: Callable[[Any], dict[str, bytes]], text: bool = False) -> str:
    return str(write_samples(Path("a.tar"), [members(row) for row in records(text)]))


def _json_member(row: Any) -> dict[str, bytes]:
    return {"json": json.dumps(row).encode()}


def _npz_member(row: Any) -> dict[str, bytes]:
    stream = io.BytesIO()
    np.savez_compressed(stream, **{name: np.array(value) for name, value in row.items()})
    return {"npz": stream.getvalue()}


def _npy_members(row: Any) -> dict[str, bytes]:
    """A file for each field; some come before the file of the ids."""
    members = {}
    for name in sorted({*row} - {"text"}, reverse=True):
        stream = io.BytesIO()
        np.save(stream, np.array(row[name]))
        members[f"{name}.npy"] = stream.getvalue()
    return members


def _raw_members(row: Any) -> dict[str, bytes]:
    return {**_npy_members(row), "bin": np.array(row["ids"], dtype="<u2").tobytes()}


def _text_members(row: Any) -> dict[str, bytes]:
    return {**_npy_members(row), "txt": row["text"].encode()}


def _labelled() -> str:
    rows = [
        {**row, "input_ids": row["ids"], "loss_mask": [1] * len(row["ids"])} for row in records()
    ]
    return write_lines(Path("labelled.jsonl"), rows)


def _in_arrays() -> list[dict[str, Any]]:
    return [{name: np.array(value) for name, value in row.items()} for row in records()]


def _documents() -> Documents:
    rows = _in_arrays()
    joined = {name: np.concatenate([row[name] for row in rows]) for name in TOKEN_FIELDS}
    scores = {name: np.array([row[name] for row in rows]) for name in DOCUMENT_FIELDS}
    ids = [row["ids"].astype(np.uint16) for row in rows]
    return Documents.from_arrays(ids, token_fields=joined, document_fields=scores)


def _mds_of_fixed_dtypes() -> str:
    encodings = {
        "ids": "ndarray:uint16",
        "place": "ndarray:float32",
        "kept": "ndarray:uint8",
        "experts": "ndarray:int16",
        "teacher": "ndarray:float16",
        "score": "float64",
        "size": "int",
    }
    with (
        streaming_module("base.format.mds") as module,
        module.MDSWriter(out="fixed", columns=encodings, size_limit=1 << 14) as writer,
    ):
        for row in _in_arrays():
            for name, kind in encodings.items():
                dtype = kind.removeprefix("ndarray:")
                row[name] = row[name].item() if dtype == kind else row[name].astype(dtype)
            writer.write(row)
    return "fixed"


IDS: dict[str, Callable[[], Any]] = {
    **{
        kind: lambda make=make: sources.open(make(columns()), tokens="ids")
        for kind, make in KINDS.items()
    },
    "tar": lambda: sources.WebDataset(_tar(_json_member), tokens="json:ids"),
    "npz": lambda: sources.WebDataset(_tar(_npz_member), tokens="npz:ids"),
    "npy": lambda: sources.WebDataset(_tar(_npy_members), tokens="ids.npy"),
    "raw": lambda: sources.WebDataset(_tar(_raw_members), tokens="bin", dtype="uint16"),
    "chat": lambda: sources.Chat(_labelled()),
    "Parquet of fixed sizes": lambda: sources.open(_parquet_of_fixed_sizes(), tokens="ids"),
    "Arrow of fixed sizes": lambda: sources.open(_arrow_of_fixed_sizes(), tokens="ids"),
    "slice of a table": lambda: sources.open(
        pa.concat_tables([with_fixed_sizes()] * 2).slice(len(LENGTHS)), tokens="ids"
    ),
    "records of arrays": lambda: sources.Items(_in_arrays(), tokens="ids"),
    "MDS of fixed dtypes": lambda: sources.MDS(_mds_of_fixed_dtypes(), tokens="ids"),
    "Documents": lambda: sources.open(_documents()),
}
TEXTS: dict[str, Callable[[], Any]] = {
    **{
        kind: lambda make=make: sources.open(make(columns(text=True)), text="text")
        for kind, make in KINDS.items()
    },
    "tar": lambda: sources.WebDataset(_tar(_text_members, text=True), text="txt"),
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def dataset(source: Any, **options: Any) -> PackedDataset:
    values: dict[str, Any] = {
        "packer": BestFitDecreasing(seq_len=SEQ_LEN),
        "batch_size": 4,
        "window": WindowConfig(rows=16),
        "topology": Topology(),
        "lanes": 1,
        "provenance": True,
        "token_fields": TOKEN_FIELDS,
        "document_fields": DOCUMENT_FIELDS,
    }
    return PackedDataset(source, **{**values, **options})


def pieces(batch: PackedBatch) -> list[tuple[int, int, np.ndarray]]:
    """Return the number, the offset in the document and the slots of every piece of a batch."""
    assert batch.provenance is not None
    numbers = batch.document_ids.numpy().ravel()
    starts = batch.provenance["start"].tolist()
    return [(n, start, np.flatnonzero(numbers == n)) for n, start in enumerate(starts)]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("kind", IDS)
def test_fields_of_ids_come_with_their_tokens(kind: str) -> None:
    seen: dict[int, int] = {}
    for batch in PackedLoader(dataset(IDS[kind]())):
        ids = batch.input_ids.numpy().ravel()
        place, kept = (batch.fields[name].numpy().ravel() for name in ("place", "kept"))
        routes, teacher = (batch.fields[name].flatten(0, 1) for name in ("experts", "teacher"))
        assert (routes.dtype, teacher.dtype) == (torch.int16, torch.float16)
        padding = batch.document_ids.ravel() < 0
        assert not routes[padding].any()
        assert not teacher[padding].any()
        for n, start, slots in pieces(batch):
            document = int(ids[slots[0]])
            expected = start + np.arange(len(slots))
            assert (ids[slots] == document).all()
            assert place[slots].tolist() == expected.tolist()
            assert kept[slots].tolist() == (expected % 3 == 0).tolist()
            several = [experts(document, n).tolist() for n in expected.tolist()]
            assert routes[slots].tolist() == several
            halves = [[n / 4, document / 4, 0.5, -1.0] for n in expected.tolist()]
            assert teacher[slots].tolist() == halves
            assert float(batch.document_fields["score"][n]) == document / 2
            assert int(batch.document_fields["size"][n]) == LENGTHS[document]
            seen[document] = seen.get(document, 0) + len(slots)
    assert [seen[i] for i in range(len(LENGTHS))] == LENGTHS


@pytest.mark.parametrize("kind", TEXTS)
def test_fields_of_texts_come_with_their_documents(kind: str) -> None:
    made = dataset(TEXTS[kind](), tokenizer=byte_tokenizer(), token_fields=None)
    tokens: dict[float, int] = {}
    for batch in PackedLoader(made):
        for n, _, slots in pieces(batch):
            score = float(batch.document_fields["score"][n])
            tokens[score] = tokens.get(score, 0) + len(slots)
            assert int(batch.document_fields["size"][n]) == LENGTHS[round(2 * score)]
    # The tokenizer ends each document with an EOS.
    assert [tokens[i / 2] for i in range(len(LENGTHS))] == [length + 1 for length in LENGTHS]


@pytest.mark.parametrize("table", [False, True])
def test_fields_of_conversations_come_with_them(table: bool, tmp_path: Path) -> None:
    rows = [{"prompt": "a" * n, "completion": "b" * n, "advantage": n / 4} for n in range(1, 40)]
    path = write_lines(tmp_path / "a.jsonl", rows)
    if table:
        path = str(tmp_path / "chats.parquet")
        pq.write_table(pa.Table.from_pylist(rows), path)
    made = dataset(
        sources.Chat(path),
        packer=BestFitDecreasing(seq_len=256),
        tokenizer=byte_tokenizer(),
        token_fields=None,
        document_fields={"advantage": "float32"},
    )
    found = [
        value
        for batch in PackedLoader(made)
        for value in batch.document_fields["advantage"].tolist()
    ]
    assert sorted(found) == [n / 4 for n in range(1, 40)]


BROKEN: dict[str, dict[str, Any]] = {
    "missing": {"place": None},
    "too short": {"place": [1.0]},
    "null": {"place": [0.5, None, 1.0, 1.0, 1.0]},
    "text": {"place": ["x"] * 5},
    "no number": {"score": "high"},
    "no score": {"score": None},
    "nan": {"score": float("nan")},
    "huge": {"score": 10**30},
    "another shape": {"experts": [[[1, 2], [3, 4], [5, 6]]] * 5},
    "too flat": {"experts": [[1, 2, 3, 4, 5, 6]] * 5},
    "one of another shape": {"experts": [*[[[1, 2, 3]] * 2] * 4, [[1, 2, 3]]]},
    "one inner list too short": {"experts": [*[[[1, 2, 3]] * 2] * 4, [[1, 2, 3], [4, 5]]]},
    "too few of them": {"experts": [[[1, 2, 3]] * 2] * 4},
    "a null in them": {"experts": [*[[[1, 2, 3]] * 2] * 4, [[1, 2, 3], [4, None, 5]]]},
    "null in place of a list": {"experts": [*[[[1, 2, 3]] * 2] * 4, [[1, 2, 3], None]]},
    "none of them": {"experts": None},
    "too large": {"experts": [*[[[1, 2, 3]] * 2] * 4, [[1, 2, 3], [4, 5, 1 << 15]]]},
    "nan among halves": {"teacher": [*[[0.0] * 4] * 4, [0.0, 0.0, 0.0, float("nan")]]},
}
IN_TABLES = {*BROKEN} - {"text", "no number", "huge", "too flat"}  # a column can hold it


@pytest.mark.parametrize("name", BROKEN)
def test_a_record_with_unfitting_fields_is_named_or_skipped(name: str, tmp_path: Path) -> None:
    good = {
        "ids": [1] * 5,
        "place": [0.5] * 5,
        "kept": [True] * 5,
        "score": 1.0,
        "size": 5,
        "experts": [[[1, 2, 3]] * 2] * 5,
        "teacher": [[0.5] * 4] * 5,
    }
    rows = [good] * 3 + [{**good, **BROKEN[name]}] + [good] * 3
    path = write_lines(tmp_path / "a.jsonl", rows)
    made: list[Any] = [sources.JSONL(path, tokens="ids"), sources.Iterable(rows, tokens="ids")]
    if name in IN_TABLES:
        made.append(sources.Table(pa.Table.from_pylist(rows), tokens="ids"))
    for source in made:
        with pytest.raises(ContentError):
            list(PackedLoader(dataset(source)))
        loader = PackedLoader(dataset(source, on_error="skip"))
        assert sum(batch.num_tokens for batch in loader) == 30
        assert loader.metrics().skipped == 1


def _mds_of_experts(encoding: str, arrays: list[Any], path: str = "experts") -> str:
    columns = {"ids": "ndarray:uint16", "experts": encoding}
    with (
        streaming_module("base.format.mds") as module,
        module.MDSWriter(out=path, columns=columns) as writer,
    ):
        for array in arrays:
            writer.write({"ids": np.ones(5, np.uint16), "experts": array.astype(np.int16)})
    return path


EXPERTS: dict[str, Any] = {
    "token_fields": {"experts": ("int16", (2, 3))},
    "document_fields": None,
}


@pytest.mark.parametrize("shape", [(5, 3, 2), (5, 6), (30,), (5, 2, 3, 1), (4, 2, 3), (300, 2, 3)])
def test_an_array_of_another_shape_in_mds_is_named_or_skipped(shape: tuple[int, ...]) -> None:
    good = np.arange(30).reshape(5, 2, 3)
    arrays = [good, good, np.zeros(shape), good]
    source = sources.MDS(_mds_of_experts("ndarray:int16", arrays), tokens="ids")
    with pytest.raises(ContentError):
        list(PackedLoader(dataset(source, **EXPERTS)))
    loader = PackedLoader(dataset(source, **EXPERTS, on_error="skip"))
    found = [
        values.tolist()
        for batch in loader
        for values in batch.fields["experts"][batch.document_ids >= 0].view(-1, 5, 2, 3)
    ]
    assert found == [good.tolist()] * 3
    assert loader.metrics().skipped == 1


@pytest.mark.parametrize("kind", ["Parquet", "Arrow", "MDS"])
def test_the_number_of_tokens_is_estimated_with_several_numbers(kind: str) -> None:
    numbers = np.random.default_rng(0).integers(-(1 << 15), 1 << 15, (200, 50, 64))
    ids = np.random.default_rng(1).integers(0, 1 << 16, (200, 50))
    if kind == "MDS":
        path = _mds_of_experts("ndarray:int16", [*numbers[:, :5]])
    else:
        types = {"ids": pa.list_(pa.uint16()), "experts": pa.list_(pa.list_(pa.int16(), 64))}
        columns = {"ids": ids.tolist(), "experts": numbers.tolist()}
        made = pa.table(columns, pa.schema(types))
        path = f"several.{'parquet' if kind == 'Parquet' else 'feather'}"
        write = pq.write_table if kind == "Parquet" else feather.write_feather
        write(made, path)
    source = sources.open(path, tokens="ids")
    fields = {"token_fields": {"experts": ("int16", (64,))}, "document_fields": None}
    config = dataset(source, **fields).plan.config
    tokens = 1000 if kind == "MDS" else 10_000
    assert 0.7 * tokens < config.source.estimate_tokens() < 1.5 * tokens


def test_blocks_of_mds_end_by_the_bytes_of_several_numbers() -> None:
    path = _mds_of_experts("ndarray:int16", [np.arange(30).reshape(5, 2, 3)] * 40)
    reading = sources.ReadOptions(block_bytes=300, open_shards=1)  # 76 a document
    source = dataset(sources.MDS(path, tokens="ids", reading=reading), **EXPERTS).plan.config.source
    lane = source.lanes(1, seed=0, epoch=0, shuffle=False)[0]
    sizes = [len(block) for block, _ in lane.read(None, ErrorPolicy())]
    assert sizes == [4] * 10


def test_arrays_of_one_shape_in_mds_are_read_without_headers() -> None:
    arrays = [np.arange(30).reshape(5, 2, 3) + i for i in range(9)]
    path = _mds_of_experts("ndarray:int16:5,2,3", arrays)
    loader = PackedLoader(dataset(sources.MDS(path, tokens="ids"), **EXPERTS))
    found = [batch.fields["experts"][batch.document_ids >= 0] for batch in loader]
    expected = np.concatenate(arrays)
    assert torch.cat(found).flatten().sort().values.tolist() == sorted(expected.ravel().tolist())
    other = _mds_of_experts("ndarray:int16:5,3,2", [np.zeros((5, 3, 2))], "other")
    with pytest.raises(ConfigError) as caught:
        dataset(sources.MDS(other, tokens="ids"), **EXPERTS)
    assert caught.value.setting == "token_fields"


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.list_(pa.list_(pa.int16(), 2), 3)),
        pa.list_(pa.list_(pa.int16(), 6)),
        pa.list_(pa.int16()),
        pa.list_(pa.list_(pa.list_(pa.string(), 3), 2)),
        pa.int16(),
    ],
    ids=str,
)
def test_a_column_of_another_shape_is_refused(kind: pa.DataType) -> None:
    table = pa.table({"ids": pa.array([[1, 2]]), "experts": pa.nulls(1, kind)})
    with pytest.raises(ConfigError) as caught:
        dataset(sources.Table(table, tokens="ids"), **EXPERTS)
    assert caught.value.setting == "token_fields"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["Parquet", "MDS"])
def test_a_column_that_is_not_there_or_of_another_kind_is_refused(kind: str) -> None:
    for name, fields in (
        ("absent", "token_fields"),
        ("score", "token_fields"),
        ("place", "document_fields"),
    ):
        options: dict[str, Any] = {"token_fields": None, "document_fields": None}
        options[fields] = {name: "float32"}
        with pytest.raises(ConfigError, match=name):
            dataset(IDS[kind](), **options)
        if kind == "MDS":
            break


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["npz", "raw"])
def test_fields_in_tars_follow_over_lanes_and_a_resume(kind: str) -> None:
    source = IDS[kind]()
    source.reading = sources.ReadOptions(block_documents=7)
    made = dataset(source, lanes=3, batch_size=1)
    loader = PackedLoader(made)
    before = list(islice(loader, 9))
    after = PackedLoader(made)
    after.load_state_dict(loader.state_dict())
    found = 0
    for batch in [*before, *after]:
        place = batch.fields["place"].numpy().ravel()
        for _, start, slots in pieces(batch):
            assert place[slots].tolist() == (start + np.arange(len(slots))).tolist()
            found += len(slots)
    assert found == sum(LENGTHS)


@pytest.mark.parametrize("form", ["lines", "parquet", "table", "items"])
def test_of_several_texts_the_advice_names_none_and_of_one_it_names_that(
    form: str, tmp_path: Path
) -> None:
    def source(record: dict[str, Any]) -> Any:
        if form == "items":
            return [record]
        if form == "lines":
            return str(write_lines(tmp_path / "a.jsonl", [record]))
        table = pa.Table.from_pylist([record])
        if form == "table":
            return table
        pq.write_table(table, tmp_path / "a.parquet")
        return str(tmp_path / "a.parquet")

    stack = {"hexsha": "0f" * 20, "size": 8, "ext": "py", "content": "import streampack\n"}
    with pytest.raises(ConfigError) as caught:
        sources.open(source(stack)).prepare()
    assert not any(f"={name!r}" in caught.value.remedy for name in stack)
    one = {"id": 3, "size": 8, "content": "import streampack\n"}
    with pytest.raises(ConfigError) as caught:
        sources.open(source(one)).prepare()
    assert "text='content'" in caught.value.remedy
    sources.open(source(one), text="content").prepare()
