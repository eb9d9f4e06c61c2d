"""Importing the format code of mosaicml-streaming without its vision and multimodal packages.

`import streaming` imports torchvision, which fails if torchvision was built for another torch (a
CUDA build with a CPU torch, for example), although nothing in `streaming.base` needs it. So a bare
module takes the place of the package, with its path but without its `__init__`. Its writer defines
MDS shards, and its reader must return the documents of ours.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

__all__ = ["streaming_module"]

_PACKAGE = "streaming"
_lock = threading.RLock()
_ours: dict[str, ModuleType] = {}


@contextmanager
def streaming_module(name: str) -> Iterator[Any]:
    """Import `streaming.<name>` for the length of a `with` block, for example "base.format.mds".

    If the program has imported streaming itself, that package is used and nothing else happens.
    Otherwise the modules are in `sys.modules` only inside the block (some of them look themselves
    up there while they work). After the block `sys.modules` is as it was, so that a later
    `import streaming` works as usual. The modules are kept for the next block. Meant for short
    blocks in one thread: another thread that imports streaming at the same moment would get the
    bare package.

    Raises:
        ImportError: mosaicml-streaming is not installed.
    """
    with _lock:
        if _is_complete(sys.modules.get(_PACKAGE)):
            yield importlib.import_module(f"{_PACKAGE}.{name}")
            return
        before = _take_out()
        sys.modules.update(_ours or _bare_package())
        try:
            module = importlib.import_module(f"{_PACKAGE}.{name}")
            if writer := sys.modules.get(f"{_PACKAGE}.base.format.base.writer"):
                # It asks every second whether its files are written.
                writer.sleep = _briefly  # type: ignore[attr-defined]
            yield module
        finally:
            _ours.update(_take_out())
            sys.modules.update(before)


def _briefly(seconds: float) -> None:
    time.sleep(min(seconds, 0.005))


def _is_complete(module: ModuleType | None) -> bool:
    return module is not None and module is not _ours.get(_PACKAGE)


def _take_out() -> dict[str, ModuleType]:
    """Remove the package and its modules from `sys.modules`, and return them."""
    names = [key for key in sys.modules if key == _PACKAGE or key.startswith(f"{_PACKAGE}.")]
    return {key: sys.modules.pop(key) for key in names}


def _bare_package() -> dict[str, ModuleType]:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError("mosaicml-streaming is not installed")
    package = ModuleType(_PACKAGE)
    package.__path__ = list(spec.submodule_search_locations)
    package.__spec__ = spec
    return {_PACKAGE: package}
