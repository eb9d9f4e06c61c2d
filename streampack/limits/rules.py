"""Checks of a packer that a run is given, and of its limits and its choice of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streampack.arguments import is_whole
from streampack.errors import ConfigError
from streampack.packing.choice import RowChoice
from streampack.packing.overflow import OVERFLOWS
from streampack.packing.packer import Packer
from streampack.packing.row_limits import RowLimits

#: Attributes of packers of one's own in an earlier form: the values that had an effect.
_EARLIER: dict[str, Callable[[Any], bool]] = {
    "balance": lambda value: value in ("attention", "loss", "patches"),
    "capacity": lambda value: isinstance(value, Mapping) and len(value) > 0,
    "needs_sample": lambda value: value is not None,
}
_NOW = {
    "balance": 'choice = Balance("attention")',
    "capacity": 'limits = [Capacity({"patches": 4096})]',
    "needs_sample": "measures to the name of the setting that with_sample measures",
}


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
    for earlier, used in _EARLIER.items():
        if used(getattr(packer, earlier, None)):
            raise ConfigError(
                f"{name} has the attribute {earlier}, which packers no longer use.",
                f"Set {_NOW[earlier]} instead.",
                setting=earlier,
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
