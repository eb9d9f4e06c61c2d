"""Reaching remote files: opening fsspec file systems, and what is worth another attempt.

Every action runs inside `with_retries`, which sleeps a random time below a doubling bound between
attempts (so that a thousand ranks do not try again together) and raises at once if another attempt
cannot help: a file is missing or forbidden, the disk is full.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from fsspec.callbacks import Callback

from streampack.errors import ConfigError, StorageError, StreampackError

__all__ = [
    "RemoteFile",
    "SizeGuard",
    "is_another_version",
    "is_missing",
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
_WORTH_RETRYING = {408, 425, 429}
_HOPELESS_ERRNOS = {
    errno.EDQUOT,
    errno.ENAMETOOLONG,
    errno.ENOLCK,
    errno.ENOSPC,
    errno.ENOSYS,
    errno.EROFS,
}
_HOPELESS = (
    IsADirectoryError,
    NotADirectoryError,
    NotImplementedError,
    ImportError,
    TypeError,
    ValueError,
    MemoryError,
)


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
                f"The server does not send the size of {shown(url)}.",
                "Half a download would look like a whole one.",
                "Use a server that sends Content-Length, or copy the file.",
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


class SizeGuard(Callback):  # type: ignore[misc]
    """Stops a download that yields more bytes than the file has."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def relative_update(self, inc: int = 1) -> None:
        """Called by the file system with the number of bytes that arrived."""
        super().relative_update(inc)
        if self.value > self.limit:
            raise OSError(f"the server sent more than the {self.limit} bytes it had announced")


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


def _reason(error: BaseException) -> BaseException:
    """The error to judge by: fsspec calls any failed look-up over HTTP a missing file."""
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and cause is not None:
        by_client = type(cause).__module__.partition(".")[0] == "aiohttp"
        if by_client or isinstance(cause, OSError | asyncio.TimeoutError):
            return cause
    return error


def _status(error: BaseException) -> int | None:
    """The HTTP status that an answer had, if the error is about an answer."""
    names = ["status", "status_code"]
    if type(error).__module__.partition(".")[0] == "gcsfs":
        names.append("code")
    for name in names:
        value = getattr(error, name, None)
        if isinstance(value, int):
            return value
    return None


def is_missing(error: BaseException) -> bool:
    """True if the error, or what it was raised from, says that there is no such file."""
    if isinstance(error, StorageError) and error.__cause__ is not None:
        error = error.__cause__
    reason = _reason(error)
    return isinstance(reason, FileNotFoundError) or _status(reason) in (404, 410)


def _is_forbidden(error: BaseException) -> bool:
    reason = _reason(error)
    named = type(reason).__name__ in ("NoCredentialsError", "PartialCredentialsError")
    return named or isinstance(reason, PermissionError) or _status(reason) in (401, 403)


def _is_hopeless(error: BaseException) -> bool:
    if is_missing(error) or _is_forbidden(error):
        return True
    reason = _reason(error)
    status = _status(reason)
    if status is not None:
        return 400 <= status < 500 and status not in _WORTH_RETRYING
    if isinstance(reason, OSError) and reason.errno in _HOPELESS_ERRNOS:
        return True
    return isinstance(reason, _HOPELESS)


def _remedy(error: BaseException) -> str:
    reason = _reason(error)
    if is_missing(error):
        return "Check the path, and that nobody removed the file."
    if _is_forbidden(error):
        return "Check the credentials, which come from the environment or `storage_options`."
    if isinstance(reason, OSError) and reason.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Make room, set a smaller `cache_limit_bytes`, or point `cache_dir` elsewhere."
    if _is_hopeless(error):
        return "Check the path and the `storage_options`."
    return (
        "Check the network and the server, then restart from the last checkpoint; or raise "
        "`retries` or `timeout_s` of Storage."
    )


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
            hopeless = _is_hopeless(error)
            if not hopeless and attempt <= retries:
                bound = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (attempt - 1))
                wait = chance.uniform(0, bound)
                name = shown(url)
                logger.info("%s %s: attempt %d failed (%r)", doing, name, attempt, error)
                time.sleep(wait)
                continue
            words = f"{type(error).__name__}: {error}".replace(url, shown(url))
            times = "attempt" if attempt == 1 else "attempts"
            raise StorageError(
                f"{doing} {shown(url)} failed after {attempt} {times} ({words}).",
                "Nothing is skipped, or the batches would depend on the network.",
                _remedy(error),
            ) from error
