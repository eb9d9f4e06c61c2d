"""Reaching remote files: opening fsspec file systems, and what is worth another attempt.

Every action runs inside `with_retries`, which sleeps a random time below a doubling bound between
attempts (so that a thousand ranks do not try again together), or longer if the server asks for it,
and raises at once if another attempt cannot help: a file is missing or forbidden, the disk is full.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from fsspec.asyn import sync
from fsspec.callbacks import Callback

from streampack.errors import ConfigError, StorageError, StreampackError
from streampack.storage.failures import (
    TooSlowError,
    explain,
    is_bare_refusal,
    retry_after_s,
    without_secrets,
)

__all__ = [
    "Pace",
    "Progress",
    "RemoteFile",
    "is_another_version",
    "look_up",
    "open_filesystem",
    "shown",
    "split_url",
    "version_of",
    "with_retries",
]

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Fields that differ between versions of a file, by file system; the most reliable first.
_VERSION_FIELDS = (
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
)

FIRST_WAIT_S = 0.25
LONGEST_WAIT_S = 30.0
LONGEST_RETRY_AFTER_S = 300.0  # of what a server asks for

#: What to install for a protocol; fsspec imports the implementation when it is first used.
_EXTRAS = {
    "s3": 'pip install "streampack[s3]"',
    "s3a": 'pip install "streampack[s3]"',
    "http": 'pip install "streampack[http]"',
    "https": 'pip install "streampack[http]"',
    "gs": "pip install gcsfs",
    "gcs": "pip install gcsfs",
    "az": "pip install adlfs",
    "abfs": "pip install adlfs",
}


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """The answer to a look-up of a remote file.

    Attributes:
        num_bytes: its size.
        version: see `version_of`.
        ranges: False if the server says that it can only send the whole file.
    """

    num_bytes: int
    version: str
    ranges: bool

    @classmethod
    def of(cls, url: str, info: dict[str, Any]) -> RemoteFile:
        """From the answer of an fsspec file system; `StorageError` if it has no size."""
        if info.get("type") == "directory":
            raise StorageError(
                f"{shown(url)} is a directory.",
                "A file was expected.",
                "Name a file in it, or pass the directory as the source's path.",
            )
        size = info.get("size")
        if not isinstance(size, int) or size < 0:
            raise StorageError(
                f"The server does not say how large {shown(url)} is: it sends no Content-Length, "
                "or compresses what it sends.",
                "Half a download would look like a whole one.",
                "Let it send Content-Length and no Content-Encoding, or copy the file.",
            )
        return cls(size, version_of(info), info.get("partial") is not False)


def version_of(info: dict[str, Any]) -> str:
    """What differs between versions of a file, with the name of the field that says so.

    "" if the store says nothing of the kind.
    """
    return next((f"{name} {info[name]}" for name in _VERSION_FIELDS if info.get(name)), "")


def is_another_version(one: str, other: str) -> bool:
    """True for two versions of a file; a listing and a look-up may say it in other fields."""
    same_field = one.partition(" ")[0] == other.partition(" ")[0]
    return same_field and one != other


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
            f"{came} after {seconds:.3g} s; at least {self.min_bytes_per_s:g} bytes/s are wanted"
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


def open_filesystem(protocol: str, options: dict[str, Any], timeout_s: float) -> Any:
    """A new fsspec file system that gives up a silent connection after `timeout_s` seconds.

    It belongs to the process that opens it: async file systems own a thread and an event loop
    and survive neither a fork nor a pickle.
    """
    import fsspec

    # fsspec shares instances between callers and keeps listings; both would hide changes.
    merged = {"skip_instance_cache": True, "use_listings_cache": False, **options}
    try:
        if protocol in ("s3", "s3a"):
            _s3_options(merged, timeout_s)
        elif protocol in ("http", "https"):
            _http_options(merged, timeout_s)
        filesystem = fsspec.filesystem(protocol, **merged)
    except ImportError as error:
        raise ConfigError(
            f"{protocol}:// needs a package that is not installed: {error}.",
            "The files cannot be reached.",
            f"Run `{_EXTRAS.get(protocol, 'pip install fsspec[' + protocol + ']')}`.",
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{protocol}:// cannot be opened: {error}.",
            "The files cannot be reached.",
            "Use a local path or a URL that fsspec knows, such as s3://, https:// or gs://.",
        ) from error
    if protocol in ("s3", "s3a"):
        filesystem.retries = 1  # attempts are counted here, not once more inside
    _opened[id(filesystem)] = filesystem
    return filesystem


_opened: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_inherited: list[Any] = []


def _keep_inherited() -> None:
    """In a forked child: keep the file systems of the parent alive, so none is finalized.

    Their finalizers would close connections on an event loop whose thread does not exist after the
    fork; the parent has both and closes them itself.
    """
    _inherited.extend(_opened.values())


os.register_at_fork(after_in_child=_keep_inherited)


def _s3_options(options: dict[str, Any], timeout_s: float) -> None:
    client = options.get("client_kwargs") or {}
    if not options.get("endpoint_url") and not client.get("endpoint_url"):
        for name in ("S3_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
            if os.environ.get(name):
                options["endpoint_url"] = os.environ[name]
                break
    options["config_kwargs"] = {
        "connect_timeout": timeout_s,
        "read_timeout": timeout_s,
        "retries": {"max_attempts": 1},
        **(options.get("config_kwargs") or {}),
    }


def _http_options(options: dict[str, Any], timeout_s: float) -> None:
    import aiohttp

    # The default of aiohttp bounds the whole download to five minutes, whatever its size.
    limits = aiohttp.ClientTimeout(total=None, sock_connect=timeout_s, sock_read=timeout_s)
    options["client_kwargs"] = {"timeout": limits, **(options.get("client_kwargs") or {})}
    headers = {"Accept-Encoding": "identity", **(options.get("headers") or {})}
    options["headers"] = headers  # sizes are checked, so nothing may be compressed in transfer


def look_up(filesystem: Any, url: str, *, pace: Pace, retries: int) -> dict[str, Any]:
    """What a file system says of a URL: of a file, or of a directory.

    Raises:
        StorageError: there is nothing, or the look-up failed after all retries.
    """

    def ask() -> dict[str, Any]:
        try:
            info: dict[str, Any] = pace.call(filesystem, "info", url, num_bytes=0)
        except Exception as error:
            if is_bare_refusal(error):  # what has a body says why
                pace.call(filesystem, "cat_file", url, start=0, end=1, num_bytes=1)
            raise
        return info

    return with_retries(ask, doing="Looking up", url=url, retries=retries)


def with_retries(action: Callable[[], T], *, doing: str, url: str, retries: int) -> T:
    """The result of `action`, which may fail `retries` times before the last attempt.

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
            failure = explain(error, doing)
            told = error.__cause__ or error  # what the library said, before fsspec translated it
            words = without_secrets(f"{type(told).__name__}: {told}".replace(url, shown(url)))
            if not failure.lasts and attempt <= retries:
                bound = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (attempt - 1))
                asked = min(LONGEST_RETRY_AFTER_S, retry_after_s(error))
                logger.info("%s %s: attempt %d failed (%s)", doing, shown(url), attempt, words)
                time.sleep(asked + chance.uniform(0, bound))
                continue
            times = "attempt" if attempt == 1 else "attempts"
            raise StorageError(
                f"{doing} {shown(url)} failed after {attempt} {times}: {failure.fact} ({words}).",
                "Nothing is skipped, or the batches would depend on the network.",
                failure.remedy,
            ) from error
