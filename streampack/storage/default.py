"""Default storage, for sources created without one."""

from __future__ import annotations

import os
from weakref import WeakValueDictionary

from streampack.storage.storage import Storage

_kept: WeakValueDictionary[int, Storage] = WeakValueDictionary()  # storages by environment


def default_storage() -> Storage:
    """Return a `Storage` with default settings, shared by all who use it now.

    The sources of a mixture so have one set of connections, and read ahead within one limit. With
    other variables in the environment, such as keys or a cache directory, it is another one.
    """
    environment = hash(frozenset(os.environ.items()))
    storage = _kept.get(environment)
    if storage is None:
        storage = _kept.setdefault(environment, Storage())
    return storage
