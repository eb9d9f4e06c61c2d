"""Checks of a packer that a run is given, and of its limits and its choice of rows."""

from __future__ import annotations

from collections.abc import Sequence

from streampack.arguments import is_whole
from streampack.errors import ConfigError
from streampack.packing.choice import RowChoice
from streampack.packing.overflow import OVERFLOWS
from streampack.packing.packer import Packer
from streampack.packing.row_limits import RowLimits


def require_packer(packer: object) -> Packer:
    """Return `packer`; raise `ConfigError` unless it is a `Packer` with valid attributes."""
    if not isinstance(packer, Packer):
        raise ConfigError(
            f"packer must be a Packer, got {packer!r:.80}.",
            "Pass BestFitDecreasing(seq_len=2048) or another packer of streampack.packing.",
            setting="packer",
        )
    name, sizes = type(packer).__name__, getattr(packer, "seq_lens", None)
    whole = isinstance(sizes, tuple) and all(is_whole(n) and 2 <= n < 1 << 31 for n in sizes)
    if not whole or not sizes or list(sizes) != sorted(set(sizes)):
        raise ConfigError(
            f"{name}.seq_lens must be a tuple of ascending row lengths, got {sizes!r:.80}.",
            "Set it in tokens, for example seq_lens = (2048,).",
            setting="seq_lens",
        )
    if packer.overflow not in OVERFLOWS:
        raise ConfigError(
            f"{name}.overflow must be one of {', '.join(OVERFLOWS)}, got {packer.overflow!r:.80}.",
            f"Set the attribute in {name}.",
            setting="overflow",
        )
    require_rules(packer)
    return packer


def require_rules(packer: Packer) -> None:
    """Raise `ConfigError` unless the packer has limits and a choice that it can keep."""
    limits, choice = packer.limits, packer.choice
    several = isinstance(limits, Sequence) and all(isinstance(each, RowLimits) for each in limits)
    if not several or len({type(limit) for limit in limits}) < len(limits):
        raise ConfigError(
            f"limits must be a sequence of limits, one of each kind, got {limits!r:.200}.",
            'Pass for example limits=[Capacity({"patches": 4096}), Separate("adapter")].',
            setting="limits",
        )
    if choice is not None and not isinstance(choice, RowChoice):
        raise ConfigError(
            f"choice must be a choice of rows, got {choice!r:.80}.",
            'Pass choice=Balance("attention").',
            setting="choice",
        )
    for limit in limits:
        limit.require(packer)
    if choice is not None:
        choice.require(packer)
