"""Every packer on no document, on a very long one and on very many of one token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streampack.packers.kinds import packer_kinds, with_rows
from streampack.packing import Pad, Seamless
from tests.support.plans import planned

SEQ_LEN = 2048
LONG = 10_000_000
PACKERS: list[Any] = [with_rows(kind, SEQ_LEN) for kind in packer_kinds().values()]
by_name = {"ids": lambda packer: type(packer).__name__}


def tokens_per_row(packer: Any, lengths: list[int]) -> list[int]:
    plan = planned(packer, lengths)
    row = np.repeat(np.arange(plan.num_rows), np.diff(plan.row_offsets))
    sizes = plan.stop - plan.start + plan.insert_eos
    return sorted(np.bincount(row, sizes, plan.num_rows).astype(int).tolist(), reverse=True)


def cut(total: int, size: int) -> list[int]:
    return [size] * (total // size) + ([total % size] if total % size else [])


@pytest.mark.parametrize("packer", PACKERS, **by_name)
def test_ten_million_tokens_fill_their_rows(packer: Any) -> None:
    found = tokens_per_row(packer, [LONG])
    if isinstance(packer, Pad):  # all rows but the last have an EOS of their own
        assert found == cut(LONG + (LONG - 2) // (SEQ_LEN - 1), SEQ_LEN)
    elif isinstance(packer, Seamless):  # stretched to one row more, which is full too
        assert found == [SEQ_LEN] * (LONG // SEQ_LEN + 1)
    else:
        assert found == cut(LONG, SEQ_LEN)
