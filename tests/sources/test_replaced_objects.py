"""An object that is replaced during a run is an error that names it, even if its size stays."""

from __future__ import annotations

import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampack.errors import StateError
from streampack.sources import JSONL, Parquet, WebDataset
from streampack.sources.sharded import ShardedSource
from streampack.storage.storage import Storage
from tests.support.corpora import write_tar
from tests.support.servers import HTTPServer, S3Server
from tests.support.small_blocks import small_blocks
from tests.support.source_contract import read_all


def _lines(path: Path, value: int) -> Callable[[str, Storage], ShardedSource]:
    path.write_text(f'{{"ids": [{value}, {value}]}}\n' * 20)
    return lambda url, storage: JSONL(url, tokens="ids", storage=storage)


def _tar(path: Path, value: int) -> Callable[[str, Storage], ShardedSource]:
    write_tar(path, [np.full(3, value, dtype=np.uint16)] * 20)
    return lambda url, storage: WebDataset(url, tokens="npy", storage=storage)


def _parquet(path: Path, value: int) -> Callable[[str, Storage], ShardedSource]:
    pq.write_table(pa.table({"ids": [[value, value]] * 20}), path)
    return lambda url, storage: Parquet(url, tokens="ids", storage=storage)


@pytest.mark.sampled("each")
@pytest.mark.parametrize(
    ("write", "how"),
    [
        (_tar, "named"),
        (_parquet, "named"),
        (_lines, "folder"),
        (_lines, "glob"),
        pytest.param(_lines, "many", marks=pytest.mark.slow),
    ],
)
def test_an_object_replaced_after_it_was_listed_is_named(
    tmp_path: Path, s3: S3Server, storage: Storage, write: Callable[..., object], how: str
) -> None:
    name = {_lines: "a.jsonl", _tar: "a.tar", _parquet: "a.parquet"}[write]  # type: ignore[index]
    make = write(tmp_path / name, 1)
    first = (tmp_path / name).read_bytes()
    url = s3.put(f"c/{name}", first)
    pattern = {"named": url, "folder": "s3://bucket/c", "glob": "s3://bucket/c/a*"}.get(how, url)
    source: ShardedSource = make(pattern, storage)  # type: ignore[operator]
    if how == "many":
        stem = f"s3://bucket/c/{{000..299}}-{name}"
        for i in range(300):
            s3.put(f"c/{i:03d}-{name}", first)
        source = make(stem, storage)  # type: ignore[operator]
        url = f"s3://bucket/c/000-{name}"
    source.prepare()
    write(tmp_path / name, 2)
    assert (tmp_path / name).stat().st_size == len(first)
    s3.put(url.removeprefix("s3://bucket/"), (tmp_path / name).read_bytes())
    assert storage.cache_dir is not None
    shutil.rmtree(storage.cache_dir, ignore_errors=True)
    with pytest.raises(StateError, match=re.escape(url)):
        read_all(pickle.loads(pickle.dumps(source)))  # as in a process of another host


def test_an_object_replaced_while_it_is_downloaded_is_not_read(
    http: HTTPServer, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_blocks(monkeypatch.setattr)
    make = _lines(http.folder / "a.jsonl", 1)
    source = make(f"{http.url}/a.jsonl", storage)
    http.ranges = False
    source.prepare()
    assert storage.cache_dir is not None
    shutil.rmtree(storage.cache_dir, ignore_errors=True)
    http.gate = lambda _: _lines(http.folder / "a.jsonl", 2) and None
    with pytest.raises(StateError, match=r"a\.jsonl"):
        read_all(source)


def test_an_object_replaced_after_it_was_read_is_refused_where_it_is_refetched(
    http: HTTPServer, storage: Storage
) -> None:
    make = _lines(http.folder / "a.jsonl", 1)
    source = make(f"{http.url}/a.jsonl", storage)
    expected = read_all(source)
    _lines(http.folder / "a.jsonl", 2)
    assert read_all(source) == expected  # from the cache
    assert storage.cache_dir is not None
    shutil.rmtree(storage.cache_dir, ignore_errors=True)
    with pytest.raises(StateError, match=r"a\.jsonl"):
        read_all(source)
    assert read_all(make(f"{http.url}/a.jsonl", storage)) != expected  # a new run
