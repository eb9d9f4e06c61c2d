"""Compilation of kernels by numba: cached on disk, in one process of a host at a time.

The machine code is cached next to the source, in numba's user-wide cache folder or in
NUMBA_CACHE_DIR. If none is writable, every process compiles for itself. A process that compiles
logs it, because the first batch waits for it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from typing import Any

import numba
from numba.core import event
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.cpython.unsafe import numbers

from streampack.notices import is_first, open_shared

logger = logging.getLogger(__name__)

#: Time to compile a run's kernels on one core of a server; docs/performance.md has the command.
ABOUT_S = 15
#: A process that has waited this long for another one's compilation compiles too.
LONGEST_WAIT_S = 120.0

# A child forked while another thread compiles would wait forever for numba's lock.
os.register_at_fork(
    before=global_compiler_lock.acquire,
    after_in_parent=global_compiler_lock.release,
    after_in_child=global_compiler_lock.release,
)

_folders: set[str] = set()
_inner: list[Any] = []
_njit: Any = partial(numba.njit, nogil=True, no_cfunc_wrapper=True)


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
            dispatcher = _njit(cache=True)(function)
        except RuntimeError:  # "cannot cache function ...: no locator available"
            dispatcher = _njit()(function)
        if dispatcher is not function:  # which numba returns if its settings forbid compilation
            self.call = dispatcher
            self._folder = folder_of(dispatcher)
            self._compile = dispatcher._compile_for_args
            dispatcher._compile_for_args = self._choose

    def _choose(self, *arguments: Any) -> Any:
        """Return the function to call; numba asks where it has no code for these types."""
        with global_compiler_lock:
            with _Compilations.forbidden():
                try:
                    return self._compile(*arguments)  # loads from the cache
                except _NotCachedError:
                    pass
            if self._is_short(arguments):
                return self._run
            with _turn(self._folder):
                return self._compile(*arguments)


def type_of_inner(function: Callable[..., Any]) -> Any:
    """Return numba's type of a kernel that others call; Python cannot call its code."""
    inner = _njit(no_cpython_wrapper=True)(function)
    _inner.append(inner)  # its type does not keep it
    return inner._numba_type_


def folder_of(dispatcher: Any) -> str | None:
    """Return the cache folder of a compiled function, None if no folder is writable."""
    folder = getattr(getattr(dispatcher, "_cache", None), "cache_path", None)
    if folder is not None:
        _folders.add(folder)
    return folder


def cache_folders() -> list[str]:
    """Return the cache folders of the kernels compiled or loaded so far, sorted."""
    return sorted(_folders)


def type_of_instruction(name: str) -> Any:
    """Return numba's type of one of its functions for machine instructions."""
    context = cpu_target.typing_context
    context.refresh()
    return context.resolve_value_type(getattr(numbers, name))


@contextmanager
def _turn(folder: str | None) -> Iterator[None]:
    """Wait until no other process of this host compiles into a cache folder."""
    if folder is None:
        yield
        return
    name = sha256(os.path.dirname(folder).encode()).hexdigest()[:16]
    file = open_shared(f"compiling-{name}")
    try:
        until = time.monotonic() + LONGEST_WAIT_S
        while file is not None and time.monotonic() < until:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(0.05)
        yield
    finally:
        if file is not None:
            os.close(file)


class _NotCachedError(Exception):
    """A function would have to be compiled."""


class _Compilations(event.Listener):  # type: ignore[misc]
    """Listener that logs the first compilation, in one process of a job."""

    logged = False
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
        compiled = started.data.get("dispatcher")
        function = getattr(compiled, "py_func", None)
        if self.logged or not str(getattr(function, "__module__", "")).startswith("streampack."):
            return
        self.logged = True
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

    def on_end(self, ended: Any) -> None:
        """Do nothing; numba requires the method."""


event.register("numba:compile", _Compilations())  # type: ignore[no-untyped-call]
