"""A process that trains ends at once, whatever the store does and however the loop is left."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.ends import ENDS, STATES, State, leave, shard
from tests.support.forked import Host
from tests.support.raw_server import Connection

GATE = {("silent", "interrupt", 0)}
CELLS = [
    pytest.param(*cell, marks=[] if cell in GATE else pytest.mark.slow, id=" ".join(map(str, cell)))
    for cell in ((state, end, workers) for state in STATES for end in ENDS for workers in (0, 2))
]


@pytest.mark.parametrize(("state", "end", "workers"), CELLS)
def test_a_process_ends_in_every_state_of_the_store(
    state: State, end: str, workers: int, host: Host, tmp_path: Path
) -> None:
    data = shard()

    def healthy(connection: Connection) -> None:
        asked = re.findall(r"(?i)range: bytes=(\d+)-(\d+)", connection.head)
        first, last = map(int, asked[0]) if asked else (0, len(data) - 1)
        part = data[first : last + 1]
        head = f'Content-Length: {len(part)}\nETag: "a"\n'
        head += f"Content-Range: bytes {first}-{last}/{len(data)}\n" if asked else ""
        connection.answer("206 Partial Content" if asked else "200 OK", head, part)

    leave(state, end, workers, host, tmp_path, healthy, lambda url: (url, {}))
