"""Kernels: loops over arrays that Python runs while they are short, and numba compiles after that.

A process that packs eight documents needs no compiler, and one that packs a corpus needs it after
moments. Both tiers give the same arrays. `_compiler` is imported when something is compiled or
loaded, and numba with it.
"""

from __future__ import annotations

import functools
import logging  # noqa: F401 - its lock is taken by forks too, after `_locks`
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha1
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np

from streampack.cached import cached_property

if TYPE_CHECKING:
    from streampack._compiler import Compiled

#: Processor time that a kernel may take in Python, per process and types of arguments.
BUDGET_S = 0.2
#: First estimate of the time of a step, as if this many steps had been measured.
_PRIOR_S, _PRIOR_STEPS = 1e-6, 1000.0

F = TypeVar("F", bound=Callable[..., Any])

# A fork waits until no thread imports or runs the compiler: the child could never do so itself.
_importing = threading.RLock()
_locks: list[Any] = [_importing]  # and numba's, in the order in which they are taken


def _before_fork() -> None:
    for lock in _locks:  # numba's is added while the first is held
        lock.acquire()


def _after_fork() -> None:
    for lock in reversed(_locks):
        lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


class _Tier:
    """Which tier runs: "python", "compiled" (from the first call), or "both" in turn."""

    name = {"1": "python", "0": "compiled"}.get(os.environ.get("NUMBA_DISABLE_JIT", ""), "both")
    blocks: ClassVar[set[object]] = set()  # of `compiled_at_once`, that threads are in


@contextmanager
def compiled_at_once() -> Iterator[None]:
    """Compile every kernel that the block calls, unless NUMBA_DISABLE_JIT=1."""
    _Tier.blocks.add(block := object())
    try:
        yield
    finally:
        _Tier.blocks.remove(block)


def kernel(function: F) -> F:
    """Make a function a kernel, which numba can compile.

    Python runs a call if it is expected to fit into the rest of `BUDGET_S`; other calls
    compile the kernel for their types of arguments, or load it if numba's cache has it. Compiled
    code runs without the GIL and never in parallel. Under NUMBA_DISABLE_JIT=1 all kernels remain
    Python functions, under NUMBA_DISABLE_JIT=0 none.

    Args:
        function: takes and returns arrays, numbers and tuples of them. Python numbers are returned
            by both tiers.
    """
    return kernel_of(_count_elements)(function)


def kernel_of(steps: Callable[..., Any]) -> Callable[[F], F]:
    """Make a function a kernel with an estimate of the passes through its innermost loops.

    Args:
        steps: function of the same arguments; `kernel` counts the elements of all arrays.
    """
    return lambda function: cast(Any, _Kernel(function, steps))


class _Kernel:
    """A function in two tiers."""

    def __init__(self, function: Callable[..., Any], steps: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function
        self._steps = steps
        self._call: Callable[..., Any] = self._first
        self._left: dict[Any, float] = {}  # seconds, by types of arguments
        self._spent, self._taken = _PRIOR_S * _PRIOR_STEPS, _PRIOR_STEPS

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def _first(self, *arguments: Any) -> Any:
        """Call the kernel while nothing of it is compiled or loaded."""
        if _Tier.name == "python" or (self._is_short(arguments) and not self._may_be_cached):
            return self.run(*arguments)
        return self.compiled.call(*arguments)

    def _is_short(self, arguments: tuple[Any, ...]) -> bool:
        """Return True if Python may run this call."""
        if _Tier.name != "both" or _Tier.blocks:
            return _Tier.name == "python"
        expected = float(self._steps(*arguments)) * self._spent / self._taken
        return expected <= self._left.get(_types_of(arguments), BUDGET_S)

    def run(self, *arguments: Any) -> Any:
        """Run the call in Python, at the expense of the budget."""
        steps, began = float(self._steps(*arguments)), time.thread_time()
        with np.errstate(over="ignore"):  # integers wrap around, as in compiled code
            result = self.python(*arguments)
        spent = time.thread_time() - began
        key = _types_of(arguments)
        self._left[key] = self._left.get(key, BUDGET_S) - spent
        self._spent, self._taken = self._spent + spent, self._taken + steps
        return _as_compiled(result)

    @cached_property
    def python(self) -> Callable[..., Any]:
        """Return the function, calling others directly: only the outermost one counts its time."""
        code, names = self.py_func.__code__, dict(self.py_func.__globals__)
        python = FunctionType(code, names)
        self.__dict__["python"] = python  # it may call itself
        for name in code.co_names:
            if isinstance(called := names.get(name), (_Kernel, Instruction)):
                names[name] = called.python
        return python

    @cached_property
    def compiled(self) -> Compiled:
        """Return the compiled tier; its code is loaded or made when it is called."""
        with _importing:
            from streampack._compiler import LOCK, Compiled

            if LOCK not in _locks:
                _locks.append(LOCK)
            compiled: Compiled | None = self.__dict__.get("compiled")
            if compiled is None:
                compiled = Compiled(self.py_func, self._is_short, self.run)
                self.__dict__["compiled"] = compiled  # for threads that wait here
        self._call = compiled.call
        return compiled

    @cached_property
    def _numba_type_(self) -> Any:
        from streampack._compiling import type_of_inner

        return type_of_inner(self.py_func)

    @cached_property
    def _may_be_cached(self) -> bool:
        return any(map(os.path.exists, _cache_files(self.py_func)))

    def __reduce__(self) -> str:
        return self.py_func.__qualname__


class Instruction:
    """An operation with a machine instruction: its name in numba, and its Python function."""

    def __init__(self, name: str, python: Callable[[Any], int]) -> None:
        self.name, self.python = name, python

    def __call__(self, value: Any) -> int:
        return self.python(value)

    @cached_property
    def _numba_type_(self) -> Any:
        from streampack._compiling import type_of_instruction

        return type_of_instruction(self.name)


def _count_elements(*arguments: Any) -> int:
    """Return the number of elements of all arrays in nested tuples."""
    elements = 0
    for value in arguments:
        if isinstance(value, np.ndarray):
            elements += value.size
        elif isinstance(value, tuple):
            elements += _count_elements(*value)
    return elements


def _types_of(value: Any) -> Any:
    """Return a key that differs for values of which numba compiles code apart."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.ndim, value.flags.c_contiguous, value.flags.writeable
    if isinstance(value, tuple):
        return type(value), *map(_types_of, value)
    return type(value)


def _as_compiled(result: Any) -> Any:
    """Return numpy's numbers as Python's, as compiled code returns them; states are JSON."""
    if isinstance(result, np.generic):
        return result.item()
    if isinstance(result, tuple):
        values = map(_as_compiled, result)
        return result._make(values) if hasattr(result, "_make") else tuple(values)
    return result


def _cache_files(function: Callable[..., Any]) -> Iterator[str]:
    """Yield where numba keeps its index of a function; a wrong guess costs `BUDGET_S`, no more."""
    code, version = function.__code__, "{}{}".format(*sys.version_info)
    folder, file = os.path.split(os.path.abspath(code.co_filename))
    name = f"{file.removesuffix('.py')}.{function.__qualname__}-{code.co_firstlineno}"
    index = f"{name}.py{version}{sys.abiflags}.nbi"
    apart = f"{os.path.basename(folder)}_{sha1(folder.encode()).hexdigest()}"
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        yield os.path.join(chosen, apart, index)
    yield os.path.join(folder, "__pycache__", index)
    users = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    users = os.environ.get("XDG_CACHE_HOME", os.path.expanduser(users))
    yield os.path.join(users, "numba", apart, index)
