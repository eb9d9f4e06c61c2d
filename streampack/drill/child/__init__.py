"""Watch a training process from inside: steps, batches, losses, random states and saves.

`streampack drill` loads this folder in every Python process of the command, before its own code,
under the name `streampack_drill_child`, and perhaps in another environment. So it imports the
standard library and itself alone, and changes torch only after the program has imported it.
Observations are lines of JSON in a file of the process.
"""

from __future__ import annotations

import functools
import importlib.machinery
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from .saves import Saves
from .steps import Steps
from .store import ANSWERS, REQUESTS, Store
from .watch import Watch

SETTINGS = "STREAMPACK_DRILL"


class Finder:
    """Finds modules as usual, and calls a function after the import of some."""

    def __init__(self, after: dict[str, Callable[[], None]]) -> None:
        self.after = after

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find the module without this finder; see `importlib.abc.MetaPathFinder`."""
        if name not in self.after:
            return None
        then = self.after.pop(name)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_then(module: Any) -> None:
                execute(module)
                then()

            spec.loader.exec_module = execute_then  # type: ignore[method-assign]
        return spec


def start() -> None:
    """Begin to watch this process; called by the drill's `sitecustomize`."""
    settings = json.loads(os.environ[SETTINGS])
    watch = Watch(settings)
    saves, steps, store = Saves(watch, settings), Steps(watch), Store(watch)

    def after_torch() -> None:
        steps.watch_torch()
        saves.watch_torch()

    after = {"torch": after_torch, "safetensors.torch": saves.watch_safetensors}
    for module in {name for name, _, _ in (*REQUESTS, *ANSWERS)}:
        after[module] = functools.partial(store.watch_client, module)
    sys.meta_path.insert(0, Finder(after))  # type: ignore[arg-type]
    sys.addaudithook(saves.audit)
