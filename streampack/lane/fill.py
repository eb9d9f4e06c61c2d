"""Fill: the documents that a lane reads come into its window.

A lane goes on from a state by reading the window's documents again. They are compared with the
state by a digest, so documents that changed since are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from streampack.deals.dealer import Dealer
from streampack.deals.sharing import LaneReports
from streampack.errors import StateError
from streampack.lane.config import LaneConfig
from streampack.lane.state import SavedEntries
from streampack.metrics import LaneTimes
from streampack.packing.request import MemberLengths
from streampack.packing.rng import derive_seed
from streampack.sources.skips import Skips
from streampack.streams.base import StreamPosition
from streampack.streams.lane_stream import open_stream
from streampack.window.entries import Entries
from streampack.window.window import Window

logger = logging.getLogger(__name__)

ADMIT_DOCUMENTS = 4096  # that the window is shown at once
NAMED_DOCUMENTS = 10  # of those dropped for their length, in the log of a lane


class Fill:
    """The stream and the window of a lane, which starts from `state` or from the beginning.

    Args:
        config: of the run; lane: number of the lane.
        state: of `RoundStart.state`; None is the beginning.
        dealer: makes the deals where the configuration has a rule for them.

    Attributes:
        stream: the documents that come next; window: those that wait.
        reports: what the lane has reported for deals.
        times: seconds spent by stage.

    Raises (while reading):
        StateError: the documents are not those the state was made from.
        ContentError, StorageError: from the source.
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
            balance=config.balance,
            name=config.source.document_name,
        )
        self.stream = open_stream(
            config,
            lane,
            skips=Skips(config.on_error),
            times=self.times,
            position=None if state is None else StreamPosition(state["serial"], state["cursor"]),
            dealer=dealer,
        )
        self._dropped = 0
        if state is not None:
            self._read_again(state)

    def read(self, step: int) -> bool:
        """Admit what the round that begins with batch `step` wants; True if there was less."""
        self.stream.allow(step)
        self.stream.reweigh(step)
        self.reports.forget(step)
        starved = self._admit()
        if self.config.packer.overflow == "drop":
            self._name_dropped(self.window.entries)
        return starved

    def member_lengths(self, entries: Entries) -> MemberLengths | None:
        """Of the groups among these of the window's entries; None without groups."""
        if not self.config.row_format.units[0]:
            return None
        return self.window.buffer.fields.member_lengths(entries.serial)

    def changed(self, what: str) -> StateError:
        """The error for documents that are not those of a state."""
        return StateError(
            f"Lane {self.lane} was read again from its saved place, and {what}.",
            "Resume with the same data and code, or start a new run.",
        )

    def _admit(self) -> bool:
        window, stream = self.window, self.stream
        while window.wants:
            documents = stream.peek()
            if documents is None:
                return True
            # Not more at a time than a round may use, for it looks at all of them again.
            documents = documents[:ADMIT_DOCUMENTS]
            with self.times.measure("pack_s"):
                taken, full = window.admit(documents, stream.serial)
            stream.consume(taken)
            if full:
                break
        return False

    def _read_again(self, state: Mapping[str, Any]) -> None:
        """Refill the window that a state describes."""
        window, stream = self.window, self.stream
        stream.allow(state["step"])
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
                f"the window's digest is {window.entries.digest()}, the state says "
                f"{state['digest']!r:.40}"
            )
        window.round = state["round"]
        stream.skips.counts.skipped = state["skipped"]

    def _name_dropped(self, entries: Entries) -> None:
        """Log which documents are longer than a row, the first few by name."""
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
