"""Servers and storages as fixtures, imported by `tests/conftest.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from streampack.storage.storage import Storage
from tests.support.servers import HTTPServer, S3Server, http_server, s3_server


@pytest.fixture(scope="session")
def s3_for_all() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def s3(s3_for_all: S3Server) -> S3Server:
    """A running object store with an empty bucket; started once for all tests."""
    listed = s3_for_all.client.list_objects_v2(Bucket=s3_for_all.bucket)
    for item in listed.get("Contents", []):
        s3_for_all.client.delete_object(Bucket=s3_for_all.bucket, Key=item["Key"])
    return s3_for_all


@pytest.fixture
def http(tmp_path: Path) -> Iterator[HTTPServer]:
    """A running HTTP server over an empty folder."""
    folder = tmp_path / "served"
    folder.mkdir()
    with http_server(folder) as server:
        yield server


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """A storage with a cache of its own."""
    return Storage(cache_dir=tmp_path / "cache", retries=3, timeout_s=10.0)
