"""One way to compile a kernel: nogil, cached on disk where a cache directory can be written."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core.compiler_lock import global_compiler_lock

__all__ = ["kernel"]

F = TypeVar("F", bound=Callable[..., Any])

# A child that is forked while another thread compiles would wait for numba's lock for ever.
os.register_at_fork(
    before=global_compiler_lock.acquire,
    after_in_parent=global_compiler_lock.release,
    after_in_child=global_compiler_lock.release,
)


def kernel(function: F) -> F:
    """Compile `function` with numba on first call, without the GIL and never in parallel.

    The machine code is cached next to the source or in numba's user-wide cache directory. On a
    machine where neither can be written numba refuses to cache; the kernel then compiles once per
    process instead.
    """
    try:
        return cast(F, numba.njit(nogil=True, cache=True)(function))
    except RuntimeError:  # "cannot cache function ...: no locator available"
        return cast(F, numba.njit(nogil=True)(function))
