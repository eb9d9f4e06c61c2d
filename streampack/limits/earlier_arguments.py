"""The arguments of packers before `limits` and `choice`, which still work in this release.

Descriptions of packers in states have these names too.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from streampack.arguments import parameters
from streampack.errors import ConfigError
from streampack.limits.balancing import Balance
from streampack.limits.capacity import Capacity
from streampack.limits.separation import Separate
from streampack.packing.packer import EARLIER
from streampack.packing.row_limits import RowLimits


def with_limits(kind: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a packer with ``limits=`` and ``choice=`` for the ones of before.

    Args:
        kind: class of the packer. An argument that it takes is left as it is.
        settings: arguments by name.
    """
    taken = {each.name for each in parameters(kind.__init__)}
    earlier = {name: value for name, value in settings.items() if name in EARLIER - taken}
    rules = rules_of(earlier)
    if not earlier or not rules.keys() <= taken:  # the call raises an error with the packer's own
        return dict(settings)
    new = ", ".join(f"{name}={_written(value)}" for name, value in rules.items())
    old = ", ".join(f"{name}={value!r}" for name, value in earlier.items())
    warnings.warn(
        f"{kind.__name__}({old}) is written {kind.__name__}({new}) from the next release on; "
        "the names are in streampack.packing.",
        FutureWarning,
        stacklevel=3,
    )
    return {name: value for name, value in settings.items() if name not in earlier} | rules


def rules_of(earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``limits`` and ``choice`` for arguments of before, or for a description of a packer.

    Raises:
        ConfigError: batches are to have one key, and there is no key.
    """
    limits: list[RowLimits] = []
    if (most := earlier.get("capacity", {})) != {}:
        limits.append(Capacity(most))
    field, batches = earlier.get("separate_by"), earlier.get("separate_batches", False)
    if field is not None:
        limits.append(Separate(field, batches))
    elif batches:
        raise ConfigError(
            "separate_batches=True requires separate_by=, which is missing.",
            'Pass limits=(Separate("adapter", batches=True),).',
            setting="separate_batches",
        )
    kind = earlier.get("balance")
    limits_set = not earlier.keys().isdisjoint({"capacity", "separate_by", "separate_batches"})
    return {
        **({"limits": tuple(limits)} if limits_set else {}),
        **({"choice": None if kind is None else Balance(kind)} if "balance" in earlier else {}),
    }


def _written(value: Any) -> str:
    """Return the code that makes limits or a choice."""
    if isinstance(value, tuple):
        return f"({''.join(f'{_written(each)}, ' for each in value).rstrip(' ')})"
    if isinstance(value, Capacity):
        return f"Capacity({value.most})"
    if isinstance(value, Separate):
        return f'Separate("{value.field}"{", batches=True" if value.batches else ""})'
    return f'Balance("{value.kind}")' if isinstance(value, Balance) else repr(value)
