"""Where shards are: local paths and remote URLs, behind one small interface."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["FileInfo", "Storage"]


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file as listed.

    Attributes:
        path: local path or URL.
        num_bytes: its size.
    """

    path: str
    num_bytes: int


class Storage:
    """Lists, reads and caches files."""

    def __init__(
        self,
        *,
        cache_dir: str | Path | None = None,
        cache_limit_bytes: int = 64 << 30,
        retries: int = 5,
        timeout_s: float = 60.0,
        read_ahead_bytes: int = 256 << 20,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        raise NotImplementedError

    def list(
        self, patterns: str | Path | Sequence[str | Path], *, suffixes: Sequence[str] = ()
    ) -> list[FileInfo]:
        """Files that match; in directories only those that end in one of `suffixes`."""
        raise NotImplementedError

    @contextmanager
    def local(self, path: str) -> Iterator[Path]:
        """A local file with the content of `path`."""
        raise NotImplementedError
        yield

    def prefetch(self, paths: Sequence[str]) -> None:
        """Hint that these are needed soon."""

    def read_bytes(self, path: str, limit_bytes: int) -> bytes:
        """The content of a small file."""
        raise NotImplementedError

    def read_range(self, path: str, start: int, stop: int) -> bytes:
        """Bytes [start, stop) of a file."""
        raise NotImplementedError
