"""Comparison of two fingerprints, field by field."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from streampack.errors import StateError

#: Settings that a resumed run may change, if `load_state_dict(allow=)` names them, and the fields
#: of a fingerprint that change with each: longer rows make larger batches.
CHANGEABLE = {
    "attention": {"attention"},
    "batch_size": {"batch_tokens", "window"},
    "packer": {"balance", "batch_tokens", "packer", "window"},
    "source": {"source"},
}


def changed_fields(
    saved: Mapping[str, Any], current: Mapping[str, Any], allow: Collection[str] | None = None
) -> list[str]:
    """Return the names of the fields that differ, in order; `allow` must cover each.

    A resumed run may take out documents without `allow`, but states that are compared without it
    (None) must take out the same ones.

    Raises:
        StateError: `allow` contains a setting that cannot change, or a field outside it differs
            (the error names the first one, with both values).
    """
    allowed = set() if allow is None else {"exclude"}
    allow = () if allow is None else allow
    named = isinstance(allow, Collection) and not isinstance(allow, str)
    if not named or not set(allow) <= set(CHANGEABLE):
        raise StateError(
            f"allow must be a set of names of settings, got {allow!r}.",
            f"Use a set of names from {', '.join(CHANGEABLE)}.",
            setting="allow",
        )
    # A run keeps its saved "dealing"; where it cannot, another field differs.
    differing = {
        name: name.partition(".")[0]
        for name in _differing(saved, current)
        if name == "dealing.revision" or not name.startswith("dealing")
    }
    allowed = allowed.union(*(CHANGEABLE[name] for name in allow))
    for name, field in differing.items():
        if field not in allowed:
            saved_value, value = _in_words(name, saved), _in_words(name, current)
            raise StateError(
                f"`{name}` was {saved_value} when the state was saved and is {value} now.",
                "Restore the old setting or start a new run; load_state_dict(allow=) lets "
                f"{', '.join(CHANGEABLE)} change.",
                setting=name,
            )
    return sorted(set(differing.values()))


def first_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the name of the first field that differs, and both values in words."""
    name = _differing(one, other)[0]
    return name, _in_words(name, one), _in_words(name, other)


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the names of the fields that differ, causes first."""
    before, now = dict(_flat(one)), dict(_flat(other))
    names = sorted(before.keys() | now.keys(), key=_cause_first)
    return [name for name in names if before.get(name) != now.get(name)]


def _in_words(name: str, described: Mapping[str, Any]) -> str:
    """Format the value of a field; shares, stored as integers, appear as the user's weights."""
    flat = dict(_flat(described))
    if name != "source.shares" or name not in flat:
        return f"{flat.get(name, 'absent')!r:.200}"
    names = list(described["source"]["sources"])
    phases = [
        (
            at,
            {
                name: round(share / sum(shares), 4)
                for name, share in zip(names, shares, strict=True)
            },
        )
        for at, shares in flat[name]
    ]
    return repr(phases[0][1] if len(phases) == 1 else phases)


def _cause_first(name: str) -> tuple[bool, bool, bool, str]:
    """Sort key: kinds, row lengths of a packer, other settings, and last what follows from them."""
    return (
        name.startswith("dealing"),
        not name.endswith("kind"),
        not name.startswith("packer.seq_len"),
        name,
    )


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            pairs += _flat(value, f"{prefix}{name}.")
        else:
            pairs.append((f"{prefix}{name}", json.loads(json.dumps(value))))
    return pairs
