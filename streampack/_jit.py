"""Compilation of kernels: without the GIL, and cached on disk if a cache directory is writable.

A process that compiles logs it, because the first batch waits for it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core import config, event
from numba.core.compiler_lock import global_compiler_lock

from streampack.notices import is_first

logger = logging.getLogger(__name__)

#: Time to compile a run's kernels on one core of a server; docs/performance.md has the command.
ABOUT_S = 15

#: False under NUMBA_DISABLE_JIT=1, for debuggers.
COMPILED: bool = not config.DISABLE_JIT  # type: ignore[attr-defined]

F = TypeVar("F", bound=Callable[..., Any])

# A child forked while another thread compiles would wait forever for numba's lock.
os.register_at_fork(
    before=global_compiler_lock.acquire,
    after_in_parent=global_compiler_lock.release,
    after_in_child=global_compiler_lock.release,
)


_kernels: list[Any] = []


def kernel(function: F) -> F:
    """Compile `function` with numba on first call, without the GIL and never in parallel.

    The machine code is cached next to the source or in numba's user-wide cache directory. If
    neither is writable, the kernel is compiled once per process instead. Under NUMBA_DISABLE_JIT=1
    it remains a Python function, many times slower.
    """
    if not COMPILED:
        return np.errstate(over="ignore")(function)  # integers wrap around, as in compiled code
    try:
        compiled = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # "cannot cache function ...: no locator available"
        compiled = numba.njit(nogil=True)(function)
    _kernels.append(compiled)
    return cast(F, compiled)


def cache_folders() -> list[str]:
    """Return the cache folders of the imported kernels, sorted; [] if nothing is cached."""
    return sorted({path for each in _kernels if (path := _kept_in(each)) is not None})


def _kept_in(compiled: Any) -> str | None:
    # None if no cache folder is writable
    return getattr(getattr(compiled, "_cache", None), "cache_path", None)


class _CompilationLog(event.Listener):  # type: ignore[misc]
    """Listener that logs the first compilation, in one process of a job."""

    logged = False

    def on_start(self, started: Any) -> None:
        """Log before a function is compiled; numba does not call this for cached functions."""
        compiled = started.data.get("dispatcher")
        function = getattr(compiled, "py_func", None)
        if self.logged or not str(getattr(function, "__module__", "")).startswith("streampack."):
            return
        self.logged = True
        folder = _kept_in(compiled)
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

    def on_end(self, ended: Any) -> None:
        """Do nothing; numba requires the method."""


event.register("numba:compile", _CompilationLog())  # type: ignore[no-untyped-call]
