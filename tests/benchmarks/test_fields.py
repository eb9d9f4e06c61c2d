"""The benchmark of fields: two float32 fields are eight bytes per token more."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fields import EXPERTS, FIELDS, run, write, write_experts

pytestmark = pytest.mark.slow


def test_fields_add_their_bytes_to_messages(tmp_path: Path) -> None:
    write(tmp_path, 200)
    (_, without), (_, with_fields) = run(tmp_path, None), run(tmp_path, FIELDS)
    assert 4.9 < with_fields / without < 5.0


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_several_numbers_add_their_bytes_to_messages(kind: str, tmp_path: Path) -> None:
    tokens = write_experts(tmp_path, 100)
    (_, without), (_, num_bytes) = run(tmp_path / kind, None), run(tmp_path / kind, EXPERTS)
    slots = (num_bytes - without) / 768
    assert tokens <= slots < 1.4 * tokens
