"""Totals of a ledger: a digest and counts, which can be added over batches, ranks and resumes.

Totals are a JSON-able dictionary: `digest`, 16 bytes in hexadecimal; `batches`, `tokens`,
`documents` and `loss_tokens`; and `fields`, which has for each field and value the list of tokens,
documents and loss tokens.

The digest is the sum of one hash per batch, modulo 2**128. A hash covers the index of the batch in
the run, so the sum does not depend on the rank that counts a batch, and differs for batches in
another order. (Sums of hashes as digests of sets: Bellare and Micciancio, "A new paradigm for
collision-free hashing", Eurocrypt 1997; this one tells runs apart, and resists no forger.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streampack.errors import StateError

#: Key in `RunState.counted`.
LEDGER = "ledger"
#: Values of a field that are counted apart; further ones count as `OTHER`.
MOST_VALUES = 255
OTHER = "(other)"
_COUNTS = ("batches", "tokens", "documents", "loss_tokens")

Totals = dict[str, Any]


def nothing() -> Totals:
    """Return the totals of no batch."""
    return {"digest": f"{0:032x}", **dict.fromkeys(_COUNTS, 0), "fields": {}}


def plus(some: Mapping[str, Any], more: Mapping[str, Any]) -> Totals:
    """Return the totals of both, as new objects."""
    digest = (int(some["digest"], 16) + int(more["digest"], 16)) % (1 << 128)
    fields = dict(some["fields"])
    for name, table in more["fields"].items():
        fields[name] = _with(fields.get(name, {}), table)
    counts = {name: some[name] + more[name] for name in _COUNTS}
    return {"digest": f"{digest:032x}", **counts, "fields": fields}


def _with(before: Mapping[str, list[int]], more: Mapping[str, list[int]]) -> dict[str, list[int]]:
    table = dict(before)
    for value, counts in more.items():
        known = value in table or len(table) - (OTHER in table) < MOST_VALUES
        name = value if known else OTHER
        table[name] = [a + b for a, b in zip(table.get(name, (0, 0, 0)), counts, strict=True)]
    return table


def totals_of(state: Mapping[str, Any]) -> Totals:
    """Return the totals of a run's state, or of one rank's.

    Raises:
        StateError: the run was made without ``ledger=``.
    """
    entry = state.get("counted", {}).get(LEDGER)
    if entry is None:
        raise StateError(
            "The state must have a ledger, and has none.",
            "Pass ledger=True, or fields, to PackedDataset; it counts from the next batch on.",
            setting="ledger",
        )
    return plus(entry["before"], entry["own"])


def opened(entry: Mapping[str, Any] | None, rank: Sequence[int]) -> dict[str, Any]:
    """Return an entry of the state for a rank to count on; None is the beginning.

    An entry has the totals `before`, of all ranks up to some batch, and `own`, of one rank since;
    `rank`, its index and the number of ranks; `until`, the batch that follows the last one counted;
    and `gaps`, the ranges of batches that no ledger counted.

    Raises:
        StateError: the entry belongs to another one of several ranks.
    """
    rank = [*rank]
    if entry is None:
        return {"before": nothing(), "own": nothing(), "rank": rank, "until": 0, "gaps": []}
    if entry["rank"] == rank:
        return dict(entry)
    if entry["rank"][1] != 1:
        raise StateError(
            f"The ledger must be of all ranks, got the one of rank {entry['rank'][0]} of "
            f"{entry['rank'][1]} alone.",
            "Load the result of merge_states for the states of all ranks.",
            setting="ledger",
        )
    whole = plus(entry["before"], entry["own"])
    return {**entry, "before": whole, "own": nothing(), "rank": rank}


def merged(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the `RunState.counted` of all ranks together, from the values of each.

    Raises:
        StateError: the ranks counted on from different states.
    """
    entries = [each[LEDGER] for each in states if LEDGER in each]
    if not entries:
        return {}
    of_ranks = {tuple(each["rank"]): each for each in entries if each["rank"][1] != 1}
    starts = [each["before"] for each in of_ranks.values()]
    # A rank that has counted nothing since the state that it loaded has the entry of all ranks.
    starts += [plus(each["before"], each["own"]) for each in entries if each["rank"][1] == 1]
    if any(each != starts[0] for each in starts):
        raise StateError(
            "The ledgers of all ranks must begin at one state, and theirs differ.",
            "Merge the states that all ranks saved in one checkpoint.",
            setting="ledger",
        )
    total = starts[0]
    for each in of_ranks.values():
        total = plus(total, each["own"])
    gaps = max((each["gaps"] for each in entries), key=len)
    until = max(each["until"] for each in entries)
    whole = {"before": nothing(), "own": total, "rank": [0, 1], "until": until, "gaps": gaps}
    return {LEDGER: whole}
