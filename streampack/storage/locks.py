"""Locks between processes, released by the operating system when a process dies.

The holder of a lock touches its file as it gets on; `Patience` sees that.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from streampack.per_process import PerProcess
from streampack.threads import pulse

#: Seconds without a beat after which the holder of a lock is not waited for.
PATIENCE_S = 5.0


class Lock:
    """A held `flock`. Made by `acquire`; `remove` may be called more than once."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd, self._path = fd, path
        _held().add(self)

    @classmethod
    def acquire(cls, path: Path) -> Lock | None:
        """Lock `path`, created if missing; return None if it is locked."""
        while True:
            lock = cls(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), path)
            is_held = False
            try:
                fcntl.flock(lock._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Another process may have removed the file, and a lock on it then locks nothing.
                is_held = lock.is_current()
            except BlockingIOError:
                return None
            finally:  # also after an interrupt
                if not is_held:
                    lock._release()
            if is_held:
                return lock

    def is_current(self) -> bool:
        """Return True if the locked file still has its path."""
        try:
            return os.fstat(self._fd).st_ino == os.stat(self._path).st_ino
        except OSError:
            return False

    def touch(self) -> None:
        """Show those who wait that the holder gets on."""
        with suppress(OSError):  # the folder was removed
            os.utime(self._path)

    def remove(self) -> None:
        """Remove the file and unlock it."""
        with suppress(OSError):
            if self.is_current():
                self._path.unlink()
        self._release()

    def _release(self) -> None:
        """Unlock, also for copies of the descriptor that a forked child may hold."""
        fd, self._fd = self._fd, -1
        _held().discard(self)
        if fd >= 0:
            with suppress(OSError):  # of a file system without locks
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def forget(self) -> None:
        """Close this process's copy of the descriptor, without unlocking the original."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class Patience:
    """The wait for the holder of a lock, who may be stopped or get no bytes.

    Args:
        path: path of the lock.
        seconds: longest time without a beat.
    """

    def __init__(self, path: Path, seconds: float) -> None:
        self._path, self._seconds = path, seconds
        self._seen, self._until = 0, time.monotonic() + seconds

    def is_over(self) -> bool:
        """Return True after `seconds` without a beat of the holder, or of another one."""
        with suppress(OSError):
            seen = self._path.stat().st_mtime_ns
            if seen != self._seen:
                self._seen, self._until = seen, time.monotonic() + self._seconds
                pulse().beat()  # others may wait for this thread
        return time.monotonic() >= self._until


def _forget_all(held: set[Lock]) -> None:
    """Close a forked child's copies, which would keep the locks for as long as it lives."""
    for lock in held:
        lock.forget()


_held: PerProcess[set[Lock]] = PerProcess(set, leave=_forget_all)
