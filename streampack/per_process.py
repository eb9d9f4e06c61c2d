"""Values that belong to one process, and are made anew in a fork of it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakSet

T = TypeVar("T")

_every: WeakSet[PerProcess[Any]] = WeakSet()
#: Values of parent processes. They are never released, also not when the child ends, because their
#: finalizers would act on the parent's connections and threads.
_inherited: list[Any] = []


class PerProcess(Generic[T]):
    """A value that is made at its first use in each process.

    Call this at each use, because a fork may come between two of them. It holds no lock, which a
    fork could inherit: of values that two threads make at once, both get the first. If making it
    fails, the next use tries again. A pickled or copied one has no value yet.

    Args:
        make: makes the value.
        leave: called in a forked child with the value of its parent, which is never released there,
            nor is the result.
    """

    def __init__(self, make: Callable[[], T], leave: Callable[[T], object] | None = None) -> None:
        self._make, self._leave = make, leave
        self._made: dict[str, T] = {}
        _every.add(self)

    def __call__(self) -> T:
        """Return this process's value."""
        made = self._made  # a fork inside `make` replaces the attribute
        return made["value"] if made else made.setdefault("value", self._make())

    def __reduce__(self) -> Any:
        return type(self), (self._make, self._leave)


def _leave_all() -> None:
    left = [(each, value) for each in _every for value in each._made.values()]
    _inherited.extend(value for _, value in left)
    for each in _every:
        each._made = {}
    for each, value in left:
        if each._leave is not None:
            _inherited.append(each._leave(value))


ctypes.pythonapi.Py_IncRef(ctypes.py_object(_inherited))
os.register_at_fork(after_in_child=_leave_all)
