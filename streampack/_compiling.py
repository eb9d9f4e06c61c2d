"""Compilation of kernels: in one process of a host at a time, after a log line.

The log line stands because the first batch waits for the compiler.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import Any

from numba.core.caching import NullCache
from numba.core.registry import cpu_target
from numba.cpython.unsafe import numbers

from streampack._compiler import folder_of, njit
from streampack.notices import is_first, open_shared

logger = logging.getLogger(__name__)

#: Time to compile a run's kernels on one core of a server; docs/performance.md has the command.
ABOUT_S = 15
#: A process that has waited this long for compilations of others, in all, compiles too.
LONGEST_WAIT_S = 120.0

_inner: list[Any] = []
_logged: set[str] = set()


def type_of_inner(function: Callable[..., Any]) -> Any:
    """Return numba's type of a kernel that others call; Python cannot call its code."""
    inner = njit(no_cpython_wrapper=True)(function)
    _inner.append(inner)  # its type does not keep it
    return inner._numba_type_


def type_of_instruction(name: str) -> Any:
    """Return numba's type of one of its functions for machine instructions."""
    context = cpu_target.typing_context
    context.refresh()
    return context.resolve_value_type(getattr(numbers, name))


@contextmanager
def turn(folder: str | None) -> Iterator[None]:
    """Wait until no other process of this host compiles into a cache folder."""
    if folder is None:
        yield
        return
    name = sha256(os.path.dirname(folder).encode()).hexdigest()[:16]
    file = open_shared(f"compiling-{name}")
    try:
        while file is not None and _Patience.left_s > 0 and _is_locked(file):
            began = time.monotonic()
            time.sleep(0.05)
            _Patience.left_s -= time.monotonic() - began
        yield
    finally:
        if file is not None:
            os.close(file)


class _Patience:
    """The time that this process may still wait for others."""

    left_s = LONGEST_WAIT_S


def _is_locked(file: int) -> bool:
    """Lock a file; return True if another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    return False


def lose_cache(compiled: Any, error: Exception) -> None:
    """Let this process go on without the cache of a kernel; later ones write a damaged one anew."""
    if is_first("cache of kernels"):
        logger.warning(
            "Compiled kernels cannot be kept in %s or loaded from there, so they are compiled at "
            "every start (%s: %s). Make room there, or set NUMBA_CACHE_DIR to another folder.",
            folder_of(compiled),
            type(error).__name__,
            error,
        )
    if not isinstance(error, OSError):
        with suppress(OSError):
            compiled._cache.flush()
    compiled._cache = NullCache()  # type: ignore[no-untyped-call]


def log_first(compiled: Any) -> None:
    """Log the first compilation of a kernel of streampack, in one process of a job.

    Args:
        compiled: numba's dispatcher of the function that is being compiled, of any package.
    """
    function = getattr(compiled, "py_func", None)
    if _logged or not str(getattr(function, "__module__", "")).startswith("streampack."):
        return
    _logged.add("compilation")
    folder = folder_of(compiled)
    if not is_first(f"compiling {os.path.dirname(__file__)} {folder is not None}"):
        return
    logger.warning(
        "Compiling kernels of streampack, as the first time that a part of it is used here (a "
        "packer, a format, a setting): up to about %d s of one core, more on a slow one. %s",
        ABOUT_S,
        f"They are kept in {folder}; `streampack warm` compiles them ahead."
        if folder
        else "They cannot be kept, so every start waits for it. Set NUMBA_CACHE_DIR to a "
        "folder that can be written.",
    )
