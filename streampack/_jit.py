"""One way to compile a kernel: nogil, cached on disk where a cache directory can be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

__all__ = ["kernel"]

F = TypeVar("F", bound=Callable[..., Any])


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
