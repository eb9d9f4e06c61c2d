"""A dictionary of the entries that were used last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class KeepLast(OrderedDict[K, V]):
    """Up to `most` entries. Threads may use it at once; it has no lock that a fork could inherit.

    Args:
        most: number of entries; `keep` drops those that it was not asked for the longest.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def keep(self, key: K, make: Callable[[], V]) -> V:
        """Return the entry of a key, made if it is missing, as the one used last.

        Of values that two threads make at once, both get the first.
        """
        value = self.get(key)
        if value is None:
            value = self.setdefault(key, make())
        with suppress(KeyError):  # another thread removed it
            self.move_to_end(key)
            while len(self) > self.most:
                self.popitem(last=False)
        return value
