"""Compiled kernels: loaded from numba's cache, or compiled and kept there.

The machine code is cached next to the source, in numba's user-wide cache folder or in
NUMBA_CACHE_DIR. If none is writable, every process compiles for itself. `_compiling` is imported
when something is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pickle import UnpicklingError
from typing import Any

import numba
import numpy.ma  # noqa: F401 - numba imports it in the first call, beside which a process may fork
from numba.core import entrypoints, event
from numba.core.compiler_lock import global_compiler_lock

#: Held while a function is compiled or loaded.
LOCK = global_compiler_lock

_folders: set[str] = set()
njit: Any = partial(numba.njit, nogil=True, no_cfunc_wrapper=True)


class Compiled:
    """The compiled code of a kernel.

    Attributes:
        call: calls the kernel, with compiled code wherever the types of the arguments have some.

    Args:
        function: the kernel's Python function.
        is_short: function of a call's arguments, True if Python may run it.
        run: runs a call in Python.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        is_short: Callable[[tuple[Any, ...]], bool],
        run: Callable[..., Any],
    ) -> None:
        self._is_short, self._run = is_short, run
        self.call = run
        try:
            dispatcher = njit(cache=True)(function)
        except RuntimeError:  # "cannot cache function ...: no locator available"
            dispatcher = njit()(function)
        if dispatcher is not function:  # which numba returns if its settings forbid compilation
            self.call = self._dispatcher = dispatcher
            folder_of(dispatcher)
            self._compile = dispatcher._compile_for_args
            dispatcher._compile_for_args = self._choose

    def _choose(self, *arguments: Any) -> Any:
        """Return the function to call; numba asks where it has no code for these types."""
        with LOCK, _no_extensions():
            with _Compilations.forbidden():
                try:
                    return self._load_or_compile(arguments)
                except _NotCachedError:
                    pass
            if self._is_short(arguments):
                return self._run
            from streampack._compiling import turn

            with turn(folder_of(self._dispatcher)):
                return self._load_or_compile(arguments)

    def _load_or_compile(self, arguments: tuple[Any, ...]) -> Any:
        try:
            return self._compile(*arguments)
        except (AttributeError, ImportError):  # the cache names classes of another version
            self._dispatcher._cache.flush()
            return self._compile(*arguments)
        except (OSError, EOFError, UnpicklingError) as error:  # the disk is full, a file cut short
            from streampack._compiling import lose_cache

            lose_cache(self._dispatcher, error)
            return self._compile(*arguments)


@contextmanager
def _no_extensions() -> Iterator[None]:
    """Let numba import no packages that extend it: awkward, which gigatoken requires, takes 1 s."""
    before, entrypoints._already_initialized = entrypoints._already_initialized, True
    try:
        yield
    finally:
        entrypoints._already_initialized = before


def folder_of(dispatcher: Any) -> str | None:
    """Return the cache folder of a compiled function, None if no folder is writable."""
    folder = getattr(getattr(dispatcher, "_cache", None), "cache_path", None)
    if folder is not None:
        _folders.add(folder)
    return folder


def cache_folders() -> list[str]:
    """Return the cache folders of the kernels compiled or loaded so far, sorted."""
    return sorted(_folders)


class _NotCachedError(Exception):
    """A function would have to be compiled."""


class _Compilations(event.Listener):  # type: ignore[misc]
    """Listener that notices compilations."""

    allowed = True

    @classmethod
    @contextmanager
    def forbidden(cls) -> Iterator[None]:
        """Raise `_NotCachedError` instead of compiling; the caller holds numba's lock."""
        cls.allowed = False
        try:
            yield
        finally:
            cls.allowed = True

    def on_start(self, started: Any) -> None:
        """Log before a function is compiled; numba does not call this for cached functions."""
        if not self.allowed:
            raise _NotCachedError
        from streampack._compiling import log_first

        log_first(started.data.get("dispatcher"))

    def on_end(self, ended: Any) -> None:
        """Do nothing; numba requires the method."""


event.register("numba:compile", _Compilations())  # type: ignore[no-untyped-call]
