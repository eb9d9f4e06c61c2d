"""ContextSchedule: attention that reaches further and further back in the course of a run.

Steps, for batch number g of the run:
  1. The context window w(g) grows linearly from `start` to `end` over the first `batches` batches,
     rounded up to a multiple.
  2. An attention segment ends wherever a row reaches a multiple of w(g), and where it would end
     without the schedule.
Rows, tokens, labels and so the loss are those without it. The first token of a window is still
predicted, from the last one of the window before it, which saw that window.

Positions count from the start of every window, as from that of every segment, because many
consumers read the boundaries off them. For rotary positions only distances matter, which are the
same; learned absolute positions beyond w(g) are not trained before the window has grown to them.

Cost: some numpy calls per batch, on its boundaries. Attention over windows costs w(g) per token
instead of the length of its document.

Source: T. Zhu et al., "SkyLadder: Better and Faster Pretraining via Context Window Scheduling"
(2025), with its released code: windows lie at multiples of w from the beginning of the row, the
linear schedule is 1/8 of a token per step at its slowest, and the loss of no token is left out.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from streampack.arguments import explained, whole_number
from streampack.errors import ConfigError
from streampack.window.packed_rows import PackedRows


@explained
@dataclass(frozen=True, kw_only=True)
class ContextSchedule:
    """How many tokens attention reaches back in each batch: few at first, then more.

    A window ends at every multiple of its length, counted from the beginning of a row; documents
    are apart as without it.

    >>> schedule = ContextSchedule(start=256, end=1024, batches=1000, multiple=128)
    >>> list(map(schedule.window_at, (0, 1, 500, 999, 5000)))
    [256, 384, 640, 1024, 1024]

    Args:
        start: tokens of a window at first; end: at last, for example the tokens of a row.
        batches: batches of the run, over all ranks, until it is `end`: optimiser steps times the
            batches that one takes.
        multiple: windows are a multiple of it, rounded up, for kernels that work in blocks.

    Raises:
        ConfigError: the numbers make no sense.
    """

    start: int
    end: int
    batches: int
    multiple: int = 1

    def __post_init__(self) -> None:
        for name in ("start", "end", "batches", "multiple"):
            value = getattr(self, name)
            consequence = "Windows have some tokens, and grow over some batches."
            object.__setattr__(self, name, whole_number(name, value, consequence, most=1 << 40))
        if self.start > self.end or self.end % self.multiple:
            raise ConfigError(
                f"start is {self.start}, end is {self.end}, and multiple is {self.multiple}.",
                "Windows grow, and the last one is a multiple too.",
                f"Use a start of at most {self.end}, and an end that {self.multiple} divides.",
            )

    def window_at(self, batch: int) -> int:
        """Tokens of a window in batch number `batch` of the run."""
        done = min(batch, self.batches)
        grown = self.start * self.batches + (self.end - self.start) * done
        return min(-(-grown // (self.batches * self.multiple)) * self.multiple, self.end)

    def describe(self) -> dict[str, Any]:
        """JSON-able identity for the fingerprint."""
        return asdict(self)


def cut_context(packed: PackedRows, window: int) -> PackedRows:
    """The same rows, with attention segments that end at every multiple of `window` of a row."""
    seq_len, slots = packed.seq_len, len(packed.tokens)
    if window >= seq_len:
        return packed
    places = np.arange(0, slots, seq_len)[:, None] + np.arange(0, seq_len, window)
    ends = np.union1d(packed.cu_seqlens, places).astype(np.int32)
    # Runs are cut as well, so that a segment begins where a run does.
    boundaries = np.union1d(packed.boundaries, places).astype(np.int32)
    run = np.searchsorted(packed.boundaries, boundaries[:-1], side="right") - 1
    piece = packed.piece[run]
    lengths = np.diff(ends).astype(np.int64)
    filled = piece[np.searchsorted(boundaries, ends[:-1])] >= 0
    return packed._replace(
        boundaries=boundaries,
        piece=piece,
        cu_seqlens=ends,
        max_seqlen=int(lengths.max()),
        sum_squared_lengths=int((lengths[filled] ** 2).sum()),
        uncut=packed.cu_seqlens,
    )
