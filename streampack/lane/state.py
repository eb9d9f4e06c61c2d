"""The state of a lane: what its window held at the start of a round, as coordinates.

`Round.state` writes it and `SavedEntries` reads it back while the documents are read again. It
says which documents wait, how far each is delivered and since when it waits: a few kilobytes for
ten thousand documents, and no tokens. A checksum covers all of it but `emitted`, which changes
from batch to batch; what it must be follows from the number of the run's next batch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack._jit import kernel
from streampack.documents import Documents
from streampack.errors import StateError
from streampack.lane.column_codec import (
    append_column,
    append_numbers,
    decode_column,
    finish_numbers,
    written,
)
from streampack.streams.stream import Mark
from streampack.window.entries import Entries
from streampack.window.window import Window

__all__ = ["Round", "SavedEntries", "check_lane_state", "checksum"]

_NUMBERS = ("round", "step", "emitted", "serial", "admitted", "documents", "skipped_count")
_COLUMNS = ("missing", "again", "start", "repeated", "cut", "waited")


@dataclass(frozen=True, eq=False)
class Round:
    """The lane as it was at the start of a round: what its state describes.

    Attributes:
        number: of the round; step: batches the lane had given before it.
        final: nothing comes after what the window holds; None if the round has still to read.
        mark: from where the window's documents are read again.
        admitted: documents read from there on that the window has taken, wholly or in part.
        continued: True if the last of them is held in part.
        entries: what the window holds.
        skips: records since `mark`, and the count since the beginning.
    """

    number: int
    step: int
    final: bool | None
    mark: Mark
    admitted: int
    continued: bool
    entries: Entries
    skips: tuple[list[list[Any]], int]

    def state(self, emitted: int) -> dict[str, Any]:
        """JSON-able state after `emitted` batches of this round."""
        return {**self._coordinates, "emitted": emitted}

    @cached_property
    def _coordinates(self) -> dict[str, Any]:
        entries = self.entries
        texts = written(
            lambda out, ends: _encode_window(
                entries.serial, entries.start, entries.repeated, entries.cut, entries.arrived,
                self.mark.serial, self.number, out, ends,
            ),
            len(_COLUMNS),
        )  # fmt: skip
        state = {
            "round": self.number,
            "step": self.step,
            "final": self.final,
            "cursor": self.mark.cursor,
            "serial": self.mark.serial,
            "admitted": self.admitted,
            "documents": len(entries),
            **dict(zip(_COLUMNS, texts, strict=True)),
            "held": int(entries.held[-1]) if self.continued else None,
            "digest": entries.digest(),
            "skipped": self.skips[0],
            "skipped_count": self.skips[1],
        }
        return {**state, "checksum": checksum(state)}


@kernel
def _encode_window(
    serial: NDArray[np.int64],
    start: NDArray[np.int64],
    repeated: NDArray[np.int64],
    cut: NDArray[np.int64],
    arrived: NDArray[np.int64],
    first: int,
    number: int,
    out: NDArray[np.uint64],
    ends: NDArray[np.int64],
) -> bool:
    """Write the columns of `SavedEntries` in their order; False if there was no room.

    One call for all of them, and one pass for those that are differences: of a column of mostly
    zeros, reading it costs more than writing it.
    """
    count = len(serial)
    missing, k, last_missing = np.empty(2 * count + 2, dtype=np.int64), 1, -1
    again, m, last_again = np.empty(2 * count + 2, dtype=np.int64), 1, -1
    waited, w, last_waited = np.empty(2 * count + 2, dtype=np.int64), 1, -1
    before = first - 1
    for i in range(count):
        step = serial[i] - before - 1
        before = serial[i]
        if step > 0:
            missing[k], missing[k + 1] = i - last_missing - 1, step
            k, last_missing = k + 2, i
        elif step < 0:
            again[m], again[m + 1] = i - last_again - 1, -step
            m, last_again = m + 2, i
        rounds = (arrived[i + 1] if i + 1 < count else number) - arrived[i]
        if rounds != 0:
            waited[w], waited[w + 1] = i - last_waited - 1, rounds
            w, last_waited = w + 2, i
    at = append_numbers(finish_numbers(missing, k, last_missing, count), 0, out, ends, 0)
    at = append_numbers(finish_numbers(again, m, last_again, count), at, out, ends, 1)
    at = append_column(start, at, out, ends, 2)
    at = append_column(repeated, at, out, ends, 3)
    at = append_column(cut, at, out, ends, 4)
    numbers = finish_numbers(waited, w, last_waited, count)
    return append_numbers(numbers, at, out, ends, 5) >= 0


@dataclass(slots=True)
class SavedEntries:
    """The window's documents as a state describes them, taken over as they are read again.

    Columns of the state, a number for each of the window's N documents: `missing`, how many that
    were read before it are gone; `again`, 1 if it is one more part of the document before it;
    `start`, `repeated` and `cut` as in `Entries`; `waited`, rounds between its arrival and that of
    the next one, of the last one until this round.

    Raises:
        StateError: the state contradicts itself or the documents.
    """

    state: Mapping[str, Any]
    window: Window
    read: int = 0
    _place: NDArray[np.int64] = field(init=False)
    _columns: dict[str, NDArray[np.int64]] = field(init=False)
    _arrived: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        count = self.state["documents"]
        columns = self._columns = {}
        for name in _COLUMNS:
            try:
                columns[name] = decode_column(self.state[name], count)
            except ValueError as error:
                raise _malformed(f"`{name}` of its window's documents", str(error)) from error
        self._place = np.cumsum(columns["missing"] + 1 - columns["again"]) - 1
        self._arrived = self.state["round"] - np.cumsum(columns["waited"][::-1])[::-1]
        last = int(self._place[-1]) if count else -1
        again = columns["again"]
        if again.any() and (again.max() > 1 or again[0] or columns["missing"][again > 0].any()):
            raise _malformed("`again` of its window's documents", "parts of no document")
        if last >= self.admitted or (self.continued and last != self.admitted - 1):
            raise _malformed("`missing` of its window's documents", f"the last is number {last}")

    @property
    def admitted(self) -> int:
        """Documents to be read."""
        return int(self.state["admitted"])

    @property
    def continued(self) -> bool:
        """True if the last of them is held in part."""
        return self.state["held"] is not None

    def take(self, documents: Documents, serial: int) -> None:
        """The next documents of the stream, as many as are still to be read or fewer."""
        first, stop = np.searchsorted(self._place, [self.read, self.read + len(documents)])
        here = self._place[first:stop] - self.read
        self.read += len(documents)
        kept = documents.take(here)
        part = slice(first, stop)
        start, repeated, cut = (self._columns[name][part] for name in ("start", "repeated", "cut"))
        last = self.continued and self.read == self.admitted
        most = np.maximum(self.window.needed(kept.lengths - cut) - start, 0)
        held = most.copy()
        if last:
            held[-1] = self.state["held"]
        behind = start + cut > kept.lengths
        if (behind | (held > most) | (repeated > held)).any():
            raise StateError(
                "A document is shorter than what the saved state says was delivered of it.",
                "The documents, the tokenizer or a hook are not what they were when the state was "
                "saved, so batches would repeat or lose tokens.",
                "Resume with the same data and code, or start a new run.",
            )
        entries = Entries.of(
            serial=serial + here,
            start=start,
            held=held,
            length=kept.lengths - cut,
            arrived=self._arrived[part],
            repeated=repeated,
            cut=cut,
            origin=kept.origin,
        )
        self.window.restore(kept, entries, continued=last)


def check_lane_state(lane: int, state: Any) -> None:
    """Raise `StateError` unless `state` has the fields of a lane's state, of the right types."""
    what = f"lane {lane}"
    if not isinstance(state, Mapping):
        raise _malformed(what, f"it is a {type(state).__name__}")
    for name in _NUMBERS:
        if not _is_count(state.get(name)):
            raise _malformed(what, f"`{name}` is {state.get(name)!r:.80}")
    kinds: dict[str, Any] = {
        **dict.fromkeys((*_COLUMNS, "digest", "checksum"), str),
        "final": (bool, type(None)),
        "cursor": Mapping,
        "skipped": list,
    }
    for name, kind in kinds.items():
        if name not in state or not isinstance(state[name], kind):
            raise _malformed(what, f"`{name}` is {state.get(name)!r:.80}")
    if "held" not in state or not (state["held"] is None or _is_count(state["held"])):
        raise _malformed(what, f"`held` is {state.get('held')!r:.80}")
    for record in state["skipped"]:
        kinds_of = [type(part) for part in record] if isinstance(record, list) else []
        if kinds_of[:4] != [int, int, bool, str] or kinds_of[4:] not in ([], [int]):
            raise _malformed(what, f"`skipped` holds {record!r:.80}")
    fields = {name: state[name] for name in state if name not in ("emitted", "checksum")}
    if checksum(fields) != state["checksum"]:
        raise _malformed(what, "its fields do not add up to its checksum")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53


def _malformed(where: str, what: str) -> StateError:
    return StateError(
        f"The state is damaged in {where}: {what}.",
        "The place to go on from cannot be told.",
        "Pass what `state_dict()` returned, unchanged.",
    )


def checksum(fields: Mapping[str, Any]) -> str:
    """64 bits, in hexadecimal, over JSON-able fields in any order."""
    try:
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        return f"none, for {error}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
