"""TreeColumns: the sequences of a batch of trees, attached to its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class TreeColumns(NamedTuple):
    """The S sequences of a batch of trees, with N tokens in all.

    Attributes:
        slot: (N,) int32, slot of each token of the sequences.
        ends: (S + 1,) int32, offsets of the sequences into `slot`.
        counted: (N,) bool, True where a token counts in the loss.
    """

    slot: NDArray[np.int32]
    ends: NDArray[np.int32]
    counted: NDArray[np.bool_]

    def tensors(self) -> Mapping[str, NDArray[Any]]:
        """See `PackedRows.attached`."""
        return self._asdict()

    def on_host(self) -> None:
        """See `PackedRows.attached`."""
