"""WindowConfig: how far a lane looks ahead, and what may wait."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from streampack.arguments import explained, real_number, whole_number
from streampack.errors import ConfigError
from streampack.packing.packer import Packer

#: With the lanes chosen by default, within 0.05 points of planning everything.
DEFAULT_ROWS = 320


@explained
@dataclass(frozen=True, kw_only=True)
class WindowConfig:
    """How far a lane looks ahead, and what may wait.

    Args:
        rows: the window holds at most the tokens of so many rows of the packer's longest; None is
            320, or four batches if that is more.
        documents: documents it holds at most (more only where that many do not fill one batch).
        min_fill: share of a row's slots above which it counts as full and goes.
        carry: share of the window's tokens that may stay for the next round.
        max_carries: rounds a document may stay before it must go.
        memory_limit: bytes for the windows and readers of one rank, by which lanes are chosen
            where ``lanes`` is None.
    """

    rows: int | None = None
    documents: int = 65_536
    min_fill: float = 0.999
    carry: float = 0.5
    max_carries: int = 16
    memory_limit: int = field(default=2 << 30, compare=False)  # rows are the same with any

    def __post_init__(self) -> None:
        if self.rows is not None:
            rows = whole_number("rows", self.rows, most=1 << 31)
            object.__setattr__(self, "rows", rows)
        for name, least, most in (("documents", 1, 1 << 31), ("max_carries", 0, 1000)):
            number = whole_number(name, getattr(self, name), least=least, most=most)
            object.__setattr__(self, name, number)
        limit = whole_number("memory_limit", self.memory_limit)
        object.__setattr__(self, "memory_limit", limit)
        for name, highest in (("min_fill", 1.0), ("carry", 0.95)):
            share = real_number(name, getattr(self, name), least=0, most=highest)
            object.__setattr__(self, name, share)

    def resolve(self, packer: Packer, batch_tokens: int) -> WindowConfig:
        """The same with `rows` as a number.

        Raises:
            ConfigError: the window could not be sure to hold one batch.
        """
        longest = packer.seq_lens[-1]
        batch_size = batch_tokens // longest
        rows = max(DEFAULT_ROWS, 4 * batch_size) if self.rows is None else self.rows
        least = -(-sure_tokens(packer, batch_tokens) // longest)
        if rows < least:
            raise ConfigError(
                f"The window has rows={rows}, and a batch has {batch_size} rows of {longest} "
                "tokens.",
                f"Use WindowConfig(rows={least}) or more; {DEFAULT_ROWS} rows pack well.",
                setting="rows",
            )
        return replace(self, rows=rows)

    def tokens(self, packer: Packer) -> int:
        """Tokens the window holds at most; of a resolved configuration."""
        assert self.rows is not None
        return self.rows * packer.seq_lens[-1]

    def describe(self) -> dict[str, Any]:
        """JSON-able identity for the fingerprint."""
        described = asdict(self)
        del described["memory_limit"]
        return described


def sure_tokens(packer: Packer, batch_tokens: int) -> int:
    """Tokens that are sure to make a batch: its rows, and two more that may hold later tokens."""
    longest = packer.seq_lens[-1]
    return batch_tokens // longest * packer.max_tokens_per_row + 2 * longest
