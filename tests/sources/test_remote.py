"""Every format is read from buckets and web servers, through the cache, as from a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streampack import sources
from streampack.storage.storage import Storage
from tests.support.every_source import SOURCES
from tests.support.servers import HTTPServer, S3Server
from tests.support.source_contract import assert_source_contract, read_all

#: Opens a format at a URL, and the file's name if the URL of a file is needed.
REMOTE: dict[str, tuple[Callable[..., Any], str]] = {
    "mds-zstd": (sources.MDS, "mds"),
    "tar": (lambda url, **o: sources.WebDataset(url, tokens="npy", **o), "{0,1}.tar"),
    "tar-gz": (lambda url, **o: sources.WebDataset(url, tokens="npy", **o), "{0,1}.tar.gz"),
    "parquet-tokens": (lambda url, **o: sources.Parquet(url, tokens="ids", **o), "ids.parquet"),
    "arrow-stream": (lambda url, **o: sources.Arrow(url, tokens="ids", **o), "a.arrow"),
    "jsonl": (sources.JSONL, "texts.jsonl"),
    "jsonl-gz": (sources.JSONL, "{0,1}.jsonl.gz"),
    "megatron": (sources.MegatronIndexed, "a.bin"),
    "npy": (lambda url, **o: sources.Tokens(url, eos_id=250, **o), "{0,1}.npy"),
    "datatrove": (sources.Tokens, "a.ds"),
    "chat": (sources.Chat, "chat.jsonl"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "kind", ["mds-zstd", "tar", "parquet-tokens", "jsonl-gz", "megatron", "npy", "chat"]
)
def test_a_bucket_gives_the_documents_of_the_folder(
    kind: str, tmp_path: Path, s3: S3Server, storage: Storage
) -> None:
    local = tmp_path / "local"
    local.mkdir()
    expected = read_all(SOURCES[kind](local))
    url = s3.put_folder(local, f"remote-{kind}")
    make, name = REMOTE[kind]
    reading = sources.ReadOptions(block_documents=9)
    for place in (f"{url}/{name}", *([] if name == "mds" else [url])):
        source = make(place, storage=storage, reading=reading)
        assert read_all(source) == expected
    if kind == "tar":
        assert_source_contract(source, expected, lane_counts=(1, 3), restarts=2)  # type: ignore[arg-type]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", REMOTE)
def test_a_web_server_gives_the_documents_of_the_folder_although_connections_break(
    kind: str, http: HTTPServer, storage: Storage
) -> None:
    expected = read_all(SOURCES[kind](http.folder))
    http.cut_next = 1
    make, name = REMOTE[kind]
    assert read_all(make(f"{http.url}/{name}", storage=storage)) == expected
