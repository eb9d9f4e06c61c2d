"""Rebuild packers from their descriptions, for runs that change the packer of their state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from fractions import Fraction
from typing import Any

from streampack.errors import StateError
from streampack.groups.whole_groups import WholeGroups
from streampack.limits.earlier_arguments import rules_of
from streampack.packers.curriculum import Curriculum
from streampack.packers.kinds import packer_kinds
from streampack.packing.packer import Packer


def rebuild_packer(description: Mapping[str, Any]) -> Packer:
    """Rebuild a packer from the output of its ``describe()``.

    Raises:
        StateError: the packer is not one of streampack's, or its algorithm's revision differs.
    """
    kinds: dict[str, Any] = {**packer_kinds(), WholeGroups.__name__: WholeGroups}
    kind = kinds.get(description["kind"])
    if kind is None:
        raise StateError(
            f"The state was saved with the packer {description['kind']!r:.80}, which is not one of "
            "streampack's.",
            "Continue with that packer, or start a new run.",
        )
    packer: Packer = kind(**_arguments(kind, description))
    if plain(packer.describe()) != plain(description):
        raise StateError(
            "Changing the packer requires a state of this version's packers, got "
            f"{plain(description)!r:.300}.",
            "Resume with the same packer, or with the version of streampack that saved the state.",
        )
    return packer


def _arguments(kind: Any, description: Mapping[str, Any]) -> dict[str, Any]:
    values = {f.name: description[f.name] for f in fields(kind) if f.name in description}
    values |= rules_of(description)
    if isinstance(values.get("max_repetition"), str):
        values["max_repetition"] = Fraction(values["max_repetition"])
    if values.get("restart"):
        del values["atom"]  # fixed to a whole row, not an argument of the packer
    shares = values.get("shares")
    if isinstance(shares, Mapping):
        values["shares"] = Curriculum.from_description(dict(shares))
    elif isinstance(shares, list):
        values["shares"] = tuple(shares)
    return values


def plain(value: Any) -> Any:
    """Return `value` after a round trip through JSON."""
    return json.loads(json.dumps(value))
