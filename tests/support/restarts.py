"""Every cursor of a source's lanes leads to the rest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from streampack.sources.base import Cursor, LaneReader, Source
from tests.support.source_contract import Document, read_lane


def assert_restarts(
    source: Source, expected: Sequence[str | Sequence[int]], lane_counts: Sequence[int] = (1,)
) -> None:
    """All lanes together give each document once, and every cursor leads to the rest."""
    wanted = [d if isinstance(d, str) else tuple(d) for d in expected]
    json.dumps(source.describe())
    source.prepare()
    for shuffle in (False, True):
        for n in lane_counts:
            found: list[tuple[tuple[int, int], Document]] = []
            for lane in source.lanes(n, seed=3, epoch=0, shuffle=shuffle):
                blocks = read_lane(lane)
                assert read_lane(lane) == blocks
                for k, (block, cursor) in enumerate(blocks):
                    found += block
                    assert_rest(lane, cursor, blocks[k + 1 :])
            names = [name for name, _ in found]
            assert len(set(names)) == len(names)
            assert sorted(str(d) for _, d in found) == sorted(str(d) for d in wanted)
            if n == 1:
                assert [d for _, d in sorted(found, key=lambda pair: pair[0])] == wanted


def assert_rest(lane: LaneReader, cursor: Cursor, rest: list[tuple[Any, Cursor]]) -> None:
    """A cursor gives the rest of the blocks; the states in their cursors may be put differently."""
    again = read_lane(lane, cursor)
    assert [block for block, _ in again] == [block for block, _ in rest]
    assert [c["count"] for _, c in again] == [c["count"] for _, c in rest]
