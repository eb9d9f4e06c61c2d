"""The corpus that conversions of several files read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.conversions import write_lines


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of JSON lines."""
    return write_lines(tmp_path_factory.mktemp("lines"))
