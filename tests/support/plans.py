"""Plans of packers, checked, as lists of rows."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from streampack.packing import Packer, Plan, check_plan
from tests.support import packing_reference as reference

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
