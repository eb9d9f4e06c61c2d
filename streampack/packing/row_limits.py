"""RowLimits: the documents that fit a row together, and the rows that fit a batch.

A row is limited by its tokens. A leaf derives further limits, by fields of the documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Fields

if TYPE_CHECKING:
    from streampack.packing.fit_decreasing import Decreasing
    from streampack.packing.packer import Packer
    from streampack.packing.plan import Plan
    from streampack.packing.request import DocumentSizes, Selection, WindowRequest

_TOKENS = np.zeros(0, dtype=np.int64)


class RowLimits:
    """The limit of a row by tokens alone.

    Attributes:
        divides: True if the limit divides documents into parts that it packs apart, each within the
            packer's other limits.
    """

    divides: ClassVar[bool] = False

    @property
    def fields(self) -> tuple[str, ...]:
        """Document fields of integers that the limit uses: their values are the weights."""
        return ()

    @property
    def window_share(self) -> int:
        """The reserve of lanes has a window, but at most 1 / `window_share` of a lane."""
        return 128

    def require(self, packer: Packer) -> None:
        """Raise `ConfigError` if the packer cannot keep the limit."""

    def around(self, inner: RowLimits) -> RowLimits:
        """Return this limit with the packer's other limits, `inner`, inside."""
        return self

    def add(self, recipe: Any) -> None:
        """Add the limit's stages to a run; raise `ConfigError` if its fields are not declared."""

    def describe(self) -> dict[str, Any]:
        """Return the JSON-compatible identity, for the description of the packer."""
        return {}

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


def combined(limits: Sequence[RowLimits], rows: RowLimits) -> RowLimits:
    """Return all limits of a row as one, around `rows`, the limit by tokens."""
    for limit in sorted(limits, key=lambda each: each.divides):
        rows = limit.around(rows)
    return rows
