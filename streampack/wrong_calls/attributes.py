"""missing: the error for an attribute or method that a dataset, loader or batch lacks."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from streampack.wrong_calls.names import OF_BATCHES, OF_DATASETS, OF_LOADERS

_TABLES = {"PackedDataset": OF_DATASETS, "PackedLoader": OF_LOADERS, "PackedBatch": OF_BATCHES}
#: Facts on methods of Python's protocols.
_PROTOCOLS = {
    "__len__": "has no length",
    "__next__": "is no iterator",
    "__getitem__": "has no items by index or name",
}


class MissingAttributeError(AttributeError, TypeError):
    """An attribute that does not exist; a `TypeError` for `len`, `next` and items."""


def missing(instance: Any, name: str) -> MissingAttributeError:
    """Return the error for an attribute that an object does not have, with the call to write."""
    kind = type(instance)
    if name not in _PROTOCOLS and hasattr(kind, name):
        object.__getattribute__(instance, name)  # a property raised AttributeError; raise it again
    tables = [_TABLES[base.__name__] for base in kind.__mro__ if base.__name__ in _TABLES]
    words = next((table[name] for table in tables if name in table), None)
    if words is None:
        similar = get_close_matches(name, [each for each in dir(kind) if each[0] != "_"], 1)
        words = f"it has {similar[0]!r}" if similar else f"help({kind.__name__}) lists them"
    fact = _PROTOCOLS.get(name, f"has no attribute {name!r}")
    return MissingAttributeError(f"{kind.__name__} {fact}: {words}.")
