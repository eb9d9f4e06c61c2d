"""Asking for remote files: how slow an answer may be, which version it is of, and another attempt.

Every action runs inside `with_retries`, which sleeps a random time below a doubling bound between
attempts (so that a thousand ranks do not try again together), or longer if the server asks for it,
and raises at once if another attempt cannot help: a file is missing or forbidden, the disk is full.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

from fsspec.asyn import sync
from fsspec.callbacks import Callback

from streampack.errors import StateError, StorageError, StreampackError
from streampack.storage.failures import (
    WORDS,
    TooSlowError,
    failure_of,
    retry_after_s,
    without_secrets,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Fields that differ between versions of a file, by file system; the most reliable first.
VERSION_FIELDS = (
    "ETag",
    "etag",
    "md5Hash",
    "content_md5",
    "Content-MD5",
    "Digest",
    "generation",
    "Last-Modified",
    "LastModified",
    "updated",
    "mtime",
    "created",
    "blob_id",
)
_AND_TIME = "; Last-Modified "

FIRST_WAIT_S = 0.25
LONGEST_WAIT_S = 30.0
LONGEST_RETRY_AFTER_S = 300.0  # of what a server asks for


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file as listed, or looked up.

    Attributes:
        path: absolute local path, or URL.
        num_bytes: its size.
        version: of a remote file, what its store says; see `version_of`.
        ranges: False if a server says that it can only send the whole file.
    """

    path: str
    num_bytes: int
    version: str = field(default="", compare=False)
    ranges: bool = field(default=True, compare=False)

    @classmethod
    def of(cls, url: str, info: dict[str, Any]) -> FileInfo:
        """From the answer of an fsspec file system; `StorageError` if it has no size."""
        if info.get("type") == "directory":
            raise StorageError(
                f"{shown(url)} is a directory.",
                "Name a file in it, or pass the directory as the source's path.",
                path=shown(url),
            )
        size = info.get("size")
        if not isinstance(size, int) or size < 0:
            raise StorageError(
                f"The server does not say how large {shown(url)} is: it sends no Content-Length, "
                "or compresses what it sends.",
                "Let it send Content-Length and no Content-Encoding, or copy the file.",
                path=shown(url),
            )
        return cls(url, size, version_of(info), info.get("partial") is not False)


def version_of(info: dict[str, Any]) -> str:
    """What differs between versions of a file, with the names of the fields that say so.

    "" if the store says nothing of the kind. Weak ETags (``W/``) are left out, as they need not be
    of the bytes. An HTTP server's ETag comes with its time: see `is_another_version`.
    """
    for name in VERSION_FIELDS:
        found = info.get(name) or ""
        if isinstance(found, datetime):  # listings and look-ups may differ in the type of times,
            found = found.timestamp()
        value = str(found).strip('"')  # and in quotes
        if value and not value.startswith("W/"):
            time = info.get("Last-Modified") if name == "ETag" else None
            return f"{name} {value}" + (f"{_AND_TIME}{time}" if time else "")
    return ""


def is_another_version(one: str, other: str) -> bool:
    """True for two versions of a file; a listing and a look-up may say it in other fields.

    One field that agrees is enough: behind some proxies a file has another ETag in every answer,
    or another time on every server.
    """
    (tag, _, time), (other_tag, _, other_time) = (
        one.partition(_AND_TIME),
        other.partition(_AND_TIME),
    )
    same_field = tag.partition(" ")[0] == other_tag.partition(" ")[0]
    return same_field and tag != other_tag and (not time or time != other_time)


class Progress(Callback):  # type: ignore[misc]
    """Stops a download that yields more bytes than the file has, or hardly any in a time.

    Args:
        limit: bytes of the file.
        pace: see `Pace`.
    """

    def __init__(self, limit: int, pace: Pace) -> None:
        super().__init__()
        self.limit = limit
        self._pace = pace
        self._since = time.monotonic(), 0  # when the current stretch began, and the bytes by then

    def call(self, *args: Any, **kwargs: Any) -> None:
        """Called by the file system whenever `value`, the number of bytes, has changed."""
        if self.value > self.limit:
            raise OSError(f"the server sent more than the {self.limit} bytes it had announced")
        now = time.monotonic()
        began, had = self._since
        if now - began >= self._pace.timeout_s:
            if self.value - had < (now - began) * self._pace.min_bytes_per_s:
                raise self._pace.too_slow(self.value - had, now - began)
            self._since = now, self.value


@dataclass(frozen=True, slots=True)
class Pace:
    """How slow a server may be.

    Attributes:
        timeout_s: seconds after which an attempt has failed in which nothing arrives, or less than
            `min_bytes_per_s`.
        min_bytes_per_s: 0 is no limit.
    """

    timeout_s: float
    min_bytes_per_s: float

    def too_slow(self, num_bytes: int | None, seconds: float) -> TooSlowError:
        """The error for an answer of which so few bytes have come."""
        came = "the answer was not complete" if num_bytes is None else f"{num_bytes} bytes came"
        return TooSlowError(
            f"{came} after {seconds:.3g} s; min_bytes_per_s is {self.min_bytes_per_s:g}"
        )

    def call(self, filesystem: Any, method: Any, *args: Any, num_bytes: int, **options: Any) -> Any:
        """`method` of a file system, given up if it takes longer than `num_bytes` may.

        Args:
            filesystem: of fsspec.
            method: its name, or a coroutine function. What is not asynchronous is called as it is,
                with the limits that it may have itself.
            args: for the method.
            num_bytes: that it is to bring; 0 for a short answer.
            options: for the method.
        """
        if isinstance(method, str):
            if not filesystem.async_impl:
                return getattr(filesystem, method)(*args, **options)
            method = getattr(filesystem, "_" + method)
        if self.min_bytes_per_s == 0:
            return sync(filesystem.loop, method, *args, **options)
        limit_s = self.timeout_s + num_bytes / self.min_bytes_per_s

        async def limited() -> Any:
            task = asyncio.ensure_future(method(*args, **options))
            try:
                done, _ = await asyncio.wait({task}, timeout=limit_s)
                if not done:
                    raise self.too_slow(None, limit_s)
                return task.result()
            finally:
                if not task.done():
                    task.cancel()
                    await asyncio.wait({task}, timeout=1)

        return sync(filesystem.loop, limited)


def replaced(url: str, before: str, now: str) -> StateError:
    """The error for a file that is not what it was when it was listed."""
    return StateError(
        f"{shown(url)} was replaced: it had {before or 'no version'} when the run began, and has "
        f"{now or 'none'} now.",
        "Start a new run for changed data; if nobody changed it, let the server send Last-Modified "
        "or weak ETags (W/), which are not compared.",
        path=shown(url),
    )


def split_url(path: str) -> tuple[str | None, str]:
    """(protocol, rest), the protocol being None for a local path; ``file://`` counts as local."""
    protocol, separator, rest = path.partition("://")
    if not separator:
        return None, path
    if protocol in ("file", "local"):
        return None, rest
    return protocol, rest


def shown(url: str) -> str:
    """The URL as messages show it: without query and password, which may be secret."""
    protocol, _ = split_url(url)
    if protocol not in ("http", "https"):
        return url
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


def info_of(filesystem: Any, url: str, pace: Pace) -> dict[str, Any]:
    """What a file system says of a URL, asked once; of hf:// with the version, too."""
    options = {"expand_info": True} if split_url(url)[0] == "hf" else {}
    info: dict[str, Any] = pace.call(filesystem, "info", url, num_bytes=0, **options)
    return info


def look_up(filesystem: Any, url: str, *, pace: Pace, retries: int) -> dict[str, Any]:
    """What a file system says of a URL: of a file, or of a directory.

    Raises:
        StorageError: there is nothing, or the look-up failed after all retries.
    """

    def ask() -> dict[str, Any]:
        try:
            return info_of(filesystem, url, pace)
        except Exception as error:
            if failure_of(error) in ("denied", "other"):  # only an answer with a body says why
                pace.call(filesystem, "cat_file", url, start=0, end=1, num_bytes=1)
            raise

    return with_retries(ask, doing="Looking up", url=url, retries=retries)


def with_retries(action: Callable[[], T], *, doing: str, url: str, retries: int) -> T:
    """The result of `action`, tried again up to `retries` times.

    Args:
        action: does the whole attempt, from the beginning.
        doing: what the action does, for messages: "Reading", "Downloading".
        url: what it does that to.
        retries: attempts after the first.

    Raises:
        StorageError: every attempt failed, or one failed in a way that will not change. Its cause
            is the error of the last attempt.
    """
    chance = random.Random()  # the generator of the module belongs to the user, who may seed it
    attempt = 0
    while True:
        attempt += 1
        try:
            return action()
        except StreampackError:
            raise
        except Exception as error:
            failure = failure_of(error)
            original = error.__cause__ or error  # of the library, before fsspec translated it
            said = next(iter(str(original).replace(url, shown(url)).splitlines()), "")
            words = without_secrets(f"{type(original).__name__}: {said}")
            if failure == "transient" and attempt <= retries:
                bound = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (attempt - 1))
                asked = min(LONGEST_RETRY_AFTER_S, retry_after_s(error))
                logger.info("%s %s: attempt %d failed (%s)", doing, shown(url), attempt, words)
                time.sleep(asked + chance.uniform(0, bound))
                continue
            times = "attempt" if attempt == 1 else "attempts"
            fact, remedy = WORDS[failure]
            failed = StorageError(
                f"{doing} {shown(url)} failed after {attempt} {times}: {fact} ({words}).",
                remedy=remedy,
                path=shown(url),
            )
            failed.failure = failure
            raise failed from error
