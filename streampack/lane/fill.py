"""Fill: read documents into the window of a lane.

A lane resumes from a state by rereading the window's documents. A digest compares them with the
state, so documents that have changed are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from streampack.deals.dealer import Dealer
from streampack.deals.report_channel import LaneReports
from streampack.errors import StateError
from streampack.lane.config import LaneConfig
from streampack.lane.state import SavedEntries
from streampack.metrics import LaneTimes
from streampack.packing.request import MemberLengths
from streampack.packing.rng import derive_seed
from streampack.sources.error_policy import ErrorPolicy
from streampack.streams.base import Opening, StreamPosition
from streampack.streams.lane_stream import open_stream
from streampack.window.entries import Entries
from streampack.window.window import Window

logger = logging.getLogger(__name__)

ADMIT_DOCUMENTS = 4096  # documents offered to the window at once
NAMED_DOCUMENTS = 10  # documents per lane named in the log when dropped for their length


class Fill:
    """A lane's stream and window, restored from `state` if given.

    Args:
        config: configuration of the run.
        lane: index of the lane.
        state: a state from `RoundStart.state`; None is the beginning.
        dealer: makes the deals if the configuration has a rule for them.

    Attributes:
        stream: stream of the next documents.
        window: documents that wait for a row.
        reports: reports of the lane for deals.
        times: seconds spent by stage.

    Raises (while reading):
        StateError: the documents differ from the documents of the state.
        ContentError, StorageError: the source cannot be read.
    """

    def __init__(
        self,
        config: LaneConfig,
        lane: int,
        state: Mapping[str, Any] | None = None,
        dealer: Dealer | None = None,
    ) -> None:
        self.config = config
        self.lane = lane
        self.times = LaneTimes()
        self.reports = LaneReports(lane, config.dealing, dealer, state)
        self.window = Window(
            config.window,
            config.packer,
            batch_tokens=config.batch_tokens,
            seed=derive_seed(config.seed, 2, lane),
            schedule_seed=config.seed,
            choice=config.choice.of_lane(lane, config.lanes),
            name=config.source.document_name,
        )
        position = None if state is None else StreamPosition(state["serial"], state["cursor"])
        skips = ErrorPolicy(config.on_error)
        self.stream = open_stream(Opening(config, lane, skips, self.times, position, dealer))
        self._dropped = 0
        if state is not None:
            self._read_again(state)
        for wrapper in config.wrappers:
            self.stream = wrapper(self.stream, state)

    def read(self, step: int) -> bool:
        """Fill the window for the round from batch `step` on; return True if documents ran out."""
        self.stream.begin_round(step)
        self.reports.begin_round(step)
        starved = self._admit()
        if self.config.packer.overflow == "drop":
            self._name_dropped(self.window.entries)
        return starved

    def member_lengths(self, entries: Entries) -> MemberLengths | None:
        """Return the member lengths of groups among these window entries; None without groups."""
        if not self.config.row_format.units[0]:
            return None
        return self.window.buffer.fields.member_lengths(entries.serial)

    def changed(self, what: str) -> StateError:
        """Return the error for documents that differ from the documents of a state."""
        return StateError(
            f"Lane {self.lane} was reread from its saved position, and {what}.",
            "Resume with the same data and code, or start a new run.",
        )

    def _admit(self) -> bool:
        window, stream = self.window, self.stream
        while window.wants:
            documents = stream.peek()
            if documents is None:
                return True
            # No more at a time than a round may use, because the window examines all of them.
            documents = documents[:ADMIT_DOCUMENTS]
            with self.times.measure("pack_s"):
                taken, full = window.admit(documents, stream.serials(len(documents)))
            stream.consume(taken)
            if full:
                break
        return False

    def _read_again(self, state: Mapping[str, Any]) -> None:
        """Refill the window that a state describes."""
        window, stream = self.window, self.stream
        stream.begin_round(state["step"], again=True)
        saved = SavedEntries(state, window)
        while (remaining := saved.admitted - saved.read) > 0:
            documents = stream.peek()
            if documents is None:
                raise self.changed(f"the source ended {remaining} documents too early")
            count = min(len(documents), remaining)
            saved.take(documents[:count], stream.serial)
            held_in_part = saved.continued and count == remaining
            stream.consume(count - held_in_part)
        if window.entries.digest() != state["digest"]:
            raise self.changed(
                f"the window's digest is {window.entries.digest()}, not "
                f"{state['digest']!r:.40} as in the state"
            )
        window.round = state["round"]
        stream.skips.counts.skipped = state["skipped"]

    def _name_dropped(self, entries: Entries) -> None:
        """Log documents that are longer than a row, the first few by name."""
        config, first = self.config, self._dropped
        dropped = np.flatnonzero(entries.held == 0)
        self._dropped += len(dropped)
        named = entries.pick(dropped[: max(NAMED_DOCUMENTS - first, 0)])
        sizes = self.window.buffer.fields.sizes(named, config.packer)
        for i, origin in enumerate(named.origin):
            logger.warning(
                "dropped: %s%s %s%s",
                config.row_format.units[0],
                config.source.document_name(origin),
                self.window.excess(sizes, i, slots=config.row_format.units[1] == "slots"),
                "; further ones are only counted (metrics: documents_lost)"
                if first + i + 1 == NAMED_DOCUMENTS
                else "",
            )
