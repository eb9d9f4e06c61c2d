"""LaneConfig: all that the batches of a run's lanes follow from."""

from __future__ import annotations

from dataclasses import dataclass

from streampack.dealing.rule import DealRule
from streampack.packing.balancing import Balance
from streampack.packing.packer import Packer
from streampack.streams.stream import StreamConfig
from streampack.window.config import WindowConfig
from streampack.window.context_schedule import ContextSchedule
from streampack.window.gather import RowFormat

__all__ = ["LaneConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneConfig(StreamConfig):
    """Everything that determines the batches of a run, shared by all of its lanes.

    Attributes:
        packer, window (resolved), batch_tokens: how rows are made and grouped.
        row_format: how they are written.
        balance: the schedule of costs, measured; None goes by no costs.
        boundaries: how far attention reaches back in each batch; None does not limit it.
        dealing: how the lanes are dealt the source; None divides every epoch equally among them.
    """

    packer: Packer
    window: WindowConfig
    batch_tokens: int
    row_format: RowFormat
    balance: Balance | None = None
    boundaries: ContextSchedule | None = None
    dealing: DealRule | None = None
