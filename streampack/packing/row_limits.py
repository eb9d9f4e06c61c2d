"""RowLimits: the documents that fit a row together, and the rows that fit a batch.

A row is limited by its tokens. A leaf derives further limits, by fields of the documents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Fields

if TYPE_CHECKING:
    from streampack.packing.fit_decreasing import Decreasing
    from streampack.packing.plan import Plan
    from streampack.packing.request import DocumentSizes, Selection, WindowRequest

_TOKENS = np.zeros(0, dtype=np.int64)


class RowLimits:
    """The limit of a row by tokens alone.

    Attributes:
        window_share: the reserve of lanes has a window, but at most 1 / `window_share` of a lane.
    """

    window_share: ClassVar[int] = 128

    def fits(self, sizes: DocumentSizes, seq_len: int) -> NDArray[np.bool_]:
        """Return (N,) bool: documents that fit a row of `seq_len` tokens whole."""
        return np.asarray(sizes.lengths <= seq_len)

    def excess(self, weights: Fields, i: int) -> str | None:
        """Describe the limit beside tokens that document i exceeds, or return None."""
        return None

    def plan(self, packer: Decreasing, lengths: NDArray[np.int64], weights: Fields) -> Plan:
        """Plan documents with these lengths and weights (N,) one by one, the largest first."""
        return packer.plan_tokens(lengths)

    def loads(self, plan: Plan, weights: Fields) -> NDArray[np.int64]:
        """Return the load (R,) int64 of each row in slots, by which it counts as full.

        (0,) stands for the tokens of the rows.
        """
        return _TOKENS

    def selected(self, plan: Plan, request: WindowRequest) -> Selection | None:
        """Return the rows of a plan to deliver this round, by batch; None for the fullest rows."""
        return None

    def check(self, plan: Plan, weights: Fields) -> None:
        """Raise `PlanError` if a row of the plan exceeds a limit beside tokens."""
