"""The benchmark of fields: two float32 fields are eight bytes per token more."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fields import run, write

pytestmark = pytest.mark.slow


def test_fields_add_their_bytes_to_what_travels(tmp_path: Path) -> None:
    write(tmp_path, 200)
    (_, without), (_, with_fields) = run(tmp_path, False), run(tmp_path, True)
    assert 4.9 < with_fields / without < 5.0
