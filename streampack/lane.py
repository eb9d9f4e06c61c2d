"""A lane: document stream, window, plan, batches; and the state that repeats them.

A lane is deterministic on its own: the same source, settings and seed give the same batches on
any machine, rank or worker. Its state is coordinates only: where to read again from, which of the
documents read since then the window held at the start of the current round, and how many of the
round's batches are emitted. Restoring reads them again, plans again and skips those batches.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack.assembly import PackedRows, RowFormat, derive_fields, gather_rows
from streampack.documents import Documents, make_origin
from streampack.entries import Entries
from streampack.errors import StateError
from streampack.metrics import LaneTimes, Metrics
from streampack.ordered_stream import OrderedStream
from streampack.ordering import DocumentOrder
from streampack.packing.composition import Composition
from streampack.packing.packer import Packer
from streampack.packing.rng import derive_seed
from streampack.sources.base import Source
from streampack.sources.skips import Skips
from streampack.stream import DocumentStream, Mark, Preparation
from streampack.window import PlannedWindow, Window, WindowConfig

__all__ = ["Lane", "LaneBatch", "LaneConfig", "Round", "warm_up"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneConfig:
    """Everything that determines the batches of a run, shared by all of its lanes.

    Attributes:
        source: prepared; lanes: how many it is split into.
        preparation: tokenizer, EOS rule and hooks.
        order: orders documents before they come into the window; None leaves them as they come.
        packer, window (resolved), batch_tokens: how rows are made and grouped.
        row_format: how they are written.
        seed, shuffle, epochs: of the stream.
        on_error, skip_limit: see `Skips`.
    """

    source: Source
    lanes: int
    preparation: Preparation
    packer: Packer
    window: WindowConfig
    batch_tokens: int
    row_format: RowFormat
    seed: int = 0
    shuffle: bool = True
    epochs: int | None = 1
    on_error: Any = "raise"
    skip_limit: int = 1000
    order: DocumentOrder | None = None


@dataclass(frozen=True, slots=True, eq=False)
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
        entries = self.entries
        present = np.zeros(self.admitted, dtype=np.bool_)
        present[entries.serial - self.mark.serial] = True
        moved = np.flatnonzero(entries.start)
        again = np.flatnonzero(entries.repeated)
        changes = np.flatnonzero(np.diff(entries.arrived, prepend=-1))
        counts = np.diff(changes, append=len(entries))
        return {
            "round": self.number,
            "step": self.step,
            "emitted": emitted,
            "final": self.final,
            "cursor": self.mark.cursor,
            "serial": self.mark.serial,
            "admitted": self.admitted,
            "present": base64.b64encode(zlib.compress(np.packbits(present).tobytes())).decode(),
            "tails": np.stack([moved, entries.start[moved]], axis=1).ravel().tolist(),
            "arrived": np.stack([entries.arrived[changes], counts], axis=1).ravel().tolist(),
            "repeated": np.stack([again, entries.repeated[again]], axis=1).ravel().tolist(),
            "held": int(entries.held[-1]) if self.continued else None,
            "digest": entries.digest(),
            "skipped": self.skips[0],
            "skipped_count": self.skips[1],
        }


class LaneBatch(NamedTuple):
    """One batch of a lane.

    Attributes:
        rows: the batch in compact form; step: its number in the lane.
        round, emitted: the lane's state is ``round.state(emitted)`` once this batch is consumed.
        metrics: what was lost or spent since the batch before that the rows do not tell; None if
            nothing, as for all but the first batch of a round.
    """

    rows: PackedRows
    step: int
    round: Round
    emitted: int
    metrics: Metrics | None


@dataclass(slots=True, eq=False)
class Lane:
    """Lane number `lane`; starts from `state` (of `Round.state`) or from the beginning.

    Raises (while reading):
        StateError: the documents are not those the state was made from.
        ContentError, StorageError: from the source.
    """

    config: LaneConfig
    lane: int
    state: dict[str, Any] | None = None
    _stream: DocumentStream | OrderedStream = field(init=False)
    _window: Window = field(init=False)
    _round: Round | None = field(init=False, default=None)
    _planned: PlannedWindow | None = field(init=False, default=None)
    _batches: list[PackedRows] = field(init=False, default_factory=list)
    _emitted: int = field(init=False, default=0)
    _step: int = field(init=False, default=0)
    _lost: Composition = field(init=False, default_factory=Composition)
    _times: LaneTimes = field(init=False, default_factory=LaneTimes)
    _unreported: bool = field(init=False, default=False)
    _reported: Metrics = field(init=False, default_factory=Metrics)

    def __post_init__(self) -> None:
        config = self.config
        self._window = Window(
            config.window,
            config.packer,
            batch_tokens=config.batch_tokens,
            seed=derive_seed(config.seed, 2, self.lane),
            schedule_seed=config.seed,
        )
        state, mark = self.state, None
        skips = Skips(config.on_error, config.skip_limit)
        if state is not None:
            mark = Mark(state["serial"], state["cursor"], 0)
            skips.expect(state["skipped"], state["skipped_count"])
        stream = DocumentStream(
            config.source,
            lanes=config.lanes,
            lane=self.lane,
            seed=config.seed,
            shuffle=config.shuffle,
            epochs=config.epochs,
            preparation=config.preparation,
            skips=skips,
            times=self._times,
            mark=mark if config.order is None else OrderedStream.inner_mark(mark),
        )
        self._stream = stream
        if config.order is not None:
            self._stream = OrderedStream(
                stream,
                config.order,
                source=config.source,
                seed=derive_seed(config.seed, 3, self.lane),
                times=self._times,
                mark=mark,
            )
        self._reported.skipped = skips.count
        if state is not None:
            self._restore(state)

    def next(self) -> LaneBatch | None:
        """The next batch, or None when the last epoch is packed to its end."""
        while True:
            if self._round is None:
                self._start_round()
            started = self._round
            assert started is not None
            if self._emitted < len(self._batches):
                rows = self._batches[self._emitted]
                self._emitted += 1
                self._step += 1
                metrics = self._report() if self._unreported else None
                return LaneBatch(rows, self._step - 1, started, self._emitted, metrics)
            if started.final:
                return None
            self._round = None

    def _report(self) -> Metrics:
        """What was lost and spent since the last report."""
        stream, before = self._stream, self._reported
        self._unreported = False
        self._reported = Metrics(
            empty_documents=stream.empty_documents,
            skipped=stream.skips.count,
            duplicates=stream.duplicates,
            times=replace(self._times),
        )
        lost, self._lost = self._lost, Composition()
        return Metrics(
            composition=lost,
            empty_documents=self._reported.empty_documents - before.empty_documents,
            skipped=self._reported.skipped - before.skipped,
            duplicates=self._reported.duplicates - before.duplicates,
            times=self._reported.times - before.times,
        )

    # ------------------------------------------------------------------ one round

    def _start_round(self) -> None:
        if self._planned is not None:
            with self._times.measure("pack_s"):
                self._window.advance(self._planned)
        final = self._fill()
        self._emitted = 0
        self._begin(final)

    def _fill(self) -> bool:
        """Admit what this round wants; True if nothing comes behind it."""
        window, stream = self._window, self._stream
        while window.wants:
            documents = stream.peek()
            if documents is None:
                return True
            with self._times.measure("pack_s"):
                taken, full = window.admit(documents, 0, stream.serial)
            stream.consume(taken)
            if full:
                break
        return False

    def _begin(self, final: bool) -> None:
        """Plan the window as it is, remember how it was made, and gather what goes."""
        window, stream = self._window, self._stream
        with self._times.measure("pack_s"):
            planned = self._planned = window.plan(final=final, step=self._step)
        entries, continued = window.entries, window.continued
        first = int(entries.serial[0]) if len(entries) else stream.serial
        mark = stream.mark_before(first)
        self._round = Round(
            number=window.round,
            step=self._step,
            final=final,
            mark=mark,
            admitted=stream.serial + continued - mark.serial,
            continued=continued,
            entries=entries,
            skips=(stream.skips.records[mark.skipped :], stream.skips.count),
        )
        config = self.config
        with self._times.measure("gather_s"):
            self._batches = gather_rows(
                planned,
                config.batch_tokens,
                entries,
                window.tokens,
                window.loss_mask,
                config.row_format,
            )
        self._lost += _lost_whole(planned, entries)
        self._unreported = True

    # ------------------------------------------------------------------ restoring

    def _restore(self, state: dict[str, Any]) -> None:
        """Refill the window the state describes, plan it again and skip what was emitted."""
        window, stream = self._window, self._stream
        saved = _SavedEntries(state, window)
        while (remaining := saved.admitted - saved.read) > 0:
            documents = stream.peek()
            if documents is None:
                raise self._changed(f"the source ended {remaining} documents too early")
            count = min(len(documents), remaining)
            saved.take(documents[:count], stream.serial)
            held_in_part = saved.continued and count == remaining
            stream.consume(count - held_in_part)
        if window.entries.digest() != state["digest"]:
            raise self._changed(
                f"the window's digest is {window.entries.digest()}, the state says "
                f"{state['digest']}"
            )
        window.round = state["round"]
        self._step = state["step"]
        self._begin(state["final"])
        self._emitted = state["emitted"]
        self._step += self._emitted
        if self._emitted:
            self._lost = Composition()  # reported with the first batch of the round

    def _changed(self, what: str) -> StateError:
        return StateError(
            f"Lane {self.lane} was read again from its saved place, and {what}.",
            "The documents, the tokenizer or a hook are not what they were when the state was "
            "saved, so batches would repeat or lose tokens.",
            "Resume with the same data and code, or start a new run.",
        )


@dataclass(slots=True)
class _SavedEntries:
    """The window's documents as a state describes them, taken over as they are read again."""

    state: dict[str, Any]
    window: Window
    read: int = 0
    _present: NDArray[np.bool_] = field(init=False)
    _start: NDArray[np.int64] = field(init=False)
    _repeated: NDArray[np.int64] = field(init=False)
    _arrived: NDArray[np.int64] = field(init=False)
    _restored: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        state = self.state
        bits = zlib.decompressobj().decompress(
            base64.b64decode(state["present"]), state["admitted"] // 8 + 1
        )
        self._present = np.unpackbits(
            np.frombuffer(bits, dtype=np.uint8), count=state["admitted"]
        ).astype(np.bool_)
        self._start = np.zeros(int(self._present.sum()), dtype=np.int64)
        self._start[state["tails"][::2]] = state["tails"][1::2]
        self._repeated = np.zeros(len(self._start), dtype=np.int64)
        self._repeated[state["repeated"][::2]] = state["repeated"][1::2]
        self._arrived = np.repeat(
            np.array(state["arrived"][::2], dtype=np.int64), state["arrived"][1::2]
        )

    @property
    def admitted(self) -> int:
        return len(self._present)

    @property
    def continued(self) -> bool:
        return self.state["held"] is not None

    def take(self, documents: Any, serial: int) -> None:
        """The next documents of the stream, as many as are still to be read or fewer."""
        here = np.flatnonzero(self._present[self.read : self.read + len(documents)])
        self.read += len(documents)
        kept = documents.take(here)
        part = slice(self._restored, self._restored + len(here))
        self._restored += len(here)
        start = self._start[part]
        last = self.continued and self.read == self.admitted
        held = self.window.needed(kept.lengths) - start
        if last:
            held[-1] = self.state["held"]
        entries = Entries(
            serial=serial + here,
            start=start,
            held=held,
            length=kept.lengths,
            arrived=self._arrived[part],
            repeated=self._repeated[part],
            origin=kept.origin,
        )
        self.window.restore(kept, entries, continued=last)


def _lost_whole(planned: PlannedWindow, entries: Entries) -> Composition:
    """Counts of the documents of which the plan places nothing."""
    lost = planned.plan.dropped >= planned.lengths  # overflow tells the packer a length of 0
    if not lost.any():
        return Composition()
    rest = entries.length - entries.start
    return Composition(
        dropped=int(rest[lost].sum()),
        documents_cropped=int(lost.sum()),
        documents_lost=int((lost & (entries.start == 0)).sum()),
    )


def warm_up(config: LaneConfig) -> None:
    """Compile or load every kernel a lane needs, so that forked workers inherit them."""
    for dtype in (np.uint16, np.uint32):
        tokens = np.zeros(5, dtype=dtype)
        origin = make_origin(0, np.arange(2, dtype=np.int64))
        documents = Documents(tokens, np.array([0, 3, 5], dtype=np.int64), origin)
        documents.take(np.array([1, 0], dtype=np.int64))
        window = Window(config.window, config.packer, batch_tokens=config.batch_tokens, seed=0)
        window.admit(documents, 0, 0)
        planned = window.plan(final=True)
        rows = gather_rows(
            planned, config.batch_tokens, window.entries,
            window.tokens, None, config.row_format,
        )  # fmt: skip
        derive_fields(rows[0])
        window.advance(planned)
