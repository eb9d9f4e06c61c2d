"""Streams that go on with a later version of a table: their cursors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from streampack.errors import StateError
from streampack.lane.config import LaneConfig
from streampack.mixtures.source import Mixture
from streampack.sources.base import Source
from streampack.streams.base import LaneStream


def grown_tables(before: LaneConfig, config: LaneConfig) -> Iterator[tuple[str, Source]]:
    """Yield name and source, as it was, of each table of which `config` has a later version."""
    parts = config.source._parts
    for name, part in before.source._parts.items():
        earlier = getattr(part._inner, "earlier", None)
        if name in parts and earlier != getattr(parts[name]._inner, "earlier", None):
            yield name, part._inner


def after_growth(
    before: LaneConfig, config: LaneConfig, stream: LaneStream, cursor: dict[str, Any]
) -> dict[str, Any]:
    """Convert a cursor of a lane's stream under `before` to the stream under `config`.

    Args:
        before, config: configurations so far and from here on.
        stream: the lane's stream so far, which has read all documents of the window.
        cursor: a cursor of it.

    Raises:
        StateError: the lane has read all of a table in a mixture.
    """
    inner: Any = stream
    while hasattr(inner, "inner"):
        inner = inner.inner
    for name, was in grown_tables(before, config):
        from streampack.formats.tables.grown import grown_cursor

        versions = len(was.earlier)  # type: ignore[attr-defined]
        if not isinstance(before.source, Mixture):
            reached = inner.position_before(inner.serial).cursor
            return grown_cursor(cursor, reached, versions, before.epochs)
        member = next(each for each in inner._members if each.name == name)
        member.settle()
        if member.at_end or member.place.ended:
            raise StateError(
                f'A lane has read all of the source "{name}", and a version of it was added.',
                "Go on with a later version before its last document, or add it as a new source.",
                setting="source",
            )
        reached = member.stream.position_before(member.stream.serial).cursor
        number = list(before.source.sources).index(name)
        epochs = before.source.source_epochs(before.epochs)[number]
        saved = cursor["sources"][name]
        changed = {**saved, "at": grown_cursor(saved["at"], reached, versions, epochs)}
        cursor = {**cursor, "sources": {**cursor["sources"], name: changed}}
    return cursor
