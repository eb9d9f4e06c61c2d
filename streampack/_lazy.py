"""Public names of a package, listed in its `__init__.pyi` and imported on first use."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import Any


def public_names(package: str, file: str) -> tuple[Any, Any, list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package.

    Args:
        package: name of the package.
        file: its `__init__.py`; the imports of the stub beside it are the public names.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text()).body
    imports = [node for node in stub if isinstance(node, ast.ImportFrom)]
    modules = {alias.name: str(node.module) for node in imports for alias in node.names}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if modules[name] == package:
            return import_module(f"{package}.{name}")
        return getattr(import_module(modules[name]), name)

    return load, lambda: [*modules], [*modules]
