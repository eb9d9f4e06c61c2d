"""Caps: at most so many tokens of documents with a value of a field, in a whole run.

Each lane has an equal part of every cap. It adds up the tokens of the documents with the value, in
its own order, and leaves out the first document with which the sum exceeds its part, and all later
ones. So a cap holds at every batch, without a message between lanes, and the batches are the same
on any number of ranks and workers. A state has the sums, one integer per cap and lane.

Lanes do not lend their parts to each other. A lane that meets less of a value than its part leaves
the rest of it unused, and others may leave out documents meanwhile.

Cost: two passes over the integers of a block per cap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.accounts.totals import MOST_VALUES
from streampack.arguments import whole_number
from streampack.documents.blocks import Documents, Fields
from streampack.documents.fields import FieldSpec
from streampack.documents.text_keys import text_key
from streampack.errors import ConfigError
from streampack.exclusion.mask import Mask, MaskedStream
from streampack.streams.base import LaneStream, StreamPosition

#: Key in the fingerprint of a run, and in the cursors of its lanes.
CAPS = "caps"


@dataclass(frozen=True, slots=True)
class Cap:
    """At most `tokens` tokens of documents with `value` in `field`.

    Attributes:
        field: name of a document field.
        value: an integer, or the key of a text.
        name: the value in messages and fingerprints.
        tokens: tokens of the documents, as they come from all stages.
    """

    field: str
    value: int
    name: str
    tokens: int


def caps_of(named: Mapping[str, Any], fields: FieldSpec) -> tuple[Cap, ...]:
    """Return the caps of the argument `ledger`, sorted by field and value.

    Args:
        named: for each field the largest number of tokens by value.
        fields: fields of the run.

    Raises:
        ConfigError: a cap is not a number of tokens by a value of a declared field, or there are
            more than 255.
    """
    caps = []
    for field, by_value in named.items():
        texts = field in fields.keys
        if not isinstance(by_value or {}, Mapping):
            raise ConfigError(
                f'Caps of "{field}" must be tokens by value, got {by_value!r:.80}.',
                f'Pass ledger={{"{field}": {{value: tokens}}}}, or {{}} for no cap.',
                setting="ledger",
            )
        if by_value and field not in fields.document:
            raise ConfigError(
                f'Caps must be by values of a declared field, got "{field}".',
                f'Declare it with document_fields={{"{field}": "text"}}.',
                setting="ledger",
            )
        for value, tokens in (by_value or {}).items():
            key = _key(value, texts)
            if key is None:
                kind = "texts" if texts else "integers"
                raise ConfigError(
                    f'Caps of "{field}" must be by {kind}, got {value!r:.80}.',
                    f'Pass ledger={{"{field}": {{value: tokens}}}} with values of this type.',
                    setting="ledger",
                )
            most = whole_number("ledger", tokens, least=0, most=1 << 62)
            caps.append(Cap(field, key, str(value), most))
    if len(caps) > MOST_VALUES:
        raise ConfigError(
            f"A run can have up to {MOST_VALUES} caps, got {len(caps)}.",
            "Give values one cap by a field that they share.",
            setting="ledger",
        )
    return tuple(sorted(caps, key=lambda cap: (cap.field, cap.name)))


def _key(value: Any, texts: bool) -> int | None:
    """Return the integer that a field has for a value; None for a value of another type."""
    if texts:
        return text_key(value) if isinstance(value, str) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def described(caps: tuple[Cap, ...]) -> dict[str, dict[str, int]]:
    """Return the tokens of caps by field and value, JSON-able."""
    tables: dict[str, dict[str, int]] = {cap.field: {} for cap in caps}
    for cap in caps:
        tables[cap.field][cap.name] = cap.tokens
    return tables


@dataclass(frozen=True, slots=True)
class Capped:
    """Wrapper that leaves out documents above caps; see `LaneConfig`.

    Attributes:
        caps: the caps, sorted.
    """

    caps: tuple[Cap, ...]

    def __call__(self, stream: LaneStream, state: Mapping[str, Any] | None) -> LaneStream:
        """Return the stream without documents above the lane's parts of the caps."""
        lane, lanes = _lane_of(stream)
        parts = [cap.tokens * (lane + 1) // lanes - cap.tokens * lane // lanes for cap in self.caps]
        met = [0] * len(parts) if state is None else state["cursor"][CAPS]
        return CappedStream(stream, self.caps, np.array(parts, np.int64), np.array(met, np.int64))


class CappedStream(MaskedStream):
    """The documents of another stream that are not above caps, with their serials.

    Args:
        inner: the stream.
        caps: the K caps.
        parts: (K,) tokens of each cap that this lane may deliver.
        met: (K,) tokens that it met of each before the next document.

    Raises (while reading):
        ConfigError: every document of an epoch is above a cap, and epochs never end.
    """

    def __init__(
        self,
        inner: LaneStream,
        caps: tuple[Cap, ...],
        parts: NDArray[np.int64],
        met: NDArray[np.int64],
    ) -> None:
        super().__init__(inner, Mask({}), (0, 0))
        self._caps, self._parts = caps, parts
        self._met = met[:, None]  # (K, N + 1) before each of the N documents of the block
        self._at = 0  # documents of the block that were consumed

    def position_before(self, serial: int) -> StreamPosition:
        """Return the position of a document, with the tokens met before the next one."""
        position = super().position_before(serial)
        met = self._met[:, self._at].tolist()
        return replace(position, cursor={**position.cursor, CAPS: met})

    def _masked(self, block: Documents) -> NDArray[np.bool_]:
        met = self._met[:, self._at]
        sizes = block.lengths, block.document_fields
        hits, self._met = above_caps(self._caps, self._parts, met, *sizes)
        self._at = 0
        return hits

    def _step_over(self, count: int) -> None:
        super()._step_over(count)
        self._at += count

    def _endless(self, epoch: int) -> ConfigError:
        return ConfigError(
            f"A lane must keep a document, but all of epoch {epoch} are above caps of ledger.",
            "Raise the caps, or pass a number of epochs.",
            setting="ledger",
        )


def above_caps(
    caps: Sequence[Cap],
    parts: NDArray[np.int64],
    met: NDArray[np.int64],
    lengths: NDArray[np.int64],
    fields: Fields,
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return where N documents in order are above caps, (N,), and tokens met before, (K, N + 1).

    Args:
        caps: the K caps; parts: (K,) tokens of each that may be delivered.
        met: (K,) tokens met of each before these documents.
        lengths: (N,) int64 tokens of the documents; fields: their document fields.
    """
    hits = np.zeros(len(lengths), dtype=np.bool_)
    every = np.zeros((len(caps), len(lengths) + 1), dtype=np.int64)
    every[:, 0] = met
    for cap, part, sums in zip(caps, parts, every, strict=True):
        # A document above a cap of an earlier field does not count here.
        of_value = (fields[cap.field] == cap.value) & ~hits
        sums[1:][of_value] = lengths[of_value]
        np.cumsum(sums, out=sums)
        hits |= of_value & (sums[1:] > part)
    return hits, every


def _lane_of(stream: Any) -> tuple[int, int]:
    """Return the index of a stream's lane, and the number of lanes."""
    while not hasattr(stream, "_config"):
        inner = getattr(stream, "inner", None) or getattr(stream, "_stream", None)
        stream = stream._members[0].stream if inner is None else inner
    return stream._lane, stream._config.lanes


def met_tokens(state: Mapping[str, Any]) -> dict[str, dict[str, tuple[int, int]]]:
    """Return each cap of a run's state, and the tokens that its lanes met, by field and value.

    Tokens of documents that wait in windows were met too.
    """
    tables = state["fingerprint"].get(CAPS, {})
    lanes = [lane["cursor"][CAPS] for lane in state["lanes"].values() if lane and tables]
    sums = iter(np.sum(lanes, axis=0, dtype=np.int64).tolist() if lanes else [])
    return {
        field: {value: (most, next(sums, 0)) for value, most in sorted(by_value.items())}
        for field, by_value in sorted(tables.items())
    }
