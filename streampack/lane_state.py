"""The state of a lane: what its window held at the start of a round, as coordinates.

`Round.state` writes it and `SavedEntries` reads it back while the documents are read again. Per
document a state holds one bit and, compressed, how far it is delivered and for how long it has
waited: a few kilobytes for ten thousand documents, and no tokens.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents import Documents
from streampack.entries import Entries
from streampack.errors import StateError
from streampack.stream import Mark
from streampack.window import Window

__all__ = ["Round", "SavedEntries", "check_lane_state"]

_NUMBERS = ("round", "step", "emitted", "serial", "admitted", "skipped_count")


@dataclass(frozen=True, eq=False)
class Round:
    """The lane as it was at the start of a round: what its state describes.

    Attributes:
        number: of the round; step: batches the lane had given before it.
        final: nothing comes after what the window holds.
        mark: from where the window's documents are read again.
        admitted: documents read from there on that the window has taken, wholly or in part.
        continued: True if the last of them is held in part.
        entries: what the window holds.
        skips: records since `mark`, and the count since the beginning.
    """

    number: int
    step: int
    final: bool
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
        present = np.zeros(self.admitted, dtype=np.bool_)
        present[entries.serial - self.mark.serial] = True
        return {
            "round": self.number,
            "step": self.step,
            "final": self.final,
            "cursor": self.mark.cursor,
            "serial": self.mark.serial,
            "admitted": self.admitted,
            "present": _pack(np.packbits(present)),
            "start": _pack(entries.start),
            "repeated": _pack(entries.repeated),
            "age": _pack(self.number - entries.arrived),
            "held": int(entries.held[-1]) if self.continued else None,
            "digest": entries.digest(),
            "skipped": self.skips[0],
            "skipped_count": self.skips[1],
        }


@dataclass(slots=True)
class SavedEntries:
    """The window's documents as a state describes them, taken over as they are read again.

    Raises:
        StateError: the state contradicts itself or the documents.
    """

    state: Mapping[str, Any]
    window: Window
    read: int = 0
    _present: NDArray[np.bool_] = field(init=False)
    _start: NDArray[np.int64] = field(init=False)
    _repeated: NDArray[np.int64] = field(init=False)
    _age: NDArray[np.int64] = field(init=False)
    _restored: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        state, admitted = self.state, self.state["admitted"]
        try:
            bits = _unpack(state["present"], -(-admitted // 8)).astype(np.uint8)
            self._present = np.unpackbits(bits, count=admitted).astype(np.bool_)
            count = int(self._present.sum())
            self._start = _unpack(state["start"], count)
            self._repeated = _unpack(state["repeated"], count)
            self._age = _unpack(state["age"], count)
        except (ValueError, zlib.error) as error:  # of base64 too
            raise _malformed("the documents of its window", str(error)) from error
        if self.continued and not (admitted and self._present[-1]):
            raise _malformed("the documents of its window", "the last one is held and absent")

    @property
    def admitted(self) -> int:
        """Documents to be read."""
        return len(self._present)

    @property
    def continued(self) -> bool:
        """True if the last of them is held in part."""
        return self.state["held"] is not None

    def take(self, documents: Documents, serial: int) -> None:
        """The next documents of the stream, as many as are still to be read or fewer."""
        here = np.flatnonzero(self._present[self.read : self.read + len(documents)])
        self.read += len(documents)
        kept = documents.take(here)
        part = slice(self._restored, self._restored + len(here))
        self._restored += len(here)
        start = self._start[part]
        last = self.continued and self.read == self.admitted
        most = self.window.needed(kept.lengths) - start
        held = most.copy()
        if last:
            held[-1] = self.state["held"]
        if ((held < 0) | (held > most) | (self._repeated[part] > held)).any():
            raise StateError(
                "A document is shorter than what the saved state says was delivered of it.",
                "The documents, the tokenizer or a hook are not what they were when the state was "
                "saved, so batches would repeat or lose tokens.",
                "Resume with the same data and code, or start a new run.",
            )
        entries = Entries(
            serial=serial + here,
            start=start,
            held=held,
            length=kept.lengths,
            arrived=self.state["round"] - self._age[part],
            repeated=self._repeated[part],
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
        **dict.fromkeys(("present", "start", "repeated", "age", "digest"), str),
        "final": bool,
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


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53


def _malformed(where: str, what: str) -> StateError:
    return StateError(
        f"The state is damaged in {where}: {what}.",
        "The place to go on from cannot be told.",
        "Pass what `state_dict()` returned, unchanged.",
    )


def _pack(values: NDArray[Any]) -> str:
    """Numbers >= 0 as text: narrow, plane by plane of their bytes, compressed."""
    narrow = values.astype(np.min_scalar_type(int(values.max(initial=0))))
    planes = narrow.view(np.uint8).reshape(len(narrow), narrow.itemsize).T
    return base64.b64encode(zlib.compress(planes.tobytes())).decode()


def _unpack(text: str, count: int) -> NDArray[np.int64]:
    """The (count,) int64 numbers that `_pack` wrote."""
    unpacker = zlib.decompressobj()
    raw = unpacker.decompress(base64.b64decode(text, validate=True), 8 * count + 1)
    size = len(raw) // max(count, 1)
    if size * count != len(raw) or (count and size not in (1, 2, 4, 8)):
        raise ValueError(f"{len(raw)} bytes for {count} numbers")
    planes = np.frombuffer(raw, dtype=np.uint8).reshape(size, count) if count else np.zeros((1, 0))
    narrow = np.ascontiguousarray(planes.T, dtype=np.uint8).view(f"<u{max(size, 1)}")
    return narrow.ravel().astype(np.int64)
