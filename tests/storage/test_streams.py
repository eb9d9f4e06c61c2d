"""A stream starts at the byte that was asked for, whatever kind of file it reads."""

from __future__ import annotations

import io
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from streampack.storage.blocks import BLOCK_BYTES
from streampack.storage.decompression import open_content
from streampack.storage.files import LocalFile, MemoryFile, StoredFile
from streampack.storage.growing import GrowingFile
from streampack.storage.storage import Storage
from tests.support.servers import HTTPServer

DATA = np.random.default_rng(2).bytes(3 * BLOCK_BYTES + 9)


@pytest.fixture(params=["local", "remote", "in memory", "decoded"])
def file(
    request: pytest.FixtureRequest, http: HTTPServer, storage: Storage, tmp_path: Path
) -> StoredFile:
    if request.param == "in memory":
        return MemoryFile(np.frombuffer(DATA, dtype=np.uint8))
    path = http.folder / "a.bin"
    path.write_bytes(DATA)
    if request.param == "local":
        return LocalFile(path)
    if request.param == "remote":
        with storage.open(f"{http.url}/a.bin") as opened:
            return opened

    def copy(file: StoredFile, out: IO[bytes]) -> None:
        with open_content(file, None) as content:
            out.write(content.file.read())

    decoded = storage.decoded(LocalFile(path), "copied", copy)
    assert isinstance(decoded, GrowingFile)
    assert not decoded.fault()
    return decoded


@pytest.mark.parametrize("begin", [0, 1, BLOCK_BYTES + 7, 3 * BLOCK_BYTES + 8, len(DATA)])
def test_a_stream_starts_at_its_beginning_and_reads_on_to_the_end(
    file: StoredFile, begin: int
) -> None:
    with file.stream(begin) as stream:
        assert stream.tell() == begin
        assert stream.read(5) == DATA[begin : begin + 5]
        assert stream.read() == DATA[begin + 5 :]
    with file.stream(begin=begin) as stream:
        assert stream.seek(-begin, io.SEEK_CUR) == 0
        assert stream.read(3) == DATA[:3]


def test_a_range_without_bytes_is_empty_wherever_it_lies(
    file: StoredFile,
) -> None:
    empty = [(9, 2), (9, 9), (BLOCK_BYTES + 9, 2), (len(DATA), len(DATA) + 9), (1 << 40, 1 << 41)]
    assert [file.read(*bounds) for bounds in empty] == [b""] * len(empty)
