"""Handling of broken content: an error, or a skip that is counted and logged."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Literal

from streampack.arguments import one_of
from streampack.errors import ContentError
from streampack.metrics import LaneCounts

logger = logging.getLogger(__name__)

IN_A_ROW = 10_000  # consecutive skips after which the whole corpus counts as broken
NAMED = 10  # broken documents per lane that are logged by name


@dataclass(slots=True)
class ErrorPolicy:
    """The handling of one lane's broken content.

    Attributes:
        on_error: "raise" stops at the first `ContentError`; "skip" continues after it, unless
            `IN_A_ROW` of them came with no document between.
        name: name of the source in a mixture, or None.
        counts: the lane's counters, shared by all its sources.
        in_a_row: skips since the last document.
    """

    on_error: Literal["raise", "skip"] = "raise"
    name: str | None = None
    counts: LaneCounts = field(default_factory=LaneCounts)
    in_a_row: int = 0

    def __post_init__(self) -> None:
        one_of("on_error", self.on_error, ("raise", "skip"))

    def of_source(self, name: str) -> ErrorPolicy:
        """Return the `ErrorPolicy` of one source of a mixture, with the lane's counters."""
        return ErrorPolicy(self.on_error, name, self.counts)

    def handle(self, error: ContentError) -> None:
        """Raise `error`, or count and name it and return."""
        if self.name is not None:
            error = error.of_source(self.name)
        if self.on_error == "raise":
            raise error
        if self.in_a_row >= IN_A_ROW:
            raise ContentError(
                f"{IN_A_ROW:,} broken documents or shards came one after another, and now: "
                f"{error.fact}",
                "Repair the corpus, or leave out the files that hold no document.",
            ) from error
        self.in_a_row += 1
        self.counts.skipped += 1
        self._log(error)

    def _log(self, error: ContentError) -> None:
        """Log every shard, the first documents, and later ones at counts that are powers of ten."""
        count = self.counts.skipped
        if count > NAMED and not error.rest_of_shard and str(count).strip("0") != "1":
            return
        so_far = f" ({count:,} so far in this lane)" if count > NAMED else ""
        if count == NAMED:
            so_far = "; further ones are counted (metrics: skipped), and few are named"
        logger.warning("skipped: %s%s", error.fact, so_far)
