"""A lane: document stream, window, plan, batches; and the state that repeats them.

A lane is deterministic on its own: the same source, settings and seed give the same batches on
any machine, rank or worker. Its state is coordinates only: where to read again from, which of the
documents read since then the window held at the start of the current round, and how many of the
round's batches are emitted. Restoring reads them again, plans again and skips those batches.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.deals.dealer import Dealer
from streampack.deals.rule import Report
from streampack.errors import StateError
from streampack.lane.config import LaneConfig
from streampack.lane.state import LaneBatch, LaneEnd, Round, SavedEntries, decode_reports
from streampack.metrics import LaneTimes, Metrics
from streampack.packing.plan import Composition
from streampack.packing.request import MemberLengths
from streampack.packing.rng import derive_seed
from streampack.sources.skips import Skips
from streampack.streams.base import LaneStream, Remaining, StreamPosition
from streampack.streams.lane_stream import open_stream
from streampack.window.entries import Entries
from streampack.window.gather import gather_rows
from streampack.window.packed_rows import PackedRows, with_passes
from streampack.window.planned import PlannedWindow
from streampack.window.window import Window

logger = logging.getLogger(__name__)

ADMIT_DOCUMENTS = 4096  # that the window is shown at once
NAMED_DOCUMENTS = 10  # of those dropped for their length, in the log of a lane


@dataclass(slots=True, eq=False)
class Lane:
    """Lane number `lane`; starts from `state` (of `Round.state`) or from the beginning.

    `dealer` makes the deals where the configuration has a rule for them.

    Raises (while reading):
        StateError: the documents are not those the state was made from.
        ContentError, StorageError: from the source.
    """

    config: LaneConfig
    lane: int
    state: dict[str, Any] | None = None
    dealer: Dealer | None = None
    _stream: LaneStream = field(init=False)
    _window: Window = field(init=False)
    _round: Round | None = field(init=False, default=None)
    _planned: PlannedWindow | None = field(init=False, default=None)
    _batches: list[PackedRows] = field(init=False, default_factory=list)
    _emitted: int = field(init=False, default=0)
    _step: int = field(init=False, default=0)
    _lost: Composition = field(init=False, default_factory=Composition)
    _times: LaneTimes = field(init=False, default_factory=LaneTimes)
    _first_epochs: int = field(init=False, default=0)
    _unreported: bool = field(init=False, default=False)
    _reported: dict[str, Any] = field(init=False, default_factory=dict)
    _dropped: int = field(init=False, default=0)
    _reports: list[list[int]] = field(init=False, default_factory=list)
    _reported_deal: int = field(init=False, default=0)
    _starved: bool = field(init=False, default=False)
    _following: LaneBatch | LaneEnd | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        config = self.config
        self._window = Window(
            config.window,
            config.packer,
            batch_tokens=config.batch_tokens,
            seed=derive_seed(config.seed, 2, self.lane),
            schedule_seed=config.seed,
            balance=config.balance,
            name=config.source.document_name,
        )
        state, mark = self.state, None
        skips = Skips(config.on_error, config.skip_limit)
        if state is not None:
            mark = StreamPosition(state["serial"], state["cursor"])
        self._stream = open_stream(
            config, self.lane, skips=skips, times=self._times, mark=mark, dealer=self.dealer
        )
        if state is not None:
            self._restore(state)
        elif config.dealing is not None:
            self._reports = config.dealing.before_first()
            self._reported_deal = config.dealing.first

    def next(self) -> LaneBatch | LaneEnd:
        """The next batch, or the lane's end when the last epoch is packed to its end.

        A batch says whether another one follows. That is known without work unless it is the last
        of its round; then the next round is made before the batch is handed out.
        """
        item, self._following = self._following or self._make_next(), None
        if isinstance(item, LaneEnd) or self._emitted < len(self._batches):
            return item
        if self.config.epochs is None:
            return item
        following = self._make_next()
        if isinstance(following, LaneEnd) and item.rows.composition.placed:
            metrics = following.metrics + (item.metrics or Metrics())
            return item._replace(
                round=following.round, emitted=following.emitted, metrics=metrics, has_next=False
            )
        self._following = following
        return item

    def _make_next(self) -> LaneBatch | LaneEnd:
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
                return LaneBatch(self.lane, self._step - 1, rows, started, self._emitted, metrics)
            if started.final:
                return LaneEnd(self.lane, self._step, started, self._emitted, self._report())
            self._round = None

    def _report(self) -> Metrics:
        """What was lost and spent since the last report."""
        stream, before = self._stream, self._reported
        self._unreported = False
        self._reported = {
            "empty_documents": stream.empty_documents,
            "eos_in_texts": stream.eos_in_texts,
            "skipped": stream.skips.count,
            "duplicates": stream.duplicates,
            "duplicate_tokens": stream.duplicate_tokens,
            "first_epochs": self._first_epochs,
            "times": replace(self._times),
        }
        since = {name: now - before[name] for name, now in self._reported.items() if before}
        lost, self._lost = self._lost, Composition()
        return Metrics(composition=lost, **(since or self._reported))

    # ------------------------------------------------------------------ one round

    def _start_round(self) -> None:
        if self._planned is not None:
            with self._times.measure("pack_s"):
                self._window.advance(self._planned, starved=self._starved)
        self._allow(self._step)
        starved = self._fill()
        self._emitted = 0
        self._begin(starved)
        self._report_deals()
        if self.config.packer.overflow == "drop":
            self._name_dropped(self._window.entries)

    def _fill(self) -> bool:
        """Admit what this round wants; True if there was less."""
        window, stream = self._window, self._stream
        while window.wants:
            documents = stream.peek()
            if documents is None:
                return True
            # Not more at a time than a round may use, for it looks at all of them again.
            documents = documents[:ADMIT_DOCUMENTS]
            with self._times.measure("pack_s"):
                taken, full = window.admit(documents, stream.serial)
            stream.consume(taken)
            if full:
                break
        return False

    def _begin(self, starved: bool) -> None:
        """Plan the window as it is, remember how it was made, and gather what goes.

        A lane that is dealt more later and has no batch until then gives an empty one.
        """
        window, final = self._window, starved and self._stream.ended
        self._starved = starved
        with self._times.measure("pack_s"):
            planned = self._planned = window.plan(final=final, step=self._step)
        started = self._round = self._round_now(final)
        # The epoch of the oldest document; marks of mixtures and orders have none.
        self._first_epochs = int(started.mark.cursor.get("epoch", 0) > 0)
        config = self.config
        with self._times.measure("gather_s"):
            self._batches = gather_rows(
                planned, config.batch_tokens, window.buffer, config.row_format
            )
        if config.row_format.sources:
            passes = self._stream.passes()
            self._batches = [with_passes(rows, passes) for rows in self._batches]
        if starved and not final and not self._batches:
            self._batches = [config.empty_batch(self._step)]
        self._lost += _lost_whole(planned, started.entries, config.packer.seq_lens[-1])
        if config.row_format.grouped:  # what is lost are groups
            lost = started.entries.serial[planned.dropped >= planned.lengths]
            members = window.buffer.fields.member_lengths(lost)
            more = 0 if members is None else len(members.lengths) - len(lost)
            self._lost += Composition(documents_cropped=more, documents_lost=more)
        self._unreported = True

    def _round_now(self, final: bool | None) -> Round:
        """The round that the window is at the start of."""
        window, stream = self._window, self._stream
        entries, continued = window.entries, window.continued
        mark = stream.mark_before(int(entries.serial[0]) if len(entries) else stream.serial)
        return Round(
            lane=self.lane,
            number=window.round,
            step=self._step,
            final=final,
            mark=mark,
            admitted=stream.serial + continued - mark.serial,
            continued=continued,
            entries=entries,
            skipped=stream.skips.count,
            reports=list(self._reports),
            reported_deal=self._reported_deal,
        )

    # ------------------------------------------------------------------ dealing

    def _allow(self, step: int) -> None:
        """Let the stream read the deals that a round may know if it begins with batch `step`."""
        self._stream.allow(step)
        dealer = self.dealer
        if dealer is not None:
            open_deals = min(dealer.rule.known(step), self._reported_deal)
            self._reports = [
                report
                for report in self._reports
                if report[0] >= open_deals or dealer.gave(report[0], report[1])
            ]

    def _report_deals(self) -> None:
        """After batches that deals go by, report how far the lane sees, in tokens too."""
        dealer, planned = self.dealer, self._round
        if dealer is None or planned is None:
            return
        due = dealer.rule.due(self._step, self._step + len(self._batches))
        if not due and not planned.final:
            return
        held = held_by_source(planned)
        total = max(int(held.sum()), 1)
        sizes = [rows.composition.placed - rows.composition.repeated for rows in self._batches]
        after = (total - np.cumsum(sizes, dtype=np.int64)).tolist()
        # Tokens count as the room that they take, in rows as full as those of this round.
        placed = sum(sizes)
        slots = sum(rows.composition.slots for rows in self._batches) if placed else 1
        outlooks = self._stream.outlooks()
        waits = not placed and not planned.final  # for a deal, whatever it holds
        for number in due:
            waiting = max(after[dealer.rule.step(number) - self._step], 0)
            for line, (source, until, ahead, tokens) in enumerate(outlooks):
                own = int(held[source]) if source < len(held) and not waits else 0
                numbers = ahead + own * waiting // total, tokens + ahead
                left, found = (number * slots // max(placed, 1) for number in numbers)
                report = Report(until, left, found)
                self._reports.append([number, line, *report])
                dealer.board.put(number, self.lane, line, report)
            self._reported_deal = number
        if planned.final:
            dealer.board.end(self.lane, self._reported_deal + 1)
        self._round = replace(
            planned, reports=list(self._reports), reported_deal=self._reported_deal
        )

    def _name_dropped(self, entries: Entries) -> None:
        """Log which documents are longer than a row, the first few by name."""
        config = self.config
        longest = config.packer.seq_lens[-1]
        for i in np.flatnonzero(entries.held == 0).tolist():
            self._dropped += 1
            if self._dropped <= NAMED_DOCUMENTS:
                logger.warning(
                    "dropped: %s%s has %d tokens and a %s%d%s",
                    "the group that begins with " if config.row_format.grouped else "",
                    config.source.document_name(entries.origin[i]),
                    entries.length[i],
                    f"batch has {config.batch_tokens // longest} rows of "
                    if config.packer.packs_members
                    else "row has ",
                    longest,
                    "; further ones are only counted (metrics: documents_lost)"
                    if self._dropped == NAMED_DOCUMENTS
                    else "",
                )

    # ------------------------------------------------------------------ restoring

    def place(self) -> tuple[Round, PlannedWindow | None, int]:
        """Where the lane stands: its round, the round's plan, and how many batches it has given.

        The plan is None where the round is not planned yet.
        """
        return self._round or self._round_now(None), self._planned, self._emitted

    def outlooks(self) -> list[Remaining]:
        """What the lane can see of every source that it is dealt, beyond what its window holds."""
        return self._stream.outlooks()

    def member_lengths(self, entries: Entries) -> MemberLengths | None:
        """Of the groups among these of the window's entries; None without groups."""
        if not self.config.row_format.grouped:
            return None
        return self._window.buffer.fields.member_lengths(entries.serial)

    def _restore(self, state: dict[str, Any]) -> None:
        """Refill the window the state describes, plan it again and skip what was emitted."""
        window, stream = self._window, self._stream
        self._reports = decode_reports(state["reports"])
        self._reported_deal = state["reported_deal"]
        stream.allow(state["step"])
        saved = SavedEntries(state, window)
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
                f"{state['digest']!r:.40}"
            )
        window.round = state["round"]
        self._step = state["step"]
        stream.skips.count = state["skipped"]
        if state["final"] is None:  # the round has still to read and to be planned
            self._report()
            return
        # The round had read on until its window was full, and what it had read was reported.
        starved = window.wants and stream.peek() is None
        stream.skips.count = state["skipped"]
        if (starved and stream.ended) != state["final"]:
            raise self._changed(
                "there is more to read than when the end of the run was packed"
                if state["final"]
                else "the source ends where it went on"
            )
        self._begin(starved)
        self._emitted = state["emitted"]
        if self._emitted > len(self._batches):
            raise self._changed(
                f"the round has {len(self._batches)} batches, of which {self._emitted} were given"
            )
        self._step += self._emitted
        self._lost = Composition()
        self._report()

    def _changed(self, what: str) -> StateError:
        return StateError(
            f"Lane {self.lane} was read again from its saved place, and {what}.",
            "Resume with the same data and code, or start a new run.",
        )


def held_by_source(started: Round) -> NDArray[np.int64]:
    """Tokens in the window of a round by source, counting all of a document that is held in part.

    As far as the last source that has any.
    """
    entries = started.entries
    tokens = entries.held - entries.repeated
    if started.continued:
        tokens[-1] += entries.length[-1] - entries.start[-1] - entries.held[-1]
    return np.bincount(entries.origin["source"], weights=tokens).astype(np.int64)


def _lost_whole(planned: PlannedWindow, entries: Entries, seq_len: int) -> Composition:
    """Counts of the documents that the plan drops whole; rows have at most seq_len tokens.

    Of some of them earlier rows hold a part; where that is more than one row, they are cut too.
    """
    lost = planned.dropped >= planned.lengths  # the packer sees a length of 0
    if not lost.any():
        return Composition()
    rest = entries.length - entries.start
    return Composition(
        dropped=int(rest[lost].sum()),
        documents_cut=int((lost & (entries.start > seq_len)).sum()),
        documents_cropped=int(lost.sum()),
        documents_lost=int((lost & (entries.start == 0)).sum()),
    )
