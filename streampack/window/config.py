"""WindowConfig: how far a lane looks ahead, and what may wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streampack.errors import ConfigError
from streampack.numeric import real_number, whole_number
from streampack.packing.packer import Packer, most_per_row

__all__ = ["DEFAULT_ROWS", "WindowConfig", "sure_tokens"]

#: Of a window: with the lanes chosen by default, within 0.05 points of planning everything.
DEFAULT_ROWS = 320

_UNDEFINED = "What the window holds would be undefined."


@dataclass(frozen=True, kw_only=True)
class WindowConfig:
    """How far a lane looks ahead, and what may wait.

    Args:
        window_tokens: tokens the window holds at most; None is 320 rows of the packer's longest
            (or four batches, if that is more).
        window_documents: documents it holds at most (it may hold more only where that many do not
            fill one batch).
        min_fill: share of a row's slots above which it counts as full and goes.
        carry: share of the window's tokens that may stay for the next round.
        max_carries: rounds a document may stay before it must go.
    """

    window_tokens: int | None = None
    window_documents: int = 65_536
    min_fill: float = 0.999
    carry: float = 0.5
    max_carries: int = 16

    def __post_init__(self) -> None:
        if self.window_tokens is not None:
            tokens = whole_number("window_tokens", self.window_tokens, _UNDEFINED)
            object.__setattr__(self, "window_tokens", tokens)
        for name, least, most in (("window_documents", 1, 1 << 31), ("max_carries", 0, 1000)):
            number = whole_number(name, getattr(self, name), _UNDEFINED, least=least, most=most)
            object.__setattr__(self, name, number)
        for name, highest in (("min_fill", 1.0), ("carry", 0.95)):
            share = real_number(name, getattr(self, name), _UNDEFINED, least=0, most=highest)
            object.__setattr__(self, name, share)

    def resolve(self, packer: Packer, batch_tokens: int) -> WindowConfig:
        """The same with `window_tokens` as a number.

        Raises:
            ConfigError: the window could not be sure to hold one batch.
        """
        longest = packer.seq_lens[-1]
        tokens = self.window_tokens
        if tokens is None:
            tokens = max(DEFAULT_ROWS * longest, 4 * batch_tokens)
        least = sure_tokens(packer, batch_tokens)
        if tokens < least:
            raise ConfigError(
                f"window_tokens is {tokens}, a batch is {batch_tokens} tokens in rows of {longest}"
                ".",
                "The window must hold a batch and two rows more (and what rows may drop) to be "
                "sure to give one.",
                f"Use window_tokens={least} or more; {DEFAULT_ROWS} rows pack well.",
            )
        return WindowConfig(
            window_tokens=tokens,
            window_documents=self.window_documents,
            min_fill=self.min_fill,
            carry=self.carry,
            max_carries=self.max_carries,
        )

    def describe(self) -> dict[str, Any]:
        """JSON-able identity for the fingerprint."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def sure_tokens(packer: Packer, batch_tokens: int) -> int:
    """Tokens that are sure to make a batch: its rows, and two more that may hold later tokens."""
    longest = packer.seq_lens[-1]
    return batch_tokens // longest * most_per_row(packer) + 2 * longest
