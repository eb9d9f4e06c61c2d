"""Hiding torch's DataLoader worker from an iterable."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_lock = threading.RLock()


@contextmanager
def outside_worker() -> Iterator[None]:
    """Hide torch's DataLoader worker from the iterables that are used inside the context.

    Datasets made for a plain DataLoader ask which worker they are in and yield that worker's part
    only. Here lanes have divided the data already, and dividing it twice would lose documents.
    """
    module: Any = sys.modules.get("torch.utils.data._utils.worker")
    if module is None or getattr(module, "_worker_info", None) is None:
        yield
        return
    with _lock:
        info = module._worker_info
        module._worker_info = None
        try:
            yield
        finally:
            module._worker_info = info
