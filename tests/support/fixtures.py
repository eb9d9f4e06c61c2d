"""Servers and storages as fixtures, imported by `tests/conftest.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from streampack.remote import failures
from streampack.storage import remote_files
from streampack.storage.storage import Storage
from tests.support.servers import HTTPServer, S3Server, http_server, s3_server


@pytest.fixture(scope="session")
def s3_for_all() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def s3(s3_for_all: S3Server) -> S3Server:
    """A running object store with an empty bucket; started once for all tests."""
    client, bucket = s3_for_all.client, s3_for_all.bucket
    while listed := client.list_objects_v2(Bucket=bucket).get("Contents", []):
        objects = [{"Key": item["Key"]} for item in listed]
        client.delete_objects(Bucket=bucket, Delete={"Objects": objects})
    return s3_for_all


@pytest.fixture
def http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HTTPServer]:
    """A running HTTP server over an empty folder; one without ranges is asked anew soon."""
    monkeypatch.setattr(remote_files, "_ASKED_ANEW_S", (0.01, 0.02))
    folder = tmp_path / "served"
    folder.mkdir()
    with http_server(folder) as server:
        yield server


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """A storage with a cache of its own, which waits little between attempts."""
    monkeypatch.setattr(failures, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(remote_files, "_ASKED_ANEW_S", (0.01, 0.02))
    return Storage(cache_dir=tmp_path / "cache", retries=3, timeout_s=10.0)


@pytest.fixture(autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs keep the lengths of their documents in a folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
