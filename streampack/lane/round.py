"""Round: plan a window, and gather the chosen rows into batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.deals.rule import Report
from streampack.lane.fill import Fill
from streampack.lane.state import RoundStart
from streampack.metrics import LaneTimes
from streampack.packing.plan import PackingStats
from streampack.window.entries import Entries
from streampack.window.gather import gather_rows, labels_of_dropped
from streampack.window.packed_rows import PackedRows
from streampack.window.planned import PlannedWindow


class Round:
    """One round of a lane: the window, its plan, and the batches of chosen rows.

    A lane that waits for a deal and has no batch until then gives an empty one.

    Args:
        fill: fill of the lane, with a window that is full or holds all remaining documents.
        step: index of the first batch.
        starved: True if documents ran out before the window was full.

    Attributes:
        final: True if no documents follow the window.
        planned: plan of the window.
        batches: batches in order.
        emitted: number of batches that the lane has given.
        lost: counts of documents and tokens outside every row.
        start: start of the round, as the lane's state describes it.
    """

    def __init__(self, fill: Fill, step: int, starved: bool) -> None:
        config, window, stream = fill.config, fill.window, fill.stream
        self.starved = starved
        self.final = starved and stream.ended
        with fill.times.measure("pack_s"):
            self.planned = window.plan(final=self.final, step=step)
        with fill.times.measure("gather_s"):
            batches = gather_rows(self.planned, window.buffer, config.row_format)
            batches = stream.completed(batches)
        if starved and not self.final and not batches:
            batches = [config.empty_batch(step)]
        self.batches = batches
        self.emitted = 0
        self.lost = _lost(fill, self.planned)
        report_deals(fill, step, batches, final=self.final)
        self.start = round_start(fill, step, final=self.final)

    @classmethod
    def again(cls, fill: Fill, state: Mapping[str, Any]) -> Round | None:
        """Remake the round of a state, after `fill` reread its window; None if it must be filled.

        Raises:
            StateError: the documents differ from the documents of the state.
        """
        if state["final"] is None:
            return None
        # The round had read on until its window was full.
        starved = fill.window.wants and fill.stream.peek() is None
        fill.stream.skips.counts.skipped = state["skipped"]
        if (starved and fill.stream.ended) != state["final"]:
            raise fill.changed(
                "there is more to read than when the end of the run was packed"
                if state["final"]
                else "the source ends where it went on"
            )
        remade = cls(fill, state["step"], starved)
        remade.emitted = state["emitted"]
        if remade.emitted > len(remade.batches):
            raise fill.changed(
                f"the round has {len(remade.batches)} batches, of which {remade.emitted} were given"
            )
        return remade


def round_start(fill: Fill, step: int, *, final: bool | None) -> RoundStart:
    """Return the round start of a lane before batch `step`; `final` as in `RoundStart`."""
    window, stream = fill.window, fill.stream
    entries, continued = window.entries, window.continued
    position = stream.position_before(int(entries.serial[0]) if len(entries) else stream.serial)
    return RoundStart(
        lane=fill.lane,
        number=window.round,
        step=step,
        final=final,
        position=position,
        admitted=stream.serial + continued - position.serial,
        continued=continued,
        entries=entries,
        skipped=stream.skips.counts.skipped,
        reports=list(fill.reports.entries),
        reported_deal=fill.reports.last,
    )


def report_deals(fill: Fill, step: int, batches: list[PackedRows], *, final: bool) -> None:
    """Report the lane's view of its sources at the batches that deals depend on.

    Args:
        fill: fill of the lane, after it has read for a round.
        step: index of the round's first batch.
        batches: batches of the round.
        final: True if the lane ends with them.
    """
    reports, window = fill.reports, fill.window
    due = reports.due(step, step + len(batches))
    if due:
        held = held_by_source(window.entries, continued=window.continued)
        total = max(int(held.sum()), 1)
        sizes = [rows.composition.placed - rows.composition.repeated for rows in batches]
        after = (total - np.cumsum(sizes, dtype=np.int64)).tolist()
        # Tokens count as the slots that they take, in rows as full as the rows of this round.
        placed = sum(sizes)
        slots = sum(rows.composition.slots for rows in batches) if placed else 1
        remaining = fill.stream.remaining()
        waits = not placed and not final  # waits for a deal of unknown content
        places = max(placed, 1)
        lines = [
            (
                int(held[source]) if source < len(held) and not waits else 0,
                until,
                ahead,
                (tokens + ahead) * slots // places,
            )
            for source, until, ahead, tokens in remaining
        ]
        for number, at in due:
            waiting = max(after[at], 0)
            reports.put(
                number,
                [
                    Report(until, (ahead + tokens * waiting // total) * slots // places, found)
                    for tokens, until, ahead, found in lines
                ],
            )
    if final:
        reports.end()


def held_by_source(entries: Entries, *, continued: bool) -> NDArray[np.int64]:
    """Return the tokens in a window by source index, up to the last source with tokens.

    If the last document is held in part (`continued`), all of it counts.
    """
    tokens = entries.held - entries.repeated
    if continued:
        tokens[-1] += entries.length[-1] - entries.start[-1] - entries.held[-1]
    return np.bincount(entries.origin["source"], weights=tokens).astype(np.int64)


def _lost(fill: Fill, planned: PlannedWindow) -> PackingStats:
    """Count the documents that the plan drops whole.

    Earlier rows may hold parts of them; a document with parts in several rows also counts as cut.
    """
    lost = planned.dropped >= planned.lengths  # the packer sees a length of 0
    if not lost.any():
        return PackingStats()
    entries = fill.window.entries
    undelivered = entries.length - entries.start
    kept, missing = labels_of_dropped(planned, fill.window.buffer, np.flatnonzero(lost))
    lost_stats = PackingStats(
        dropped=int(undelivered[lost].sum()),
        documents_cut=int((lost & (entries.start > fill.config.packer.seq_lens[-1])).sum()),
        documents_cropped=int(lost.sum()),
        documents_lost=int((lost & (entries.start == 0)).sum()),
        loss_dropped=int(missing.sum()),
        documents_unlearnt=int(((kept == 0) & (missing > 0)).sum()),
    )
    members = fill.member_lengths(entries.pick(np.flatnonzero(lost)))
    if members is None:
        return lost_stats
    more = len(members.lengths) - int(lost.sum())  # lost entries are groups
    return lost_stats + PackingStats(
        documents_cropped=more, documents_lost=more, documents_unlearnt=more
    )


def totals(fill: Fill) -> dict[str, Any]:
    """Return the lane's counters and stage times after a round, named as in `Metrics`."""
    return {**vars(fill.stream.skips.counts), "times": fill.times + LaneTimes()}
