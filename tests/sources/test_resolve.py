"""The source for a path that the caller names no format of."""

from __future__ import annotations

import bz2
import gzip
import json
import re
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from streampack import PackedDataset, sources
from streampack.errors import ConfigError
from streampack.sources.resolve import as_source
from tests.support.corpora import byte_tokenizer, write_mds, write_tar
from tests.support.flat_files import write_datatrove, write_megatron
from tests.support.source_contract import assert_source_contract, read_all

TEXTS = ["a", "größer", "漢字"]
DOCUMENTS = [np.arange(1, n, dtype=np.uint16) for n in (4, 2, 6)]
IDS = [tuple(ids.tolist()) for ids in DOCUMENTS]


def write(path: Path) -> Path:
    """Write texts in the format of the name's ending."""
    if path.suffix.lower() in sources.Parquet.endings:
        pq.write_table(pa.table({"text": TEXTS}), path)
        return path
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
    path.write_bytes(packed(lines, path.name.lower()))
    return path


def packed(data: bytes, name: str) -> bytes:
    """Compress data by the name's ending."""
    if name.endswith("gz"):
        return gzip.compress(data)
    if name.endswith("bz2"):
        return bz2.compress(data)
    zstd = name.endswith(("zst", "zstd"))
    return pa.compress(data, "zstd", asbytes=True) if zstd else data


def remedy(error: ConfigError) -> list[Any]:
    """Make the sources that the remedy spells out."""
    calls = re.findall(r"sources\.\w+\([^()]*\)", error.remedy)
    return [eval(call, {"sources": sources}) for call in calls]


@pytest.mark.parametrize("ending", [*sources.Parquet.endings, *sources.JSONL.endings])
def test_every_ending_of_a_source_that_needs_no_argument_is_known(
    tmp_path: Path, ending: str
) -> None:
    for name in (f"a{ending}", f"B{ending.upper()}"):
        path = write(tmp_path / name)
        for given in (path, str(path), [path], str(tmp_path / f"*{name[1:]}")):
            assert read_all(as_source(given)) == TEXTS
    assert len(read_all(type(as_source(path))(tmp_path))) == 2 * len(TEXTS), "of the directory"


@pytest.mark.parametrize("ending", sources.WebDataset.endings)
def test_tar_shards_are_read_by_the_endings_of_members(tmp_path: Path, ending: str) -> None:
    write_tar(tmp_path / "a.tar", DOCUMENTS)
    content = (tmp_path / "a.tar").read_bytes()
    path = tmp_path / f"b{ending}"
    path.write_bytes(packed(content, ending))
    for given in (path, [str(path)]):
        try:
            source: Any = as_source(given)
        except ConfigError as error:  # Python's tarfile cannot look into it
            assert "zst" in ending
            source = remedy(error)[0]
        assert read_all(source) == IDS


def test_mds_shards_are_read_by_their_index(tmp_path: Path) -> None:
    folder = write_mds(tmp_path, DOCUMENTS, column="tokens")
    for given in (folder, f"{folder}/index.json", Path(folder)):
        source: Any = as_source(given)
        assert read_all(source) == IDS
    with pytest.raises(ConfigError) as raised:
        as_source(f"{folder}/shard.00000.mds").prepare()
    assert raised.value.path == f"{folder}/shard.00000.mds/index.json"


def test_a_folder_is_read_by_the_names_of_its_files(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl")
    write(tmp_path / "b.jsonl.gz")
    (tmp_path / "README.md").write_text("about")
    for given in (tmp_path, str(tmp_path), [str(tmp_path)]):
        assert read_all(as_source(given)) == 2 * TEXTS  # type: ignore[arg-type]


def test_text_files_are_documents_in_any_number_of_lanes(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    texts = [f"document {number}" for number in range(30)]
    for number, text in enumerate(texts):
        (folder / f"{number:02}.txt").write_text(text)
    source: Any = as_source(folder)
    assert isinstance(source, sources.TextFiles)
    assert_source_contract(source, texts)
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    dataset = PackedDataset(folder, seq_len=32, tokenizer=str(tmp_path / "tokenizer.json"))
    assert sum(int(batch.num_documents) for batch in dataset) == 30


def test_strings_that_cannot_be_paths_are_documents() -> None:
    for texts in (["one text", "another"], ["hello"], ["Hello.", "a/b or c"], deque(["a\nb.json"])):
        source: Any = as_source(texts)
        assert isinstance(source, sources.Items)
        assert read_all(source) == list(texts)


def test_arrays_series_and_records_of_one_field_are_read() -> None:
    pandas = pytest.importorskip("pandas")
    for given, expected in (
        (pa.record_batch({"content": TEXTS}), TEXTS),
        (pandas.Series(TEXTS), TEXTS),
        ([{"body": text} for text in TEXTS], TEXTS),
        (np.array([[1, 2], [3, 4]]), [(1, 2), (3, 4)]),
        (torch.tensor([[1, 2], [3, 4]]), [(1, 2), (3, 4)]),
    ):
        source: Any = as_source(given)
        assert read_all(source) == expected, given


def test_datasets_of_hugging_face_are_read_by_their_kind() -> None:
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_dict({"text": TEXTS, "n": [1, 2, 3]})
    source: Any = as_source(whole)
    assert read_all(source) == TEXTS
    stream: Any = as_source(whole.to_iterable_dataset(num_shards=3))
    assert isinstance(stream, sources.HFStream)
    assert stream.max_lanes() == 3
    assert sorted(read_all(stream)) == sorted(TEXTS)
    with pytest.raises(ConfigError, match="'train', 'test'"):
        as_source(datasets.DatasetDict({"train": whole, "test": whole}))


def test_files_of_tokens_require_the_settings_that_they_lack(tmp_path: Path) -> None:
    write_megatron(tmp_path / "m", [[ids] for ids in DOCUMENTS], "uint16")
    datatrove = write_datatrove(tmp_path / "a.ds", DOCUMENTS)
    write_tar(tmp_path / "a.tar", DOCUMENTS)
    for path in (tmp_path / "m", tmp_path / "m.bin", datatrove, tmp_path / "a.tar"):
        assert read_all(sources.open(path)) == IDS
    flat = np.array([one for ids in IDS for one in (*ids, 0)], dtype=np.uint16)
    flat.tofile(tmp_path / "nanogpt.bin")
    np.save(tmp_path / "a.npy", flat)
    for given in ({}, {"eos_id": 0}, {"dtype": "uint16"}):
        with pytest.raises(ConfigError):
            sources.open(tmp_path / "nanogpt.bin", **given)  # type: ignore[arg-type]
    ended = [(*ids, 0) for ids in IDS]
    assert read_all(sources.open(tmp_path / "nanogpt.bin", dtype="uint16", eos_id=0)) == ended
    assert read_all(sources.open(tmp_path / "a.npy", eos_id=0)) == ended


@pytest.mark.parametrize(
    "names",
    [("*.jsonl", "a.jsonl"), ("a.jsonl", "a*"), (".", "a.jsonl"), ("a.jsonl", "{0}/a.jsonl")],
)
def test_a_file_that_two_patterns_find_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.jsonl")
    first, second = (name.format(tmp_path) for name in names)
    with pytest.raises(ConfigError) as caught:
        sources.JSONL([first, second]).prepare()
    assert caught.value.path == str(tmp_path / "a.jsonl")


def test_columns_named_in_the_call_equal_columns_of_sources_open(tmp_path: Path) -> None:
    rows = [
        {"a": text, "b": "x", "ids": ids, "m": [1] * len(ids)}
        for text, ids in zip(TEXTS, IDS, strict=True)
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    data: list[Any] = [str(tmp_path / "a.jsonl"), tmp_path / "a.parquet", rows]
    data += [pa.Table.from_pylist(rows), (dict(row) for row in rows)]
    columns: list[dict[str, Any]] = [{"text": "a"}, {"tokens": "ids", "loss_mask": "m"}]
    for source in data:
        for named in columns[:1] if hasattr(source, "__next__") else columns:
            for make in (PackedDataset, PackedDataset.evaluation):
                options = {"seq_len": 8, "tokenizer": byte_tokenizer(), **named}
                described = make(source, **options)._config.source.describe()
                if not hasattr(source, "__next__"):
                    assert described == sources.open(source, **named).describe()
                assert described["loss_mask"] == named.get("loss_mask")
