"""What happens to broken content: an error, or it is skipped, counted and named."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Literal

from streampack.errors import ConfigError, ContentError

logger = logging.getLogger(__name__)

NAMED = 10  # of the broken documents of a lane that are logged by name


@dataclass(slots=True)
class Skips:
    """The broken content of one lane.

    Attributes:
        on_error: "raise" stops at the first `ContentError`; "skip" continues after it.
        limit: with "skip", the number of skips in a lane after which it raises an error as well,
            because a corpus that is broken throughout should not be read in silence.
        name: of the source in a mixture, or None.
    """

    on_error: Literal["raise", "skip"] = "raise"
    limit: int = 1000
    name: str | None = None
    _count: list[int] = field(default_factory=lambda: [0])  # one for all sources of a mixture

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "skip"):
            raise ConfigError(
                f'on_error is "{self.on_error}".', 'Use "raise" or "skip".', setting="on_error"
            )

    @property
    def count(self) -> int:
        """How many were skipped since the run began; it is set where a lane goes on."""
        return self._count[0]

    @count.setter
    def count(self, count: int) -> None:
        self._count[0] = count

    def of_source(self, name: str) -> Skips:
        """The skips of one source of a mixture; its count and limit are those of the lane."""
        return Skips(self.on_error, self.limit, name, _count=self._count)

    def handle(self, error: ContentError) -> None:
        """Raise `error`, or count and name it and return."""
        if self.name is not None:
            error = error.of_source(self.name)
        if self.on_error == "raise":
            raise error
        if self.count >= self.limit:
            raise ContentError(
                f"{self.count} broken documents or shards were skipped in one lane, the "
                f"limit, and now: {error.fact}",
                "Repair the corpus, or raise the limit if so much may be lost.",
            ) from error
        self.count += 1
        self._log(error)

    def _log(self, error: ContentError) -> None:
        """Log every shard, the first documents, and then those whose count is a power of ten."""
        count = self.count
        if count > NAMED and not error.rest_of_shard and str(count).strip("0") != "1":
            return
        so_far = f" ({count:,} so far in this lane)" if count > NAMED else ""
        if count == NAMED:
            so_far = "; further ones are counted (metrics: skipped), and few are named"
        logger.warning("skipped: %s%s", error.fact, so_far)
