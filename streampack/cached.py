"""cached_property as it is from Python 3.12 on: without a lock.

Before, all instances of a class share one. A worker that is forked while another thread works out
such an attribute has the lock as it was, held, and would wait for it for ever.
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
        """See `functools.cached_property`; threads may work out the value twice."""

        def __init__(self, make: Callable[[Any], Any]) -> None:
            self.__doc__ = make.__doc__
            self._make = make

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self._make.__name__] = self._make(instance)
            return value
