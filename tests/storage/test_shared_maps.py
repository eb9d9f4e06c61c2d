"""A block of a remote file is mapped once in a process, however many read it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from streampack.storage.blocks import BLOCK_BYTES
from streampack.storage.storage import Storage
from tests.support.servers import HTTPServer

DATA = np.random.default_rng(2).bytes(3 * BLOCK_BYTES)


@pytest.fixture
def url(http: HTTPServer) -> str:
    (http.folder / "a.bin").write_bytes(DATA)
    return f"{http.url}/a.bin"


def test_readers_of_a_block_share_its_map(http: HTTPServer, storage: Storage, url: str) -> None:
    with storage.open(url) as file:
        file.read(0, len(DATA))
    with storage.open(url) as one, storage.open(url) as other:
        first, second = one.array(0, 9), other.array(5, 20)
        assert np.shares_memory(first, second)
        assert second.tobytes() == DATA[5:20]


def test_a_block_that_was_forgotten_is_fetched_although_another_reader_maps_it(
    http: HTTPServer, storage: Storage, url: str
) -> None:
    with storage.open(url) as file:
        file.read(0, len(DATA))
    with storage.open(url) as one:
        held = one.array(0, 9)
        assert storage.forget(url)
        http.requests.clear()
        with storage.open(url) as other:
            assert other.read(0, 9) == held.tobytes() == DATA[:9]
    assert any(request.range for request in http.requests)


def test_a_closed_file_keeps_no_map(storage: Storage, url: str) -> None:
    with storage.open(url) as file:
        file.read(0, len(DATA))
    assert str(storage.cache_dir) not in Path("/proc/self/maps").read_text()
