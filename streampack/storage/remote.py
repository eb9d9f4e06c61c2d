"""Requests for remote files: time limits and versions."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import wait
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fsspec.asyn import sync

from streampack.errors import StorageError
from streampack.storage.failures import TooSlowError
from streampack.storage.file_info import FileInfo, shown
from streampack.storage.threads import end_with_process, pulse

#: Fields that differ between versions of a file, by file system; the most reliable first.
VERSION_FIELDS = (
    "ETag",
    "generation",
    "etag",
    "md5Hash",
    "content_md5",
    "Content-MD5",
    "Digest",
    "Last-Modified",
    "LastModified",
    "updated",
    "mtime",
    "created",
)
_LOOK_S = 0.2
_AND_TIME = "; Last-Modified "


def info_from(url: str, info: dict[str, Any]) -> FileInfo:
    """Convert the answer of an fsspec file system; raise `StorageError` without a size."""
    if info.get("type") == "directory":
        raise StorageError(
            f"{shown(url)} is a directory.",
            "Name a file in it, or pass the directory as the source's path.",
            path=shown(url),
        )
    size = info.get("size")
    if not isinstance(size, int) or size < 0:
        raise StorageError(
            f"The server does not declare the size of {shown(url)}: it sends no "
            "Content-Length, or compresses the file.",
            "Let it send Content-Length and no Content-Encoding, or copy the file.",
            path=shown(url),
        )
    return FileInfo(url, size, version_of(info))


def version_of(info: dict[str, Any]) -> str:
    """Return the fields that differ between versions of a file, with their names, as text.

    The result is "" if the store has no such field. Weak ETags (``W/``) are left out, as they need
    not depend on the bytes. An HTTP server's ETag comes with its time: see `is_another_version`.
    """
    if "blob_id" in info:  # for the Hub, which sends one of these as ETag
        info = {"ETag": (info.get("lfs") or {}).get("sha256") or info["blob_id"]}
    for name in VERSION_FIELDS:
        field = info.get(name) or ""
        if isinstance(field, datetime):  # listings and look-ups may differ in the type of times,
            field = field.timestamp()
        value = str(field).strip('"')  # and in quotes
        if value and not value.startswith("W/"):
            time = info.get("Last-Modified") if name == "ETag" else None
            return f"{name} {value}" + (f"{_AND_TIME}{time}" if time else "")
    return ""


def is_another_version(version: str, other: str) -> bool:
    """Return True if two versions differ; a listing and a look-up may have different fields.

    One equal field makes versions equal: behind some proxies a file has another ETag in every
    answer, or another time on every server.
    """
    (tag, _, time), (other_tag, _, other_time) = (
        version.partition(_AND_TIME),
        other.partition(_AND_TIME),
    )
    same_field = tag.partition(" ")[0] == other_tag.partition(" ")[0]
    return same_field and tag != other_tag and (not time or time != other_time)


@dataclass(frozen=True, slots=True)
class Pace:
    """Limits on the slowness of a server.

    Attributes:
        timeout_s: seconds after which an attempt fails if nothing arrives, or less than
            `min_bytes_per_s`.
        min_bytes_per_s: minimum rate; 0 is no limit.
    """

    timeout_s: float
    min_bytes_per_s: float

    def too_slow(self, num_bytes: int | None, seconds: float) -> TooSlowError:
        """Return the error for an answer with only `num_bytes` bytes after `seconds`."""
        came = "the answer was not complete" if num_bytes is None else f"{num_bytes} bytes came"
        return TooSlowError(
            f"{came} after {seconds:.3g} s; min_bytes_per_s is {self.min_bytes_per_s:g}"
        )

    def call(self, filesystem: Any, method: str, *args: Any, num_bytes: int, **options: Any) -> Any:
        """Call a method of a file system, and give up after the time allowed for `num_bytes`.

        Without asyncio, the file system has limits of its own.
        """
        if not filesystem.async_impl:
            return getattr(filesystem, method)(*args, **options)
        rate = self.min_bytes_per_s
        limit_s = self.timeout_s + num_bytes / rate if rate else None

        async def limited() -> Any:
            task = asyncio.ensure_future(getattr(filesystem, "_" + method)(*args, **options))
            try:
                done, _ = await asyncio.wait({task}, timeout=limit_s)
                if not done:
                    raise self.too_slow(None, limit_s or 0)
                return task.result()
            finally:
                if not task.done():
                    task.cancel()
                    await asyncio.wait({task}, timeout=1)

        if threading.current_thread() is threading.main_thread():
            return sync(filesystem.loop, limited)
        answer = asyncio.run_coroutine_threadsafe(limited(), filesystem.loop)
        while not wait([answer], timeout=_LOOK_S).done:
            pulse().beat()  # the request has a limit of its own
            end_with_process()
        return answer.result()
