"""Positions in the stream of a mixture: write and read their cursors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streampack.errors import StateError
from streampack.mixtures.source import Mixture
from streampack.mixtures.token_shares import TokenShares, WeightChange
from streampack.streams.base import BEGINNING, StreamPosition


@dataclass(frozen=True, slots=True)
class SourceCursor:
    """Position of a source at the start of a quantum.

    Attributes:
        position: position of its stream, at or before the quantum.
        offset: documents between `position` and the quantum.
        tokens: tokens drawn from the source.
        epoch: epoch of the last document drawn.
        ended: True if the source has no more documents.
    """

    position: StreamPosition
    offset: int = 0
    tokens: int = 0
    epoch: int = 0
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules of a mixture that apply up to a document.

    Attributes:
        until: serial of the first document under later rules; None for the rules in force.
        shares: shares of all sources.
        known: names of the sources that the rules mix.
        quantum_documents: documents in a quantum; see `Mixture`.
        batch: batch of the `WeightChange` that set them; None for the mixture's original rules.
    """

    until: int | None
    shares: TokenShares
    known: tuple[str, ...]
    quantum_documents: int
    batch: int | None = None

    @classmethod
    def of(cls, mixture: Mixture, change: WeightChange | None = None) -> Rules:
        """Return the rules of a mixture, or the rules after a change of its weights."""
        names = tuple(mixture.sources)
        if change is None:
            return cls(None, mixture.shares, names, mixture.quantum_documents)
        return cls(None, change.shares(names), names, mixture.quantum_documents, change.batch)

    def as_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the rules JSON-able; `names` are the names of all sources."""
        known = [i for i, name in enumerate(names) if name in self.known]
        changed = {} if self.batch is None else {"batch": self.batch}
        return {
            **changed,
            "until": self.until,
            "sources": [names[i] for i in known],
            "shares": [[at, [shares[i] for i in known]] for at, shares in self.shares.knots],
            "quantum_documents": self.quantum_documents,
        }

    @classmethod
    def read(cls, saved: Any, names: list[str]) -> Rules:
        """Read the rules of a cursor, for a mixture with sources of these names."""
        known = tuple(saved["sources"])
        knots = []
        for at, shares in saved["shares"]:
            by_name = dict(zip(known, shares, strict=True))
            knots.append((at, tuple(by_name.get(name, 0) for name in names)))
        until, quantum = saved["until"], saved["quantum_documents"]
        return cls(until, TokenShares(tuple(knots)), known, quantum, saved.get("batch"))


def changed_cursor(cursor: Mapping[str, Any], before: Mixture, until: int) -> dict[str, Any]:
    """Convert a cursor of the mixture `before` for a stream that continues with another mixture.

    Args:
        cursor: cursor of a position of `MixedStream`.
        before: mixture that made the cursor.
        until: serial of the first document of the other mixture (a quantum that has begun by then
            is drawn to its end).
    """
    rules = list(cursor["before"])
    if not rules or rules[-1]["until"] is not None:
        rules.append(Rules.of(before).as_dict(list(before.sources)))
    rules[-1] = {**rules[-1], "until": until}
    return {**cursor, "before": rules}


@dataclass(frozen=True, slots=True)
class MixtureCursor:
    """Position of a mixture at the start of a quantum.

    Attributes:
        serial: index of the next document.
        tokens, quantum: see `Credits`.
        credits: credit of each source, by its index.
        cursors: position of each source.
        before: rules for documents up to here and some beyond; rules in force are left out if they
            are the mixture's original rules.
    """

    serial: int
    tokens: int
    quantum: int
    credits: tuple[int, ...]
    cursors: tuple[SourceCursor, ...]
    before: tuple[Rules, ...]

    def position(self, names: Sequence[str]) -> StreamPosition:
        """Return this as a position of the stream; `names` are the names of the sources."""
        sources = {
            name: {
                "at": place.position.cursor,
                "offset": place.offset,
                "tokens": place.tokens,
                "credit": credit,
                "epoch": place.epoch,
                "ended": place.ended,
            }
            for name, place, credit in zip(names, self.cursors, self.credits, strict=True)
        }
        cursor = {
            "tokens": self.tokens,
            "quantum": self.quantum,
            "before": [rules.as_dict(names) for rules in self.before],
            "sources": sources,
        }
        return StreamPosition(self.serial, cursor)

    @classmethod
    def read(cls, position: StreamPosition | None, mixture: Mixture) -> MixtureCursor:
        """Read a saved position; None is before the first document.

        Raises:
            StateError: the mixture lacks a source of the position that had not ended.
        """
        if position is None:
            position = StreamPosition(0, {"tokens": 0, "quantum": 0, "before": [], "sources": {}})
        cursor = position.cursor
        saved = cursor["sources"]
        for name, source in saved.items():
            if name not in mixture.sources and not source["ended"]:
                raise StateError(
                    f'The mixture no longer has the source "{name}", which had not ended.',
                    "Keep it, with a weight of 0 if no more of it is wanted.",
                )
        credits = [0] * len(mixture.sources)
        cursors = [SourceCursor(StreamPosition(0, BEGINNING))] * len(mixture.sources)
        for number, name in enumerate(mixture.sources):
            if name in saved:
                source = saved[name]
                credits[number] = source["credit"]
                cursors[number] = SourceCursor(
                    StreamPosition(0, source["at"]),
                    source["offset"],
                    source["tokens"],
                    source["epoch"],
                    source["ended"],
                )
        names = list(mixture.sources)
        return cls(
            position.serial,
            cursor["tokens"],
            cursor["quantum"],
            tuple(credits),
            tuple(cursors),
            tuple(Rules.read(rules, names) for rules in cursor["before"]),
        )
