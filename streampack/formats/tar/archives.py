"""The content of an archive, which may be compressed, and its size."""

from __future__ import annotations

from collections.abc import Callable

from streampack.formats.tar.headers import is_header
from streampack.storage.decoded import shared_bytes
from streampack.storage.decompression import codec_of
from streampack.storage.file_info import FileInfo
from streampack.storage.files import LEAST_BYTES, StoredFile
from streampack.storage.storage import Storage

_CODECS = {"gz": "gz", "tgz": "gz", "bz2": "bz2", "tbz2": "bz2", "zst": "zstd", "tzst": "zstd"}


def content_of(
    storage: Storage, file: StoredFile, *, by_declared_size: bool = False
) -> tuple[StoredFile, int, Callable[[], str]]:
    """Return an archive, decompressed, its size, at least 1, and the wait of `shared_bytes`.

    Args:
        storage: storage with the cache.
        file: the archive.
        by_declared_size: True takes the size that the last bytes of a gz file declare, so that it
            is read as it comes; others are complete first.
    """
    head = file.array(0, 512)
    codec = codec_of(head[:8].tobytes())
    if codec is None or is_header(head):  # a name may begin like compressed data
        return file, max(file.num_bytes, 1), lambda: ""
    content, fault = shared_bytes(storage, file, codec)
    size = content.num_bytes
    if size < 0 and by_declared_size and codec == "gz":
        size = _declared_size(file)
    if size < 0:
        fault()  # until the size is known
        size = content.num_bytes
    return content, max(size, 1), fault


def named_codec(path: str) -> str | None:
    """Return the compression of an archive by its name."""
    return _CODECS.get(path.lower().rpartition(".")[2])


def is_declared(file: FileInfo) -> bool:
    """Return True for an archive that may be cut by the size that its last bytes declare."""
    return file.num_bytes >= LEAST_BYTES and named_codec(file.path) == "gz"


def _declared_size(file: StoredFile) -> int:
    """Return the size of the content of a gz file, as declared at its end; -1 if it cannot be.

    Of several members only the last is counted, and sizes are modulo 2**32. Any size gives parts
    that have each sample once; a wrong one makes them unequal.
    """
    size = int.from_bytes(file.read(file.num_bytes - 4, file.num_bytes), "little")
    return size if size >= file.num_bytes - file.num_bytes // 64 else -1
