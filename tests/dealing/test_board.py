"""What lanes report, as ranks exchange it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streampack.dealing.board import MemoryBoard
from streampack.dealing.rule import Report

NUMBER = st.integers(0, 1 << 61)


@given(st.builds(Report, NUMBER, NUMBER, NUMBER))
def test_ranks_exchange_exactly_what_the_board_has(report: Report) -> None:
    board, other = MemoryBoard(3, 1), MemoryBoard(3, 1)
    board.load(0, [], 4)  # a deal that gave nothing
    board.put(4, 1, 0, report)
    board.end(2, 3)
    known = board.filled(4)
    other.merge(4, known.astype(np.float32).astype(np.int64))
    assert (other.entries(4) == known).all()
    close = np.array(report) + 1
    assert (np.abs(known[1, 0] - close) <= close * 2.0**-23).all()
