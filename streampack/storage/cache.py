"""A directory of downloaded files, shared by any number of processes.

An entry is three names in one flat directory. ``<key>-<basename>`` is the file. ``.<key>.lock`` is
locked with `flock`: shared by processes that have the file open or download it, exclusively by a
process that evicts it. ``.<key>.part`` is the file while it is written, locked by its writer. The
operating system releases the locks of a dead process, so an unlocked part is garbage. Files with
other names stay. Any file may be removed at any time: a process that needs a missing file downloads
it, even if other processes have the removed one open.

Cost: opening a file takes two system calls; a download scans the directory once, to keep it below
its limit.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from streampack.errors import StorageError
from streampack.storage.growing import GrowingFile, NotMadeError, explain
from streampack.storage.locks import Lock

logger = logging.getLogger(__name__)

ANY_SIZE = -1  # of a file made on this host; it is complete once it has its name
_MOST_KNOWN = 64  # files with kept reader's notes
MOST_TRIES = 3  # downloads of a file that other processes remove meanwhile
_OURS = re.compile(r"(?:\.(?P<hidden>[0-9a-f]{24})\.(?:part|lock)|(?P<key>[0-9a-f]{24})-.*)\Z")


def default_cache_dir() -> Path:
    """Return ``$XDG_CACHE_HOME/streampack``, ``~/.cache/streampack``, or a temporary directory."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base) / "streampack"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        pass
    else:
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    folder = Path(tempfile.gettempdir()) / f"streampack-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not folder.is_symlink() and folder.is_dir() and status.st_uid == os.getuid():
        return folder
    # Another user made that directory first, so its files must not be trusted.
    return Path(tempfile.mkdtemp(prefix="streampack-"))


class _RemovedError(Exception):
    """A file of the cache was removed while it was downloaded."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One version of a file: its size, or `ANY_SIZE`, and its names in the cache."""

    num_bytes: int
    data: Path
    part: Path
    lock: Path

    def is_complete(self) -> bool:
        """Return True if the file exists and has the right size."""
        try:
            return self.num_bytes in (ANY_SIZE, self.data.stat().st_size)
        except FileNotFoundError:
            return False


class Cache:
    """A directory of downloaded files; see the module.

    Args:
        folder: folder of the files, created when first needed.
        limit_bytes: limit of their size; the least recently opened files are evicted first. Open
            files are not evicted, so together they may exceed the limit.
        taken_bytes: returns the part of the limit used by others.
    """

    def __init__(
        self, folder: Path, limit_bytes: int, taken_bytes: Callable[[], int] = lambda: 0
    ) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._taken_bytes = taken_bytes
        self._used = (-1, 0)  # modification time of the folder, and the bytes of its files then
        self._is_over = False  # at this process's last scan
        self._has_warned = False
        self._known: dict[Path, dict[int, Any]] = {}
        self.not_made: set[Path] = set()  # files that this process failed to make

    def used_bytes(self) -> int:
        """Return the approximate bytes of the files, counted anew when the folder has changed."""
        try:
            changed = self.folder.stat().st_mtime_ns
            if changed != self._used[0]:
                with os.scandir(self.folder) as entries:
                    sizes = [e.stat(follow_symlinks=False).st_size for e in entries if e.is_file()]
                self._used = changed, sum(sizes)
        except OSError:  # the folder does not exist yet, or is changing
            pass
        return self._used[1]

    def entry(self, url: str, num_bytes: int, version: str) -> Entry:
        """Return the names of this version of a file; no URL can lead out of the folder."""
        identity = f"{url}\0{num_bytes}\0{version}".encode()
        key = hashlib.blake2b(identity, digest_size=12).hexdigest()
        basename = url.partition("?")[0].rstrip("/").rsplit("/", 1)[-1]
        readable = re.sub(r"[^A-Za-z0-9._-]", "_", basename)[-100:]
        return Entry(
            num_bytes,
            self.folder / f"{key}-{readable}",
            self.folder / f".{key}.part",
            self.folder / f".{key}.lock",
        )

    @contextmanager
    def open(self, entry: Entry, fetch: Callable[[Path], None]) -> Iterator[Path]:
        """Open a context with the complete file, which is not evicted inside it.

        Args:
            entry: entry of the file.
            fetch: downloads a missing file to the path it is called with.
        """
        lock, _ = self._hold(entry, fetch)
        try:
            yield entry.data
        finally:
            lock.release()
            if self._is_over:
                with suppress(OSError):
                    self.evict(0)

    @contextmanager
    def growing(
        self, entry: Entry, make: Callable[[IO[bytes]], None], name: str
    ) -> Iterator[GrowingFile | None]:
        """Open a context with a file made on this host and read as it grows; see `GrowingFile`.

        Yield None if it cannot be made, now or before.
        """
        with ExitStack() as stack:
            found = None
            if entry.data not in self.not_made:
                try:
                    stack.enter_context(self.keeping(entry))
                    found = GrowingFile(self, entry, make, name)
                    stack.callback(found.close)
                except NotMadeError:
                    pass
                except StorageError as error:
                    self.refuse(entry, name, error)
            yield found

    def known(self, entry: Entry) -> dict[int, Any]:
        """Return this process's notes on a file that it reads; only the last files have notes."""
        found = self._known.pop(entry.data, {})
        self._known = {**dict([*self._known.items()][-_MOST_KNOWN:]), entry.data: found}
        return found

    def refuse(self, entry: Entry, name: str, error: Exception) -> None:
        """Stop making this file, and log the cost."""
        if entry.data not in self.not_made:
            self.not_made.add(entry.data)
            explain(name, error)

    @contextmanager
    def keeping(self, entry: Entry) -> Iterator[None]:
        """Enter a context in which an entry is not evicted."""
        lock = self._lock(entry.lock, exclusive=False)
        _touch(entry.data)
        try:
            yield
        finally:
            lock.release()
            if self._is_over:
                with suppress(OSError):
                    self.evict(0)

    def ensure(self, entry: Entry, fetch: Callable[[Path], None]) -> bool:
        """Download the file unless it is in the cache; return True if it was downloaded."""
        lock, downloaded = self._hold(entry, fetch)
        lock.release()
        return downloaded

    def forget(self, entry: Entry) -> bool:
        """Remove the file, so that the next use downloads it; return False if it is missing.

        Open readers of the file continue.
        """
        try:
            entry.data.unlink()
        except OSError:
            return False
        return True

    def _hold(self, entry: Entry, fetch: Callable[[Path], None]) -> tuple[Lock, bool]:
        """Return a shared lock on the complete file, and whether this call downloaded it."""
        downloaded = False
        lock = self._lock(entry.lock, exclusive=False)
        try:
            tries = 0
            while not entry.is_complete():
                try:
                    downloaded = self._download(entry, fetch) or downloaded
                except _RemovedError as error:
                    tries += 1
                    if tries == MOST_TRIES:
                        raise StorageError(
                            f"{entry.part} was removed {tries} times while it was downloaded.",
                            "Leave the cache directory alone for a while, and restart.",
                            path=str(entry.part),
                        ) from error
                    lock.release()  # its file may have been removed too
                    lock = self._lock(entry.lock, exclusive=False)
        except BaseException:
            lock.release()
            raise
        _touch(entry.data)
        return lock, downloaded

    def lock(self, path: Path, *, exclusive: bool, wait: bool = True) -> Lock | None:
        """Acquire a lock in the cache's folder; see `Lock.acquire`."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            return Lock.acquire(path, exclusive=exclusive, wait=wait)
        except OSError as error:
            raise StorageError(
                f"The cache directory {self.folder} cannot be used ({error}).",
                "Point `cache_dir` at a writable directory on a local disk.",
                setting="cache_dir",
                path=str(self.folder),
            ) from error

    def _lock(self, path: Path, *, exclusive: bool) -> Lock:
        lock = self.lock(path, exclusive=exclusive)
        assert lock is not None
        return lock

    def _download(self, entry: Entry, fetch: Callable[[Path], None]) -> bool:
        """Download unless another process has done so; overwrite the part of a dead process."""
        lock = self._lock(entry.part, exclusive=True)
        try:
            if entry.is_complete():
                return False
            self.evict(max(entry.num_bytes, 0))
            try:
                fetch(entry.part)
            except OSError as error:
                if lock.is_of(entry.part):
                    raise
                raise _RemovedError from error
            if not lock.is_of(entry.part):  # the path may hold another process's part
                raise _RemovedError
            with open(entry.part, "rb") as written:
                os.fsync(written.fileno())  # else bytes could be missing after a power failure
            os.replace(entry.part, entry.data)
            self.evict(0)  # other processes may have downloaded at the same time
            return True
        finally:
            if lock.is_of(entry.part):  # the download failed, or was not needed
                with suppress(OSError):
                    entry.part.unlink()
            lock.release()

    def evict(self, incoming: int) -> None:
        """Remove files of dead processes, then others until `incoming` bytes fit."""
        total = self._taken_bytes()
        files: list[tuple[int, int, os.DirEntry[str], str]] = []
        hidden: dict[str, list[os.DirEntry[str]]] = {}
        with os.scandir(self.folder) as entries:
            for item in entries:
                match = _OURS.match(item.name)
                if match is None:
                    continue
                with suppress(FileNotFoundError):
                    status = item.stat(follow_symlinks=False)
                    total += status.st_size
                    if match["key"]:
                        files.append((status.st_atime_ns, status.st_size, item, match["key"]))
                    else:
                        hidden.setdefault(match["hidden"], []).append(item)
        for _, _, _, key in files:
            hidden[key] = [item for item in hidden.get(key, []) if item.name.endswith(".part")]
        for key, rest in hidden.items():
            if rest:
                total -= self._remove(key, rest)
        for _, size, item, key in sorted(files, key=lambda file: file[:2]):
            if total + incoming <= self.limit_bytes:
                break
            if self._remove(key, [item]):
                total -= size
        self._is_over = total + incoming > self.limit_bytes
        if self._is_over and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%d bytes of the cache %s are in use, more than its limit of %d, which is exceeded "
                "for now. Raise cache_limit_bytes, or open fewer shards.",
                total + incoming,
                self.folder,
                self.limit_bytes,
            )

    def _remove(self, key: str, items: list[os.DirEntry[str]]) -> int:
        """Remove files and lock of an entry unless it is in use; return the bytes freed."""
        path = self.folder / f".{key}.lock"
        try:
            lock = Lock.acquire(path, exclusive=True, wait=False)
        except OSError:
            return 0
        if lock is None:
            return 0
        freed = 0
        try:
            for item in items:
                with suppress(OSError):
                    size = os.lstat(item.path).st_size
                    os.unlink(item.path)
                    freed += size
            with suppress(OSError):
                path.unlink()
        finally:
            lock.release()
        return freed


def _touch(path: Path) -> None:
    """Set the access time of a file to now, and keep its modification time."""
    with suppress(OSError):  # the file is missing, or belongs to another user
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
