"""Tests of other libraries' trainers and models run by their own command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HERE = f"{Path(__file__).parent}{os.sep}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(HERE):
            item.add_marker(pytest.mark.frameworks)
