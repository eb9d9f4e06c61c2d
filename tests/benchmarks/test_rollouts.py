"""The benchmark of rollouts: every way places every rollout once."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import rollout_lengths
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


def test_windowed_fifo_trains_long_answers_which_the_first_finished_leave_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rollout_lengths, "STEPS", 40)
    rng = np.random.default_rng(0)
    lengths = np.clip(1000 * np.exp(rng.normal(0, 1.2, 20_000)), 8, 60_000).astype(np.int64)
    shares = rollout_lengths.shares(lengths, rollout_lengths.windowed(lengths))
    assert shares.tolist() == [1.0] * len(shares)
    first = rollout_lengths.shares(lengths, rollout_lengths.first_finished(lengths))
    assert first[0] == 1.0
    assert first[-1] < 0.1
