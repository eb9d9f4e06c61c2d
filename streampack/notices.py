"""Log a notice once per job, not in each of its workers and ranks."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import tempfile
import time
from contextlib import suppress
from hashlib import sha256

#: Within this time processes of a job compile, on a slow machine.
TOGETHER_S = 600.0

_given: set[str] = set()  # a fork knows what its parent has logged


def is_first(notice: str) -> bool:
    """Return True if no process of this job has asked for the notice a moment ago.

    Processes of a job are one process and its workers, and the ranks that one launcher starts.
    """
    if notice in _given:
        return False
    _given.add(notice)
    family = [str(os.getpid())]
    parent = multiprocessing.parent_process()
    if parent is not None:
        family.append(str(parent.pid))
    elif "LOCAL_RANK" in os.environ:
        family.append(str(os.getppid()))
    if (file := open_shared("notices")) is None:
        return True
    with os.fdopen(file, "r+") as recent:
        fcntl.flock(recent, fcntl.LOCK_EX)
        now, logged = time.time(), {}
        with suppress(ValueError, TypeError, AttributeError):  # the file is damaged
            logged = {
                key: at for key, at in json.load(recent).items() if 0 <= now - at < TOGETHER_S
            }
        keys = [sha256(f"{process} {notice}".encode()).hexdigest() for process in family]
        first = not any(key in logged for key in keys)
        recent.seek(0)
        recent.truncate()
        json.dump({**logged, **dict.fromkeys(keys, now)}, recent)
    return first


def open_shared(name: str) -> int | None:
    """Open a file that processes of this user and host share; None if that is not possible."""
    path = os.path.join(tempfile.gettempdir(), f".streampack-{os.getuid()}-{name}")
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
