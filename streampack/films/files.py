"""Films by reference: their heads, and their sampled frames.

PyAV decodes. It is given open files of few formats, because FFmpeg would follow playlists.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.extras import missing_package
from streampack.films.boxes import FIRST_BYTES, film_size
from streampack.films.size import FilmSize, UncountedError
from streampack.images.images import BrokenImageError, is_remote, named_failures
from streampack.storage.storage import Storage

#: Names of FFmpeg for formats, by a kind of their first bytes.
_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot")
_READ_BYTES = 1 << 20


def require_av() -> Any:
    """Return PyAV; raise `MissingPackageError` without it."""
    try:
        import av
    except ImportError as error:
        raise missing_package("av", "video") from error
    return av


class _File(io.RawIOBase):
    """A film as a seekable file."""

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


def _format(start: bytes) -> str:
    """Return FFmpeg's name of a format by the first bytes of a file.

    Raises:
        UncountedError: it is of another format.
    """
    if start[4:8] in _BOXES:
        return "mov"
    if start[:4] == b"\x1aE\xdf\xa3":
        return "matroska"
    if start[:4] == b"RIFF" and start[8:12] == b"AVI ":
        return "avi"
    raise UncountedError("is not an mp4, mov, webm, mkv or avi file")


def size_of(reference: bytes | str, storage: Storage, *, count_packets: bool = False) -> FilmSize:
    """Return the size of a film from the head of its file.

    Args:
        count_packets: read files whole if their heads do not count the frames.

    Raises:
        BrokenImageError: the file is missing, damaged, or its head does not count the frames.
        StorageError: the file could not be read; a retry may succeed.
    """
    with named_failures(reference):
        file = _File(reference, storage)
        try:
            kind = _format(file.part(0, min(12, file.num_bytes)))
            if kind != "mov":
                raise UncountedError(f"is {kind}, and its head does not count the frames")
            return film_size(file.part, file.num_bytes)
        except UncountedError as error:
            if not count_packets:
                advice = "name its sizes by sizes=, or pass count='packets' to read it whole"
                raise BrokenImageError(f"it {error}; {advice}") from error
        return _counted(file)


def _counted(file: _File) -> FilmSize:
    """Return the size of a film by the number of its packets; one frame is decoded."""
    with _opened(file) as (container, stream):
        frame = next(container.decode(stream))
        height, width = frame.height, frame.width
        if frame.rotation % 180:
            height, width = width, height
        container.seek(0)
        frames = sum(
            1 for packet in container.demux(stream) if packet.size and not packet.is_discard
        )
        rate = stream.average_rate or stream.guessed_rate
    if not rate:
        raise BrokenImageError("it tells no frames per second; name its sizes by sizes=")
    return FilmSize.of(frames, height, width, rate)


@contextmanager
def _opened(file: _File) -> Iterator[tuple[Any, Any]]:
    """Open a film and its first video stream; errors of FFmpeg become `BrokenImageError`."""
    av = require_av()
    try:
        kind = _format(file.part(0, min(12, file.num_bytes)))
        buffered = io.BufferedReader(file, _READ_BYTES)
        with av.open(buffered, format=kind) as container:
            stream = next(iter(container.streams.video), None)
            if stream is None or stream.codec_context is None:  # PyAV would end the process
                raise BrokenImageError("it has no video track of a known codec")
            yield container, stream
    except av.FFmpegError as error:
        raise BrokenImageError(f"{type(error).__name__}: {error}"[:200]) from error


def frames_of(
    reference: bytes | str, size: FilmSize, indices: Sequence[int], storage: Storage | None
) -> NDArray[np.uint8]:
    """Decode frames of a film.

    Args:
        size: planned size of the film.
        indices: N indices of frames, in the order in which they are shown.

    Returns:
        (N, height, width, 3) RGB values, turned as they are shown.

    Raises:
        BrokenImageError: the film cannot be decoded, or is not of the planned size.
        StorageError: the file could not be read; a retry may succeed.
    """
    wanted, last = {*indices}, max(indices)
    kept: dict[int, NDArray[np.uint8]] = {}
    with named_failures(reference), _opened(_File(reference, storage or Storage())) as opened:
        container, stream = opened
        rate = stream.average_rate
        if rate and abs(float(rate) / size.fps - 1) > 0.02:
            raise BrokenImageError(f"{float(rate):.6g} frames per second, not {size.fps:.6g}")
        number = -1
        with suppress(StopIteration):
            for number, frame in enumerate(container.decode(stream)):
                if number > last:
                    break
                if number in wanted:
                    kept[number] = _upright(frame, size)
        if number < last or number >= size.frames:
            raise BrokenImageError(f"{number + 1} frames or more, not {size.frames}")
    return np.stack([kept[index] for index in indices])


def _upright(frame: Any, size: FilmSize) -> NDArray[np.uint8]:
    """Return a frame's RGB values as it is shown; raise `BrokenImageError` for another size."""
    if frame.is_corrupt:
        raise BrokenImageError("a frame is damaged")
    turned: NDArray[np.uint8] = np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90)
    if turned.shape[:2] != (size.height, size.width):
        height, width = turned.shape[:2]
        raise BrokenImageError(f"{width} x {height} pixels, not {size.width} x {size.height}")
    return turned
