"""Exclusive access to folders of shards, and errors that name the folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streampack.errors import ConfigError, StorageError
from streampack.storage.files import is_of_system
from streampack.storage.locks import Lock

LOCK = "lock"


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Turn an operating-system error within the block into a `StorageError` that names `path`.

    Raises:
        StorageError: the disk is full, or this process may not write there.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError) or not is_of_system(error):
            raise  # a StorageError of the source or the destination has advice already
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise StorageError(
            f"{path} cannot be written: {os.strerror(error.errno or 0)}.",
            "Free some space and repeat the command: it continues from there."
            if full
            else "Name a folder that this process may write to.",
            path=str(path),
        ) from error


def move(file: Path, target: Path) -> None:
    """Rename a file so that a power failure leaves it whole at either name.

    A rename may reach the disk before the file's bytes do.
    """
    _sync(file)
    os.replace(file, target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def alone(folder: Path, url: str) -> Iterator[None]:
    """Keep other commands out of a destination until the block ends or this process dies.

    Args:
        folder: folder of the lock file, removed at the end if it is empty.
        url: the destination, for errors.

    Raises:
        ConfigError: another command is writing to the destination.
        StorageError: the folder is not writable.
    """
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = Lock.acquire(folder / LOCK)
    if lock is None:
        raise ConfigError(
            f"Another command is writing to {url}.",
            "Wait until it has ended, or choose another destination.",
            setting="destination",
            path=url,
        )
    try:
        yield
    finally:
        lock.remove()
        try:
            folder.rmdir()
        except OSError:
            pass
