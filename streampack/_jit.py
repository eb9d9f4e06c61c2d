"""One way to compile a kernel: nogil, cached on disk where a cache directory can be written.

A process that compiles says so, since the first batch waits for it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core import event
from numba.core.compiler_lock import global_compiler_lock

logger = logging.getLogger(__name__)

#: Of all kernels that one run needs, on one core of a server; docs/performance.md has the command.
ABOUT_S = 15

F = TypeVar("F", bound=Callable[..., Any])

# A child that is forked while another thread compiles would wait for numba's lock for ever.
os.register_at_fork(
    before=global_compiler_lock.acquire,
    after_in_parent=global_compiler_lock.release,
    after_in_child=global_compiler_lock.release,
)


_kernels: list[Any] = []


def kernel(function: F) -> F:
    """Compile `function` with numba on first call, without the GIL and never in parallel.

    The machine code is cached next to the source or in numba's user-wide cache directory. On a
    machine where neither can be written numba refuses to cache; the kernel then compiles once per
    process instead.
    """
    try:
        compiled = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # "cannot cache function ...: no locator available"
        compiled = numba.njit(nogil=True)(function)
    _kernels.append(compiled)
    return cast(F, compiled)


def cache_folders() -> list[str]:
    """Where the machine code of the kernels that are imported is kept, sorted; [] if nowhere."""
    return sorted({path for found in _kernels if (path := _kept_in(found)) is not None})


def _kept_in(compiled: Any) -> str | None:
    # None under NUMBA_DISABLE_JIT, which leaves plain functions, and where nothing can be written
    return getattr(getattr(compiled, "_cache", None), "cache_path", None)


class _CompilationLog(event.Listener):  # type: ignore[misc]
    """Logs that kernels are compiled, once; of processes that start together, one does."""

    logged = False

    def on_start(self, started: Any) -> None:
        """Called before a function is compiled, and not where the cache has it."""
        compiled = started.data.get("dispatcher")
        function = getattr(compiled, "py_func", None)
        if self.logged or not str(getattr(function, "__module__", "")).startswith("streampack."):
            return
        self.logged = True
        if not _is_first():
            return
        folder = _kept_in(compiled)
        logger.warning(
            "Compiling kernels of streampack, as the first time that a part of it is used here (a "
            "packer, a format, a setting): up to about %d s of one core, more on a slow one. %s",
            ABOUT_S,
            f"They are kept in {folder}; `streampack warm` compiles them ahead."
            if folder
            else "They cannot be kept, so every start waits for it. Set NUMBA_CACHE_DIR to a "
            "folder that can be written.",
        )

    def on_end(self, ended: Any) -> None:
        """Called afterwards."""


def _is_first() -> bool:
    """True unless another process of this user has said so a moment ago: a worker, or a rank."""
    name = os.path.join(tempfile.gettempdir(), f".streampack-{os.getuid()}-compiles")
    try:
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.read(file, 1) and time.time() - os.fstat(file).st_mtime < 4 * ABOUT_S:
            return False
        os.pwrite(file, b"1", 0)
        return True
    finally:
        os.close(file)


event.register("numba:compile", _CompilationLog())  # type: ignore[no-untyped-call]
