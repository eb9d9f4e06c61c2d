"""Compressed files are known by their first bytes, whatever they are called."""

from __future__ import annotations

import bz2
import gzip
import io
from pathlib import Path

import pyarrow as pa
import pytest

from streampack.errors import ContentError
from streampack.sources import JSONL
from streampack.storage.decompression import codec_of, unpack
from streampack.storage.files import LocalFile
from tests.support.source_contract import read_all

CONTENT = b"many lengths " * 10_000
ZSTD = pa.compress(CONTENT, codec="zstd", asbytes=True)
SKIPPABLE = b"\x5a\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"abc"  # a frame without content


@pytest.mark.parametrize(
    ("data", "codec"),
    [
        (gzip.compress(CONTENT[:70_000]) + gzip.compress(CONTENT[70_000:]), "gz"),
        (bz2.compress(CONTENT[:70_000]) + bz2.compress(CONTENT[70_000:]), "bz2"),
        (gzip.compress(CONTENT[:70_000]) + bytes(9) + gzip.compress(CONTENT[70_000:]), "gz"),
        (gzip.compress(CONTENT[:70_000]) + bytes(99_999) + gzip.compress(CONTENT[70_000:]), "gz"),
        (bz2.compress(CONTENT[:70_000]) + bytes(99_999) + bz2.compress(CONTENT[70_000:]), "bz2"),
        (gzip.compress(CONTENT) + bytes(99_999), "gz"),
        (ZSTD, "zstd"),
        (SKIPPABLE + ZSTD, "zstd"),
        (SKIPPABLE + ZSTD + SKIPPABLE, "zstd"),
    ],
    ids=[
        *("gz", "bz2", "gz, few zeros inside", "gz, zeros inside", "bz2, zeros inside"),
        *("gz, zeros behind", "zstd", "skippable frame first", "skippable frames around"),
    ],
)
def test_a_compressed_file_is_known_by_its_first_bytes(
    data: bytes, codec: str, tmp_path: Path
) -> None:
    path = tmp_path / "shard"
    path.write_bytes(data)
    assert codec_of(path.read_bytes()[:8]) == codec
    content = io.BytesIO()
    assert unpack(LocalFile(path), codec, content) == ""
    assert content.getvalue() == CONTENT


def test_other_files_are_taken_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    for data in (b"", b"x", CONTENT):
        path.write_bytes(data)
        assert codec_of(path.read_bytes()[:8]) is None


def test_a_zstd_window_that_is_too_large_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    line = b'{"text": "a"}\n'
    block = (len(line) << 3 | 1).to_bytes(3, "little") + line  # the last one, stored as it is
    for log, fits in ((27, True), (28, False)):
        path.write_bytes(b"\x28\xb5\x2f\xfd" + bytes([0, (log - 10) << 3]) + block)
        source = JSONL(path, text="text")
        if fits:
            assert read_all(source) == ["a"]
            continue
        with pytest.raises(ContentError, match="128 MiB") as caught:
            read_all(source)
        assert caught.value.path == str(path)
