"""The program's help, which is the first thing that one asks of it."""

from __future__ import annotations

import subprocess
import sys


def test_help_imports_no_library_that_takes_seconds() -> None:
    heavy = ("numba", "pandas", "pyarrow", "ray", "tokenizers", "torch", "transformers")
    code = f"""
import sys
from typer.testing import CliRunner
from streampack.cli.app import app
shown = CliRunner().invoke(app, ["explain", "--help"])
assert shown.exit_code == 0 and "--seq-len" in shown.output, shown.output
print(*[name for name in {heavy!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
