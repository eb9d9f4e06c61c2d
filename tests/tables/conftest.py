"""The tables that `write_delta` and `write_iceberg` wrote, unpacked for a test."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Unpacked = tuple[Path, dict[int, list[list[Any]]]]


@pytest.fixture
def unpacked(tmp_path: Path) -> Callable[[str], Unpacked]:
    """The path of a table by its format, and its rows at each version by the format's library."""

    def unpack(name: str) -> Unpacked:
        with zipfile.ZipFile(Path(__file__).with_name(f"{name}.zip")) as archive:
            archive.extractall(tmp_path / name)
        found = json.loads((tmp_path / name / "expected.json").read_text())
        return tmp_path / name / "table", {int(version): rows for version, rows in found.items()}

    return unpack
