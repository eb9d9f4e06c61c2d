"""A directory of downloaded files, shared by any number of processes.

An entry is three names in one flat directory. ``<key>-<basename>`` is the file. ``.<key>.lock`` is
locked with `flock`: shared by processes that have the file open or download it, exclusively by one
that evicts it. ``.<key>.part`` is the file while it is written, locked by the one that writes it.
The operating system releases the locks of a dead process, so what nobody has locked is garbage.
Files with other names stay. Any of them may be removed at any time: who needs a file that is
missing downloads it, whoever else has it open.

Cost: opening a file takes two system calls; a download scans the directory once, to keep it below
its limit.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from streampack.errors import StorageError
from streampack.storage.failures import is_of_system

logger = logging.getLogger(__name__)

ANY_SIZE = -1  # of a file that is made here; it is complete once it has its name
MOST_TRIES = 3  # to download a file that somebody removes meanwhile
_OURS = re.compile(r"(?:\.(?P<hidden>[0-9a-f]{24})\.(?:part|lock)|(?P<key>[0-9a-f]{24})-.*)\Z")

#: Locks of this process, so that a forked child can close its copies. They would keep the locks of
#: the parent for as long as the child lives.
_held: set[_Lock] = set()


def default_cache_dir() -> Path:
    """``$XDG_CACHE_HOME/streampack``, ``~/.cache/streampack``, or a private temporary directory."""
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
    # Another user made that directory first: files in it must not be read as ours.
    return Path(tempfile.mkdtemp(prefix="streampack-"))


class _RemovedError(Exception):
    """A file of the cache was removed while it was downloaded."""


class _Lock:
    """A held `flock`. Made by `acquire`; `release` may be called more than once."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        _held.add(self)

    @classmethod
    def acquire(cls, path: Path, *, exclusive: bool, wait: bool = True) -> _Lock | None:
        """The lock at `path`, created if missing; None if it is held and `wait` is False."""
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(fd, kind if wait else kind | fcntl.LOCK_NB)
                # Eviction removes the lock file too, and a lock on a removed file locks nothing.
                if (lock := cls(fd)).is_of(path):
                    return lock
                lock.release()
            except BlockingIOError:
                os.close(fd)
                return None
            except BaseException:
                os.close(fd)
                raise

    def is_of(self, path: Path) -> bool:
        """True if the file at a path is the one that is locked."""
        try:
            return os.fstat(self._fd).st_ino == os.stat(path).st_ino
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Unlock, also for copies of the descriptor that a forked child may hold."""
        fd, self._fd = self._fd, -1
        _held.discard(self)
        if fd >= 0:
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def forget(self) -> None:
        """Close this process's copy, without unlocking the lock it is a copy of."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _forget_locks() -> None:
    for lock in list(_held):
        lock.forget()
    _held.clear()


os.register_at_fork(after_in_child=_forget_locks)


@dataclass(frozen=True, slots=True)
class Entry:
    """One version of a file: its size, or `ANY_SIZE`, and its names in the cache."""

    num_bytes: int
    data: Path
    part: Path
    lock: Path

    def is_complete(self) -> bool:
        """True if the file exists and has the right size."""
        try:
            return self.num_bytes in (ANY_SIZE, self.data.stat().st_size)
        except FileNotFoundError:
            return False


class _Bounded(io.FileIO):
    """A file that is written again from its beginning, with so many bytes at most.

    It is not emptied first: if another process was given its name in the meantime, both write the
    same bytes.
    """

    def __init__(self, path: Path, most_bytes: int) -> None:
        super().__init__(path, "r+")
        self._left = most_bytes

    def write(self, data: Any) -> int:
        self._left -= memoryview(data).nbytes
        if self._left < 0:
            raise OSError(errno.ENOSPC, "it has more bytes than there is room for")
        return super().write(data)


class Cache:
    """A directory of downloaded files; see the module.

    Args:
        folder: created when it is first needed.
        limit_bytes: files are evicted, least recently opened first, to stay below it. Files that
            are open are not evicted, so together they may exceed the limit.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._is_over = False  # as of this process's last look
        self._has_warned = False
        self._not_made: set[Path] = set()

    def entry(self, url: str, num_bytes: int, version: str) -> Entry:
        """Names for this version of a file; no part of a URL can lead out of the folder."""
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
        """The complete file, which is not evicted inside the context.

        Args:
            entry: the file.
            fetch: called to download it if it is missing; writes it to the path that is passed.
        """
        lock, _ = self._hold(entry, fetch)
        try:
            yield entry.data
        finally:
            lock.release()
            if self._is_over:
                with suppress(OSError):
                    self._evict(0)

    @contextmanager
    def made(
        self, entry: Entry, make: Callable[[IO[bytes]], None], name: str
    ) -> Iterator[Path | None]:
        """The same of a file that `make` writes; None if that is not possible, now or before.

        Args:
            entry: the file, of `ANY_SIZE`.
            make: writes it. Whatever it raises, the file is not made again by this process.
            name: of what it is made of, for the log.
        """
        with ExitStack() as stack:
            found = None
            if entry.data not in self._not_made:
                opened = self.open(entry, lambda part: self._make(part, make, name))
                try:
                    found = stack.enter_context(opened)
                except Exception as error:
                    self._not_made.add(entry.data)
                    if is_of_system(error) or isinstance(error, StorageError):
                        logger.warning(
                            "%s is decoded again for every part of it that a lane reads, which may "
                            "take many times as long: its content cannot be kept in the cache "
                            "(%s). Raise cache_limit_bytes, or let cache_dir name a folder on a "
                            "larger disk.", name, error,
                        )  # fmt: skip
            yield found

    def _make(self, part: Path, make: Callable[[IO[bytes]], None], name: str) -> None:
        room = min(self.limit_bytes, shutil.disk_usage(part.parent).free * 9 // 10)
        with io.BufferedWriter(_Bounded(part, room), 1 << 20) as out:
            make(out)
            out.truncate()
        logger.info("%s was decoded into the cache: %d bytes", name, part.stat().st_size)

    def ensure(self, entry: Entry, fetch: Callable[[Path], None]) -> bool:
        """Download the file unless it is in the cache; True if it was downloaded."""
        lock, downloaded = self._hold(entry, fetch)
        lock.release()
        return downloaded

    def forget(self, entry: Entry) -> bool:
        """Remove the file, so that it is downloaded again; False if it is not there.

        Who has it open reads on.
        """
        try:
            entry.data.unlink()
        except OSError:
            return False
        return True

    def _hold(self, entry: Entry, fetch: Callable[[Path], None]) -> tuple[_Lock, bool]:
        """A shared lock on the complete file, and whether this call downloaded it."""
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
        now = time.time_ns()
        with suppress(OSError):  # the file of another user keeps its time
            os.utime(entry.data, ns=(now, now))
        return lock, downloaded

    def _lock(self, path: Path, *, exclusive: bool) -> _Lock:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = _Lock.acquire(path, exclusive=exclusive)
        except OSError as error:
            raise StorageError(
                f"The cache directory {self.folder} cannot be used ({error}).",
                "Point `cache_dir` at a writable directory on a local disk.",
                setting="cache_dir",
                path=str(self.folder),
            ) from error
        assert lock is not None
        return lock

    def _download(self, entry: Entry, fetch: Callable[[Path], None]) -> bool:
        """Download unless another one has done it; the part of a dead process is overwritten."""
        lock = self._lock(entry.part, exclusive=True)
        try:
            if entry.is_complete():
                return False
            self._evict(max(entry.num_bytes, 0))
            try:
                fetch(entry.part)
            except OSError as error:
                if lock.is_of(entry.part):
                    raise
                raise _RemovedError from error
            if not lock.is_of(entry.part):  # what is there may be another process's half of it
                raise _RemovedError
            with open(entry.part, "rb") as written:
                os.fsync(written.fileno())  # or the bytes could be missing after a power failure
            os.replace(entry.part, entry.data)
            self._evict(0)  # other processes may have downloaded at the same time
            return True
        finally:
            if lock.is_of(entry.part):  # this failed, or was not needed
                with suppress(OSError):
                    entry.part.unlink()
            lock.release()

    def _evict(self, incoming: int) -> None:
        """Remove what dead processes left, then files until there is room for `incoming` bytes."""
        total = 0
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
                        files.append((status.st_mtime_ns, status.st_size, item, match["key"]))
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
        """Remove files and the lock of an entry, unless it is in use; the bytes that were freed."""
        path = self.folder / f".{key}.lock"
        try:
            lock = _Lock.acquire(path, exclusive=True, wait=False)
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
