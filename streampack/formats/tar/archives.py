"""The content of an archive, which may be compressed, and its size."""

from __future__ import annotations

import io
from collections.abc import Callable, Hashable
from contextlib import suppress

from streampack.file_info import FileInfo
from streampack.formats.tar.headers import is_header
from streampack.keep_last import KeepLast
from streampack.storage.decoded import shared_bytes
from streampack.storage.decompression import DamagedError, codec_of, placed_chunks
from streampack.storage.files import LEAST_BYTES, StoredFile
from streampack.storage.storage import Storage

_CODECS = {"gz": "gz", "tgz": "gz", "bz2": "bz2", "tbz2": "bz2", "zst": "zstd", "tzst": "zstd"}
#: Stored bytes at the beginning of an archive by which the size of its content is expected.
FIRST_BYTES = 1 << 20
_PART_BYTES = 64 << 10  # so that the buffers of a decoder make no difference

_expected: KeepLast[Hashable, int] = KeepLast(4096)


def content_of(
    storage: Storage, file: StoredFile, *, as_it_comes: bool = False
) -> tuple[StoredFile, int, Callable[[], str]]:
    """Return an archive, decompressed, its size, at least 1, and the wait of `shared_bytes`.

    Args:
        storage: storage with the cache.
        file: the archive.
        as_it_comes: True returns the size that is expected; otherwise all of it is decompressed
            first.
    """
    head = file.array(0, 512)
    codec = codec_of(head[:8].tobytes())
    if codec is None or is_header(head):  # a name may begin like compressed data
        return file, max(file.num_bytes, 1), lambda: ""
    content, fault = shared_bytes(storage, file, codec)
    size = content.num_bytes
    if size < 0 and as_it_comes:
        size = _expected.keep(file.version, lambda: _expected_bytes(file, codec))
    elif size < 0:
        fault()  # until the size is known
        size = content.num_bytes
    return content, max(size, 1), fault


def named_codec(path: str) -> str | None:
    """Return the compression of an archive by its name."""
    return _CODECS.get(path.lower().rpartition(".")[2])


def is_read_as_it_comes(file: FileInfo) -> bool:
    """Return True for an archive that may be cut by the size that is expected of its content."""
    return file.num_bytes >= LEAST_BYTES and named_codec(file.path) is not None


def _expected_bytes(file: StoredFile, codec: str) -> int:
    """Return the size that the content has if all of it is compressed like its beginning.

    Any size gives parts that have each sample once; a wrong one makes them unequal.
    """
    stored, size = file.read(0, FIRST_BYTES), 0
    with suppress(DamagedError):  # expected: the beginning of a larger file ends too early
        for _, chunk in placed_chunks(io.BytesIO(stored), codec):
            size += len(chunk)
    return max(size - size % _PART_BYTES, len(stored)) * file.num_bytes // len(stored)
