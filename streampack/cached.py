"""cached_property without a lock, as in Python 3.12 and later.

Earlier versions share one lock among all instances of a class. A worker that is forked while
another thread computes such an attribute inherits the held lock, and would wait for it forever.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

__all__ = ["cached_property"]

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property
else:

    class cached_property:  # noqa: N801
        """See `functools.cached_property`; two threads may both compute the value."""

        def __init__(self, make: Callable[[Any], Any]) -> None:
            self.__doc__ = make.__doc__
            self._make = make

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self._make.__name__] = self._make(instance)
            return value
