"""The benchmark of rollouts: every way places every rollout once."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.rollouts import WAYS, Work, differencing, drawn, line
from streampack.packing import Cost


@pytest.mark.parametrize("name", WAYS)
def test_each_way_has_every_rollout_once_and_equal_numbers_of_microbatches(name: str) -> None:
    work = Work(drawn(16, 4, 100, 512, 0), 4, 1024, 4, Cost.of_width(64))
    rows = WAYS[name](work)
    assert sorted(i for rank in rows for row in rank for i in row) == list(range(64))
    assert len({len(rank) for rank in rows}) == 1
    assert line(name, work)[0] == name


def test_differencing_matches_the_textbook() -> None:
    parts = differencing([8, 7, 6, 5, 4], 2, equal=False)
    assert sorted(np.array([8, 7, 6, 5, 4])[part].sum() for part in parts) == [14, 16]
