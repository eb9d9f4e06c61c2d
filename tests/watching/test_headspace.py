"""`Headspace` compares a loop's steps with steps on batches that lie ready."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from streampack import Headspace, PackedDataset, PackedLoader, Topology
from streampack.errors import ConfigError


def slow_loader(count: int, pause_s: float) -> Iterator[int]:
    for i in range(count):
        time.sleep(pause_s)
        yield i


def test_the_last_batches_are_repeated_and_a_slow_loader_has_much_to_gain() -> None:
    headspace = Headspace(slow_loader(100, 0.02), steps=6, batches=3, warm_up=2)
    items = []
    for item in headspace:
        items.append(item)
        time.sleep(0.002)
    assert items == [*range(8), 5, 6, 7, 5, 6, 7]
    assert headspace.loader_s >= 0.022
    assert headspace.ready_s >= 0.002
    assert headspace.gain > 2
    assert f"{headspace.gain:.3g}" in str(headspace)


def test_a_loop_with_a_slow_step_has_little_to_gain() -> None:
    headspace = Headspace(slow_loader(100, 0), steps=6, batches=3, warm_up=2)
    for _ in headspace:
        time.sleep(0.05)
    assert headspace.gain < 1.5


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_state_of_the_loader_stays_at_its_last_batch(num_workers: int) -> None:
    dataset = PackedDataset([[1] * 20] * 500, seq_len=32, batch_size=2, topology=Topology())
    loader: PackedLoader[Any] = PackedLoader(dataset, num_workers=num_workers)
    assert len(list(Headspace(loader, steps=5, warm_up=3))) == 13
    assert loader.state_dict()["next_batch"] == 8
    assert next(iter(loader)).num_tokens  # it continues behind them


def test_a_loader_that_ends_too_early_gives_no_figure() -> None:
    headspace = Headspace(slow_loader(9, 0), steps=6, warm_up=4)
    with pytest.raises(ConfigError) as raised:
        list(headspace)
    assert raised.value.setting == "steps"
