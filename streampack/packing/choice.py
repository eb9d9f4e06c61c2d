"""RowChoice: the rows of a plan that are delivered this round, and their order.

The functions of `streampack.packing.selection` rank the rows of a plan by urgency and fill, and ask
the request's choice where a rank alone does not decide. A leaf derives a choice of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampack.packing.row_limits import RowLimits

if TYPE_CHECKING:
    from streampack.packing.packer import Packer
    from streampack.packing.plan import Plan
    from streampack.packing.request import WindowRequest


class RowChoice:
    """Deliver the rows that rank first, in the order of the packer or of the seed.

    Attributes:
        orders: True if the choice orders the rows itself: a full row may then wait for its position
            in a later round, and rows come in seeded random order, which breaks ties.
        measures: name of a setting that the run measures on a sample where it is None, or "".
        fields: document fields of integers that the choice uses.
        rows: the limit of a row by tokens, which may arrange documents for the choice.
    """

    orders: bool = False
    measures: ClassVar[str] = ""
    fields: tuple[str, ...] = ()
    rows: RowLimits = RowLimits()

    def require(self, packer: Packer) -> None:
        """Raise `ConfigError` if the choice does not suit the packer."""

    def add(self, recipe: Any) -> None:
        """Add the choice to a run."""
        recipe.choice = self

    def of_lane(self, lane: int, lanes: int) -> RowChoice:
        """Return the choice of the lane with index `lane` of so many."""
        return self

    def adapted(self, request: WindowRequest) -> WindowRequest:
        """Return the request that a packer plans as a whole."""
        return request

    def chosen(
        self,
        plan: Plan,
        request: WindowRequest,
        rows: NDArray[np.int64],
        must_go: int,
        pool: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Return E rows to deliver, among them the ones that must go.

        Args:
            plan: plan over the request's documents.
            request: this round's request.
            rows: (E,) int64, the rows that rank first; the first `must_go` of them must go.
            pool: (C,) int64, `rows` and the other full rows.
        """
        return rows

    def ordered(
        self, plan: Plan, request: WindowRequest, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the rows to deliver (E,) in the order of the batches."""
        return rows

    def describe(self) -> dict[str, Any] | None:
        """Return the JSON-compatible identity for the fingerprint; None for this class."""
        return None
