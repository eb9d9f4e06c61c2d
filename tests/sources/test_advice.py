"""Errors with a call or a name as their remedy, which works: each test follows it."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from streampack import sources
from streampack.errors import ConfigError, ContentError
from streampack.sources.error_policy import ErrorPolicy
from tests.support.source_contract import read_all

TEXTS = ["one", "two", "three"]
TABLE = pa.table({"text": TEXTS})
LINES = b"".join(b'{"text": "%s"}\n' % text.encode() for text in TEXTS)


def lazy_frame(_: Path) -> Any:
    return pytest.importorskip("polars").DataFrame({"text": TEXTS}).lazy()


LAZY: dict[str, Callable[[Path], Any]] = {
    "dataset": lambda file: pyarrow.dataset.dataset(str(file)),
    "scanner": lambda file: pyarrow.dataset.dataset(str(file)).scanner(),
    "ParquetFile": lambda file: pq.ParquetFile(file),
    "RecordBatchReader": lambda _: TABLE.to_reader(),
    "LazyFrame": lazy_frame,
}


def advised(error: ConfigError) -> str:
    """Return the last call in a remedy."""
    return str(re.findall(r"(?:sources|datasets)\.\w+\(.*\)", error.remedy)[-1])


@pytest.mark.parametrize("kind", LAZY)
def test_objects_without_rows_are_refused_with_the_call_that_gives_them(
    kind: str, tmp_path: Path
) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    data = LAZY[kind](tmp_path / "a.parquet")
    for refuse in (sources.open, sources.Table):
        with pytest.raises(ConfigError) as caught:
            refuse(data)
        assert caught.value.setting == "data"
    source = eval(advised(caught.value), {"sources": sources, "data": data})
    assert read_all(source) == TEXTS
    if kind == "dataset":
        assert "data.files" in caught.value.remedy
        assert read_all(sources.open(data.files)) == TEXTS


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_a_table_of_text_is_converted_by_the_errors_advice(ending: str, tmp_path: Path) -> None:
    path, mark = tmp_path / f"a{ending}", {".csv": ",", ".tsv": "\t"}[ending]
    path.write_text("".join(f"{i}{mark}{text}\n" for i, text in enumerate(["text", *TEXTS])))
    for named in (path, tmp_path):
        with pytest.raises(ConfigError) as caught:
            sources.open(named)
        assert caught.value.path == str(named)
        exec(caught.value.remedy.partition("\n")[2])
        assert read_all(sources.open(tmp_path / "a.parquet", text="text")) == TEXTS
        (tmp_path / "a.parquet").unlink()


@pytest.mark.parametrize("name", ["wikitext", "HuggingFaceFW/fineweb-2"])
def test_a_name_of_the_hub_names_the_call_that_loads_it(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sources.open(name)
    assert f'datasets.load_dataset("{name}", split="train")' in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("b.jsonl", gzip.compress(LINES)),
        ("b.jsonl.zst", gzip.compress(LINES)),
        ("b.jsonl.gz", LINES),
    ],
    ids=["plain, is gzip", "zstd, is gzip", "gzip, is plain"],
)
def test_json_lines_that_are_named_otherwise_are_named_and_read_once_they_are_renamed(
    name: str, content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        sources.open(path)
    assert caught.value.path == str(path)
    (new,) = re.findall('"(.*)"', caught.value.remedy)
    (tmp_path / "a.jsonl").write_bytes(LINES)  # and where it is not the first file
    with pytest.raises(ContentError) as broken:
        read_all(sources.open(tmp_path))
    assert broken.value.path == str(path)
    skips = ErrorPolicy("skip")
    assert read_all(sources.open(tmp_path), skips) == TEXTS
    assert skips.counts.skipped == 1
    path.rename(tmp_path / new)
    assert read_all(sources.open(tmp_path)) == TEXTS * 2


def test_a_text_file_that_is_compressed_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(gzip.compress(b"text"))
    with pytest.raises(ContentError, match="compressed"):
        read_all(sources.open(tmp_path))
