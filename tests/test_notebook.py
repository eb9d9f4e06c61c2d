"""The notebook runs from top to bottom; its outputs are committed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CELLS = json.loads((ROOT / "docs" / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]


def printed(cell: dict[str, list[dict[str, list[str]]]]) -> str:
    return "".join(line for part in cell["outputs"] for line in part.get("text", []))


def test_every_link_of_the_notebook_leads_to_a_page() -> None:
    text = "".join(line for cell in CELLS for line in cell["source"])
    pages = {part.split(")")[0] for part in text.split("](")[1:]}
    assert pages
    assert all((ROOT / "docs" / page).is_file() for page in pages)


def test_the_outputs_of_the_notebook_are_of_a_run_from_top_to_bottom() -> None:
    counts = [cell["execution_count"] for cell in CODE]
    assert counts == list(range(1, len(CODE) + 1))
    assert any(part["output_type"] == "display_data" for cell in CODE for part in cell["outputs"])


@pytest.mark.docs
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    script = "\n\n".join("".join(cell["source"]) for cell in CODE)
    (tmp_path / "cells.py").write_text(script)
    environment = {**os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "cells.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    resumed = next(line for line in run.stdout.splitlines() if "without a stop" in line)
    assert resumed in "".join(map(printed, CODE))
