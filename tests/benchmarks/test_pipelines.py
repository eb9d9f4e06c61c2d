"""The simulated pipelines wait as the formula has it, and less with an order of micro-batches."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.pipelines import bubble, line, schedule


@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_the_bubble_of_equal_micro_batches_matches_the_formula(stages: int, chunks: int) -> None:
    count = 3 * stages
    for stage in range(stages):
        assert len({*schedule(stage, stages, chunks, count)}) == 2 * count * chunks
    expected = (stages - 1) / (count * chunks + stages - 1)
    assert bubble(np.full(count, 0.7), stages, chunks) == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [1, 2])
def test_stages_wait_less_with_the_costliest_micro_batches_in_the_middle(chunks: int) -> None:
    lengths = np.random.default_rng(0).lognormal(np.log(3000), 1.3, 1024).astype(np.int64)
    cells = line(np.clip(lengths, 16, 32_768), 32_768, 4, chunks)
    shuffled, decreasing, peaked = (float(cell.removesuffix(" %")) for cell in cells[4:7])
    assert peaked <= decreasing < shuffled
    assert peaked < decreasing or chunks == 1  # where so few documents gain less than 0.1 %
