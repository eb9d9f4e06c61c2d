"""WindowConfig: the size of a lane's look-ahead window and the limits of waiting."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from streampack.arguments import explained, real_number, whole_number
from streampack.errors import ConfigError
from streampack.packing.packer import Packer

#: With the default number of lanes, utilisation is within 0.05 points of packing the whole corpus.
DEFAULT_ROWS = 320


@explained
@dataclass(frozen=True, kw_only=True)
class WindowConfig:
    """Size of a lane's look-ahead window and limits of waiting.

    Args:
        rows: largest size of the window, in rows of the packer's longest; by default 320, or four
            batches if that is more. More rows reduce padding and take more memory.
        documents: largest number of documents, exceeded only if they do not fill one batch.
        min_fill: share of a row's slots above which it counts as full and is delivered.
        carry: share of the window's tokens that may stay for the next round.
        max_carries: rounds after which a document must go with the next batch. Rows that do not
            fill a batch stay a further round, and so do the tokens of documents that are not yet
            read to their end, also if it is 0.
        memory_limit: memory in bytes for the windows and readers of one rank, which determines the
            number of lanes if ``lanes`` is None.
    """

    rows: int | None = None
    documents: int = 65_536
    min_fill: float = 0.999
    carry: float = 0.5
    max_carries: int = 16
    # Excluded, because it does not affect rows.
    memory_limit: int = field(default=2 << 30, compare=False)

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
        """Return a copy with `rows` set to a number.

        Raises:
            ConfigError: the window is too small to guarantee a batch.
        """
        longest = packer.seq_lens[-1]
        batch_size = batch_tokens // longest
        rows = max(DEFAULT_ROWS, 4 * batch_size) if self.rows is None else self.rows
        least = -(-sure_tokens(packer, batch_tokens) // longest)
        if rows < least:
            raise ConfigError(
                f"The window must have at least {least} rows for batches of {batch_size} rows of "
                f"{longest} tokens, got rows={rows}.",
                f"Use WindowConfig(rows={least}) or more; {DEFAULT_ROWS} rows pack well.",
                setting="rows",
            )
        return replace(self, rows=rows)

    def tokens(self, packer: Packer) -> int:
        """Return the largest number of tokens in the window; requires a resolved configuration."""
        assert self.rows is not None
        return self.rows * packer.seq_lens[-1]

    def describe(self) -> dict[str, Any]:
        """Return the JSON-compatible identity for the fingerprint."""
        described = asdict(self)
        del described["memory_limit"]
        return described


def sure_tokens(packer: Packer, batch_tokens: int) -> int:
    """Return tokens that guarantee a batch: its rows, and two rows that may have to wait."""
    longest = packer.seq_lens[-1]
    return batch_tokens // longest * packer._max_tokens_per_row + 2 * longest
