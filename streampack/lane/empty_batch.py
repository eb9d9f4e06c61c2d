"""Empty batches: rows of padding only, for lanes that have run dry before others."""

from __future__ import annotations

from streampack.lane.config import LaneConfig
from streampack.window.empty_rows import empty_rows
from streampack.window.packed_rows import PackedRows

__all__ = ["padding_rows"]


def padding_rows(config: LaneConfig, step: int) -> PackedRows:
    """The rows of an empty batch, in the shape that batch number `step` of any lane has.

    Args:
        config: of the run.
        step: of the lane; with a packer of several row lengths it fixes the row length.
    """
    seq_len = config.packer.seq_len_at(step, schedule_seed=config.seed)
    return empty_rows(config.row_format, config.batch_tokens // seq_len, seq_len)
