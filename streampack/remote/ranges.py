"""Fetch byte ranges of remote files, each checked for its length and the file's version."""

from __future__ import annotations

import io
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from streampack.file_info import FileInfo, replaced
from streampack.remote.clients import Client, asked
from streampack.remote.first_fetch import first_fetch
from streampack.remote.pace import Pace
from streampack.remote.versions import info_from, is_of_store, require_version, version_of
from streampack.remote.wire import Answer

_PART_BYTES = 1 << 20


class Start(NamedTuple):
    """The first bytes of a file, its version and its size."""

    data: bytes
    version: str
    size: int


class Reader(Protocol):
    """Requests for the files of one protocol, each a single attempt.

    A method raises `StateError` if a file has another version than it had when it was listed, and
    `OSError` or the errors of a library if other bytes come, or fewer.
    """

    def range(self, listed: FileInfo, start: int, stop: int) -> memoryview | None:
        """Fetch bytes [start, stop) of a file; return None if the server has no ranges."""

    def start(self, url: str, most: int | None) -> Start | None:
        """Fetch the first `most` bytes of a file, or all of it; fewer at its end.

        Return None if an answer does not tell whether it is complete.
        """

    def parts(self, listed: FileInfo) -> Generator[bytes, None, None]:
        """Yield all bytes of a file as they come."""


class OverHttp:
    """Requests of a client.

    Args:
        client: the client.
        version_now: looks up the version of a URL, for an answer that has none, in one attempt.
    """

    def __init__(self, client: Client, version_now: Callable[[str], str]) -> None:
        self._client, self._version_now = client, version_now

    def range(self, listed: FileInfo, start: int, stop: int) -> memoryview | None:
        url, size = listed.path, listed.num_bytes
        asked_for = {"Range": f"bytes={start}-{stop - 1}"}
        with asked(self._client, url, asked_for, listed.version) as answer:
            self._refuse_encoded(answer)
            if answer.status == 206:
                _require_range(answer, start, stop, listed)
            elif answer.length not in (None, size):  # the page of a portal, or of an error
                raise OSError(f"{answer.length} bytes came for a range")
            elif (start, stop) != (0, size):
                return None
            # Before the bytes of a file that is not the listed one.
            is_compared = require_version(listed, version_of(self._client.version(answer)))
            data = _filled(answer, stop - start)
            if not answer.ends():
                raise OSError(f"more than {stop - start} bytes came")
        if not is_compared:
            self._check_now(listed)
        return data

    def start(self, url: str, most: int | None) -> Start:
        asked_for = {} if most is None else {"Range": f"bytes=0-{most - 1}"}
        with asked(self._client, url, asked_for) as answer:
            size = info_from(url, {"size": self._client.size(answer)}).num_bytes
            stop = size if most is None else min(most, size)
            if answer.status == 206:
                _require_range(answer, 0, stop)
            data = _filled(answer, stop)
            if answer.status == 206 and not answer.ends():
                raise OSError(f"more than {stop} bytes came")
            return Start(data.tobytes(), version_of(self._client.version(answer)), size)

    def parts(self, listed: FileInfo) -> Generator[bytes, None, None]:
        with asked(self._client, listed.path, {}, listed.version) as answer:
            self._refuse_encoded(answer)
            require_version(listed, version_of(self._client.version(answer)))
            yield from _exactly(listed, answer.parts())
        self._check_now(listed)  # the file may have been written over while it came

    def _refuse_encoded(self, answer: Answer) -> None:
        """Raise an error for bytes that are compressed in transfer, so that no size is known."""
        coding = answer.headers.get("Content-Encoding", "identity")
        if coding != "identity" and self._client.size(answer) is None:
            raise OSError(f"the bytes are of an encoding in transfer, {coding}")

    def _check_now(self, listed: FileInfo) -> None:
        if is_of_store(listed.version):
            require_version(listed, self._version_now(listed.path))


def _require_range(answer: Answer, start: int, stop: int, listed: FileInfo | None = None) -> None:
    """Raise an error for a range of other bytes, for several, or for a file of another size."""
    declared = ", ".join(answer.headers.get_all("Content-Range", []))
    sent, _, total = declared.lower().partition("/")
    if listed and total.isdecimal() and int(total) != listed.num_bytes:
        raise replaced(listed.path, f"{listed.num_bytes} bytes", f"{total} bytes")
    is_several = "," in declared or answer.headers.get_content_type() == "multipart/byteranges"
    if is_several or sent != f"bytes {start}-{stop - 1}":
        raise OSError(f"bytes {start}-{stop - 1} were asked for and {declared or 'others'} came")


def _filled(answer: Answer, num_bytes: int) -> memoryview:
    data = np.empty(num_bytes, np.uint8).data
    came = answer.fill(data)
    if came != num_bytes:
        raise OSError(f"{came} bytes came instead of {num_bytes}")
    return data


class OverFsspec:
    """Reads by any file system of fsspec; the version is looked up after each range."""

    def __init__(self, filesystem: Any, pace: Pace, version_now: Callable[[str], str]) -> None:
        self._filesystem, self._pace, self._version_now = filesystem, pace, version_now
        # fsspec would otherwise read beyond the range.
        self._options: dict[str, Any] = {} if filesystem.async_impl else {"cache_type": "none"}

    def range(self, listed: FileInfo, start: int, stop: int) -> memoryview | None:
        size, bounds = stop - start, {"start": start, "end": stop, **self._options}
        try:
            data = self._pace.call(
                self._filesystem, "cat_file", listed.path, num_bytes=size, **bounds
            )
        except (NotImplementedError, io.UnsupportedOperation):
            return None
        first_fetch().add(len(data))
        if len(data) == listed.num_bytes != size:
            return None
        if len(data) != size:
            raise OSError(f"{len(data)} bytes came instead of {size}")
        self._check(listed)
        return memoryview(data)

    def start(self, url: str, most: int | None) -> Start | None:
        return None

    def parts(self, listed: FileInfo) -> Generator[bytes, None, None]:
        self._check(listed)
        yield from _exactly(listed, self._chunks(listed.path))
        self._check(listed)

    def _chunks(self, url: str) -> Iterator[bytes]:
        with self._filesystem.open(url, "rb") as file:
            while data := file.read(_PART_BYTES):
                first_fetch().add(len(data))
                yield data

    def _check(self, listed: FileInfo) -> None:
        require_version(listed, self._version_now(listed.path))


def _exactly(listed: FileInfo, parts: Iterator[bytes]) -> Iterator[bytes]:
    size, came = listed.num_bytes, 0
    for data in parts:
        came += len(data)
        if came > size:
            break
        yield data
    if came != size:
        more = "more than " if came > size else ""
        raise OSError(f"{more}{came} of {size} bytes arrived")
