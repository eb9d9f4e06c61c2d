"""Files of films and sounds, which PyAV decodes.

It is given open files of few formats, because FFmpeg would follow playlists.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from streampack.extras import missing_package
from streampack.images.images import BrokenImageError, is_remote, named_failures
from streampack.storage.storage import Storage

S = TypeVar("S")

#: Bytes of the first read, in which most heads lie.
FIRST_BYTES = 64 << 10
_READ_BYTES = 1 << 20


class UncountedError(ValueError):
    """The head of a file does not tell its frames or samples; the message has the reason."""


def require_av() -> Any:
    """Return PyAV; raise `MissingPackageError` without it."""
    try:
        import av
    except ImportError as error:
        raise missing_package("av", "video") from error
    return av


class MediaFile(io.RawIOBase):
    """The file of a medium, as a seekable file of bytes in memory, on a disk or in a store."""

    def __init__(self, reference: bytes | str, storage: Storage) -> None:
        self._reference, self._storage, self._at, self._first = reference, storage, 0, b""
        if is_remote(reference):  # the first answer tells the size, too
            self._first = storage.remote.read_start(str(reference), FIRST_BYTES)
        self.num_bytes = len(reference) if isinstance(reference, bytes) else storage.size(reference)

    def part(self, start: int, stop: int) -> bytes:
        """Return bytes [start, stop)."""
        if isinstance(self._reference, bytes):
            return self._reference[start:stop]
        if stop <= len(self._first):
            return self._first[start:stop]
        return self._storage.read_range(self._reference, start, min(stop, self.num_bytes))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(offset + (0, self._at, self.num_bytes)[whence], 0)
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self.part(self._at, min(self._at + len(buffer), self.num_bytes))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    @property
    def start(self) -> bytes:
        """The first bytes, which tell the format."""
        return self.part(0, min(12, self.num_bytes))


@contextmanager
def opened(file: MediaFile, form: str, kind: str) -> Iterator[tuple[Any, Any]]:
    """Open a file and its first stream of a kind; errors of FFmpeg become `BrokenImageError`.

    Args:
        form: FFmpeg's name of the format.
        kind: "video" or "audio".
    """
    av = require_av()
    try:
        with av.open(io.BufferedReader(file, _READ_BYTES), format=form) as container:
            stream = next(iter(getattr(container.streams, kind)), None)
            if stream is None or stream.codec_context is None:  # PyAV would end the process
                raise BrokenImageError(f"it has no {kind} track of a known codec")
            yield container, stream
    except av.FFmpegError as error:
        raise BrokenImageError(f"{type(error).__name__}: {error}"[:200]) from error


def size_in(
    reference: bytes | str,
    storage: Storage,
    in_head: Callable[[MediaFile], S],
    counted: Callable[[MediaFile], S],
    *,
    count_packets: bool,
) -> S:
    """Return the size of a film or a sound from the head of its file.

    Args:
        in_head: returns the size in the head, or raises `UncountedError`.
        counted: returns the size by all packets.
        count_packets: read files whole if their heads do not tell the size.

    Raises:
        BrokenImageError: the file is missing, damaged, or its head does not tell the size.
        StorageError: the file could not be read; a retry may succeed.
    """
    with named_failures(reference):
        file = MediaFile(reference, storage)
        try:
            return in_head(file)
        except UncountedError as error:
            if not count_packets:
                advice = "name its sizes by sizes=, or pass count='packets' to read it whole"
                raise BrokenImageError(f"it {error}; {advice}") from error
        return counted(file)
