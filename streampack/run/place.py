"""Where a run is, read from its state: what `streampack where` shows.

Only coordinates are read, nothing of the corpus. Numbers count from 0, as everywhere in a state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streampack.reading.cursor import cursor_field, cursor_words, damaged_cursor, is_count
from streampack.reading.sharded import ShardedSource
from streampack.run.state import batches_given
from streampack.sources.mixture.source import source_seed


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """Where a lane reads a source again from.

    Attributes:
        name: of the source in a mixture; None if it is the only one.
        epoch: of it.
        words: one text for each open shard; a single one at the beginning of an epoch.
        offset: documents between there and what the lane holds.
        tokens: drawn from it before what the lane holds; None if it is the only one.
        ended: it has no more.
    """

    name: str | None
    epoch: int
    words: tuple[str, ...]
    offset: int = 0
    tokens: int | None = None
    ended: bool = False


@dataclass(frozen=True, slots=True)
class LanePlace:
    """Where a lane is.

    Attributes:
        lane: its number.
        batches: that it has given.
        ended: nothing comes after what its window holds.
        read: documents that are read again to fill its window.
        waiting: documents in its window, in whole or in part, at the start of its round.
        skipped: broken documents and shards stepped over, since the beginning.
        messages: about those of them that a restore will meet again.
        sources: one, or all of a mixture.
    """

    lane: int
    batches: int
    ended: bool
    read: int
    waiting: int
    skipped: int
    messages: tuple[str, ...]
    sources: tuple[SourcePlace, ...]


def members(fingerprint: Mapping[str, Any]) -> dict[str | None, dict[str, Any]]:
    """What the fingerprint says of each source of a mixture by name, or of the only one (None)."""
    source = fingerprint["source"]
    return dict(source["sources"]) if "sources" in source else {None: source}


def lane_places(
    state: Mapping[str, Any], sources: Mapping[str | None, ShardedSource] | None = None
) -> list[LanePlace]:
    """Where each lane of a checked state is, in order.

    Args:
        state: of a rank, or of all of them.
        sources: where shards are to be named: those of `members` that are at hand, by name.
    """
    fingerprint = state["fingerprint"]
    places = []
    for lane in sorted(map(int, state["lanes"])):
        own = state["lanes"][str(lane)]
        if own is None:
            places.append(LanePlace(lane, 0, False, 0, 0, 0, (), ()))
            continue
        readings = _readings(own["cursor"])
        places.append(
            LanePlace(
                lane,
                batches_given(own),
                own["final"] is True,
                own["admitted"],
                own["documents"],
                own["skipped_count"],
                tuple(record[3] for record in own["skipped"]),
                tuple(
                    _source_place(reading, fingerprint, lane, sources or {}) for reading in readings
                ),
            )
        )
    return places


def _readings(cursor: Mapping[str, Any]) -> list[tuple[str | None, Mapping[str, Any]]]:
    """The place of each source: its name and {"at": {"epoch", "at"}, "offset": ...}."""
    offset = 0
    if "epoch" not in cursor and "sources" not in cursor:  # of an ordering window
        offset = cursor_field(cursor, "offset", int)
        cursor = cursor_field(cursor, "at", dict)
    if "sources" in cursor:
        return list(cursor_field(cursor, "sources", dict).items())
    return [(None, {"at": cursor, "offset": offset})]


def _source_place(
    reading: tuple[str | None, Mapping[str, Any]],
    fingerprint: Mapping[str, Any],
    lane: int,
    sources: Mapping[str | None, ShardedSource],
) -> SourcePlace:
    name, place = reading
    mark = cursor_field(place, "at", dict)
    epoch, cursor = cursor_field(mark, "epoch", int), cursor_field(mark, "at", dict, type(None))
    source = sources.get(name)
    if source is None:
        words = cursor_words(cursor)
    else:
        number = members(fingerprint)[name].get("number", 0)
        low, high = _span(mark, source, lane, fingerprint["lanes"])
        seed = source_seed(fingerprint["seed"], number)
        part = source.span(low, high, seed=seed, epoch=epoch, shuffle=fingerprint["shuffle"])
        words = part.place_names(cursor)
    return SourcePlace(
        name,
        epoch,
        tuple(words),
        cursor_field(place, "offset", int),
        place.get("tokens"),
        place.get("ended", False),
    )


def _span(mark: Mapping[str, Any], source: ShardedSource, lane: int, lanes: int) -> tuple[int, int]:
    """The part of the epoch's line that a lane reads: what it was dealt, or its share."""
    if mark.get("span") is not None:
        span = cursor_field(mark, "span", list)
        if len(span) == 2 and all(map(is_count, span)):
            return span[0], span[1]
        raise damaged_cursor(mark)
    return source.share(lane, lanes)


def run_words(state: Mapping[str, Any]) -> list[str]:
    """What a state and its fingerprint say of the run, a sentence each."""
    fingerprint = state["fingerprint"]
    lanes, following = fingerprint["lanes"], state["next_batch"]
    sentences = [
        f"Next is batch {following:,} of the run: step {following // lanes:,} of lane "
        f"{following % lanes}. Numbers count from 0."
    ]
    for first, end in state["stepped_over"]:
        what = (
            f"batches {first:,} to {end - 1:,} were"
            if end - first > 1
            else (f"batch {first:,} was")
        )
        sentences.append(f"Of those before it, {what} stepped over.")
    held = len(state["lanes"])
    if held < lanes:
        sentences.append(
            f"This is a part of the run's state: {held} of its {lanes} lanes; the other ranks "
            "have the rest."
        )
    for name, source in members(fingerprint).items():
        known = source.get("manifest")
        what = source["kind"] + (f", manifest {known}" if known else "")
        field = source.get("column") or source.get("field") or source.get("key")
        what += f", {field}" if field else ""
        sentences.append(f"Source{'' if name is None else f' {name}'}: {what}.")
    window, batch = fingerprint["window"]["rows"], fingerprint["batch_tokens"]
    packer = _packer(fingerprint["packer"])
    sentences.append(f"Packer: {packer}, batches of {batch:,} tokens, a window of {window:,} rows.")
    order = "shuffled" if fingerprint["shuffle"] else "not shuffled"
    sentences.append(f"{lanes} lane{'s'[lanes == 1 :]}, seed {fingerprint['seed']}, {order}.")
    return sentences


def _packer(described: Mapping[str, Any]) -> str:
    """Class and row lengths; a user's packer may not name the latter."""
    lengths = described.get("seq_lens") or [described.get("seq_len")]
    rows = ", ".join(f"{length:,}" for length in lengths if isinstance(length, int))
    return str(described.get("kind")) + (f", rows of {rows}" if rows else "")
