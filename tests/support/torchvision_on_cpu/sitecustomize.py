"""Makes torchvision's build for CUDA importable beside a CPU build of torch.

PyPI has no other one, and its operators cannot be loaded there. Once two of them are declared, all
else of it can be imported, which resizes images and films by torch alone; transformers and
torchmetrics import it where it is installed. Programs that tests start have this folder on their
path, so Python imports this module first of all; `tests/conftest.py` imports it for the tests.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_NAME = "torchvision"
_kept: list[object] = []


class _Loader(importlib.abc.Loader):
    def __init__(self, usual: importlib.abc.Loader) -> None:
        self._usual = usual

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._usual.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        try:
            self._usual.exec_module(module)
        except RuntimeError:  # "operator torchvision::nms does not exist"
            import torch

            operators = torch.library.Library(_NAME, "DEF")
            for name in ("nms", "qnms"):
                operators.define(f"{name}(Tensor a, Tensor b, float c) -> Tensor")
            _kept.append(operators)
            for name in [name for name in sys.modules if name.startswith(f"{_NAME}.")]:
                del sys.modules[name]
            self._usual.exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _NAME:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
