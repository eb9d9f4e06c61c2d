"""Locks between processes, released by the operating system when a process dies."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from streampack.per_process import PerProcess
from streampack.storage.waiting import pause


class Lock:
    """A held `flock`. Made by `acquire`; `remove` may be called more than once."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd, self._path = fd, path
        _held().add(self)

    @classmethod
    def acquire(cls, path: Path, *, wait_s: float = 0) -> Lock | None:
        """Lock `path`, created if missing; return None if it is locked for `wait_s` seconds."""
        until, pause_s = time.monotonic() + wait_s, 0.001
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Another process may have removed the file, and a lock on it then locks nothing.
                if (lock := cls(fd, path)).is_current():
                    return lock
                lock._release()
            except BlockingIOError:
                os.close(fd)
                if time.monotonic() >= until:
                    return None
                pause(pause_s)
                pause_s = min(2 * pause_s, 0.02)
            except BaseException:
                os.close(fd)
                raise

    def is_current(self) -> bool:
        """Return True if the locked file still has its path."""
        try:
            return os.fstat(self._fd).st_ino == os.stat(self._path).st_ino
        except OSError:
            return False

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
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def forget(self) -> None:
        """Close this process's copy of the descriptor, without unlocking the original."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _forget_all(held: set[Lock]) -> None:
    """Close a forked child's copies, which would keep the locks for as long as it lives."""
    for lock in held:
        lock.forget()


_held: PerProcess[set[Lock]] = PerProcess(set, leave=_forget_all)
