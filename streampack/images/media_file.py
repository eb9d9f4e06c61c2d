"""Files of films and sounds, which PyAV decodes.

It is given open files of few formats, because FFmpeg would follow playlists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from streampack.extras import missing_package
from streampack.file_info import Range
from streampack.images.images import BrokenImageError, is_remote, named_failures
from streampack.storage.files import StoredFile
from streampack.storage.storage import Storage

S = TypeVar("S")

#: Bytes of the first read, in which most heads lie.
FIRST_BYTES = 64 << 10
#: Bytes that are read at a time.
_MOST_HELD = 4 << 20
#: Kind of a box without content.
_FREE = b"free"


class UncountedError(ValueError):
    """The head of a file does not tell its frames or samples; the message has the reason."""


def require_av() -> Any:
    """Return PyAV; raise `MissingPackageError` without it."""
    try:
        import av
    except ImportError as error:
        raise missing_package("av", "video") from error
    return av


class MediaFile:
    """The file of a medium, as a seekable file of bytes in memory, on a disk or in a store.

    Args:
        reference: bytes, path or URL of the file.
        storage: access to files.
        file: the open file, which is read by blocks that are cached and fetched ahead. Without it
            parts are read by themselves, as for a head.

    Attributes:
        num_bytes: size of the file.
        declared: bytes [start, stop) that will be read, in order.
    """

    def __init__(
        self, reference: bytes | str, storage: Storage, file: StoredFile | None = None
    ) -> None:
        self._reference, self._storage, self._file = reference, storage, file
        self._at, self._first = 0, b""
        self._held_at, self._held = 0, b""
        self.declared: list[tuple[int, int]] = []
        self._hidden: Sequence[int] = ()
        if file is not None:
            self.num_bytes = file.num_bytes
            return
        if is_remote(reference):  # the first answer tells the size, too
            self._first = storage.remote.read_start(str(reference), FIRST_BYTES)
        self.num_bytes = len(reference) if isinstance(reference, bytes) else storage.size(reference)

    def part(self, start: int, stop: int) -> bytes:
        """Return bytes [start, stop)."""
        if self._file is not None:
            return self._file.read(start, min(stop, self.num_bytes))
        if isinstance(self._reference, bytes):
            return self._reference[start:stop]
        if stop <= len(self._first):
            return self._first[start:stop]
        return self._storage.read_range(self._reference, start, min(stop, self.num_bytes))

    def declare(self, parts: list[tuple[int, int]], others: Sequence[int] = ()) -> None:
        """Declare the bytes that the decoder will get, to be fetched ahead.

        Args:
            parts: bytes [start, stop), in the order of reading; others can be read, too.
            others: places of the kinds of boxes that the decoder is not to see, such as tracks of
                sound, because it would read their packets.
        """
        self.declared, self._hidden = parts, others
        if self._file is not None:
            self._file.plan(parts)

    def declare_all(self) -> None:
        """Declare that the file is read from its begin to its end."""
        self.declare([(0, self.num_bytes)])

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to a byte."""
        self._at = max(offset + (0, self._at, self.num_bytes)[whence], 0)
        return self._at

    def tell(self) -> int:
        """Return the next byte to read."""
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, at most `size`, and none behind the declared part around them.

        Of a declared part more is read at a time.
        """
        at, stop = self._at, self.num_bytes if size < 0 else min(self._at + size, self.num_bytes)
        ends = [end for start, end in self.declared if start <= at < end]
        if not self._held_at <= at < self._held_at + len(self._held):
            most = min([*ends, at + _MOST_HELD]) if ends else stop
            self._held_at, self._held = at, self.part(at, most) if at < most else b""
        data = self._held[at - self._held_at : min([stop, *ends]) - self._held_at]
        for place in self._hidden:
            if at - len(_FREE) < place < at + len(data):
                shown = bytearray(data)
                for i, byte in enumerate(_FREE, place - at):
                    if 0 <= i < len(shown):
                        shown[i] = byte
                data = bytes(shown)
        self._at += len(data)
        return data

    @property
    def start(self) -> bytes:
        """The first bytes, which tell the format."""
        return self.part(0, min(12, self.num_bytes))


@contextmanager
def media_file(reference: bytes | str, storage: Storage) -> Iterator[MediaFile]:
    """Open a file to decode it."""
    if isinstance(reference, bytes):
        yield MediaFile(reference, storage)
        return
    with storage.open(reference) as file:
        try:
            yield MediaFile(reference, storage, file)
        finally:
            if is_remote(reference):
                storage.remote.fetcher.plans.drop(_key(reference))


def fetch_ahead(url: str, storage: Storage, declare: Callable[[MediaFile], None]) -> None:
    """Let threads fetch the bytes of a file by URL that will be decoded.

    Args:
        declare: declares the bytes; threads call it.
    """

    def ranges() -> Iterator[Range]:
        with storage.open(url) as file:
            media = MediaFile(url, storage, file)
            declare(media)
            for start, stop in media.declared:
                yield Range(storage.remote.listed(url), start, stop)

    storage.plan(_key(url), [ranges()], 1, later=True)


def _key(url: str) -> tuple[str, str]:
    return "media", url


@contextmanager
def opened(file: MediaFile, form: str, kind: str) -> Iterator[tuple[Any, Any]]:
    """Open a file and its first stream of a kind; errors of FFmpeg become `BrokenImageError`.

    Args:
        form: FFmpeg's name of the format.
        kind: "video" or "audio".
    """
    av = require_av()
    file.seek(0)
    try:
        with av.open(file, format=form) as container:
            stream = next(iter(getattr(container.streams, kind)), None)
            if stream is None or stream.codec_context is None:  # PyAV would end the process
                raise BrokenImageError(f"it has no {kind} track of a known codec")
            stream.thread_type = "NONE"  # threads of slices would not tell damage
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
        with media_file(reference, storage) as whole:
            whole.declare_all()
            return counted(whole)
