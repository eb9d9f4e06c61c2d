"""Files as listed: path, size and version; and URLs in messages."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import NamedTuple

from streampack.errors import StateError


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file as listed, or looked up.

    Attributes:
        path: absolute local path, or URL.
        num_bytes: size in bytes.
        version: version of a remote file from its store; see `version_of`.
    """

    path: str
    num_bytes: int
    version: str = field(default="", compare=False)

    @property
    def key(self) -> str:
        """Key of this version for the names of its blocks, without the URL."""
        identity = f"{self.path}\0{self.num_bytes}\0{self.version}".encode()
        return hashlib.blake2b(identity, digest_size=12).hexdigest()


class Range(NamedTuple):
    """Bytes [start, stop) of a file that a reader will come to."""

    file: FileInfo
    start: int
    stop: int


def replaced(url: str, before: str, now: str) -> StateError:
    """Return the error for a file that changed since it was listed."""
    return StateError(
        f"{shown(url)} was replaced: it had {before or 'no version'} when the run began, and has "
        f"{now or 'none'} now.",
        "Start a new run for changed data; if nobody changed it, let the server send Last-Modified "
        "or weak ETags (W/), which are not compared.",
        path=shown(url),
    )


def split_url(path: str) -> tuple[str | None, str]:
    """Return (protocol, rest); the protocol is None for local paths, including ``file://``."""
    protocol, separator, remainder = path.partition("://")
    if not separator:
        return None, path
    if protocol in ("file", "local"):
        return None, remainder
    return protocol, remainder


def shown(url: str) -> str:
    """Return the URL for messages, without password and, over HTTP, query, which may be secret."""
    protocol, after = split_url(url)
    if is_web := protocol in ("http", "https"):
        after = after.partition("?")[0].partition("#")[0]
    user = after.partition("/")[0].rpartition("@")[0]
    if protocol is None or not (is_web or ":" in user):
        return url
    return f"{protocol}://{after.removeprefix(user + '@')}"
