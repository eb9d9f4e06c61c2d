"""Formats' own readers give the same tokens as packed batches of the same files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.readers import CASES, bare, packed

rng = np.random.default_rng(0)
DOCUMENTS = [rng.integers(1, 50_000, n).astype(np.uint16) for n in rng.integers(1, 500, 50)]


LIMITS = ("copying 28 bytes per token", "numpy's memory map, ids and labels of rows")


@pytest.mark.parametrize("name", [name for name in CASES if name not in LIMITS])
def test_a_reader_gives_as_many_tokens_as_packed_batches(name: str, tmp_path: Path) -> None:
    try:
        read, source = CASES[name](tmp_path, DOCUMENTS)
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    total = sum(map(len, DOCUMENTS))
    ends = len(DOCUMENTS) if name == "numpy's memory map" else 0  # each has its end token
    assert bare(read) == packed(source) == total + ends


def test_what_is_timed_beside_them_gives_whole_batches_or_blocks(tmp_path: Path) -> None:
    block = bare(CASES[LIMITS[0]](tmp_path, DOCUMENTS)[0])
    assert block > sum(map(len, DOCUMENTS))  # one, of 256 MiB
    rows = bare(CASES[LIMITS[1]](tmp_path, DOCUMENTS * 10)[0])
    assert rows % (8 * 4096) == 0 < rows <= 10 * sum(map(len, DOCUMENTS))
