"""Formats' own readers give the same tokens as packed batches of the same files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.readers import CASES, bare, packed

rng = np.random.default_rng(0)
DOCUMENTS = [rng.integers(1, 50_000, n).astype(np.uint16) for n in rng.integers(1, 500, 50)]


@pytest.mark.parametrize("name", CASES)
def test_a_reader_gives_as_many_tokens_as_packed_batches(name: str, tmp_path: Path) -> None:
    try:
        read, source = CASES[name](tmp_path, DOCUMENTS)
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    total = sum(map(len, DOCUMENTS))
    ends = len(DOCUMENTS) if name == "numpy's memory map" else 0  # each has its end token
    assert bare(read) == packed(source) == total + ends
