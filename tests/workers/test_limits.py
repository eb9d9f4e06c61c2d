"""How far ahead of the loop lanes in workers may go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from streampack.workers import feed


@pytest.mark.parametrize(("lanes", "ranks", "turn"), [(12, 4, 12), (2, 8, 8)])
def test_lanes_in_workers_may_go_a_whole_step_of_all_ranks_ahead(
    lanes: int, ranks: int, turn: int
) -> None:
    config, topology = SimpleNamespace(lanes=lanes), SimpleNamespace(world_size=ranks)
    share: Any = SimpleNamespace(config=config, topology=topology, start=24)
    items: Any = [SimpleNamespace(step=30 // lanes, lane=30 % lanes)]
    told = []
    assert [*feed._followed(lambda _: iter(items), lambda *at: told.append(at), share)] == items
    assert told == [(24, turn), (30, turn)]
