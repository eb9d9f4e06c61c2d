"""Plans of packers, checked, as lists of rows; and requests as a window makes them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from streampack.packing import Packer, Plan, WindowRequest, check_plan
from tests.support import packing_reference as reference

PATIENT = 16  # rounds that documents may wait
LENGTHS = st.lists(st.one_of(st.integers(0, 40), st.integers(0, 400)), max_size=60)


def rows_of(plan: Plan) -> list[reference.Row]:
    rows = []
    for r in range(plan.num_rows):
        segments = range(plan.row_offsets[r], plan.row_offsets[r + 1])
        rows.append(
            [(int(plan.document[s]), int(plan.start[s]), int(plan.stop[s])) for s in segments]
        )
    return rows


def planned(packer: Packer, lengths: list[int], seed: int = 0) -> Plan:
    array = np.array(lengths, dtype=np.int64)
    plan = packer.plan(array, final=True, seed=seed)
    check_plan(plan, array)
    return plan


def window_request(lengths: list[int], *, seq_len: int, **changes: Any) -> WindowRequest:
    """Documents of these lengths, held in full and new."""
    tokens = np.array(lengths, dtype=np.int64)
    values: dict[str, Any] = {
        "lengths": tokens,
        "remaining": tokens,
        "held": tokens,
        "delivered": np.zeros_like(tokens),
        "rounds_left": np.full(len(tokens), PATIENT),
        "batch_tokens": 2 * seq_len,
        "seq_len": seq_len,
        "final": False,
        "growing": False,
        "min_fill": 0.999,
        "carry": 0.5,
        "step": 3,
        "seed": 2,
        "schedule_seed": 1,
    }
    return WindowRequest(**{**values, **changes})
