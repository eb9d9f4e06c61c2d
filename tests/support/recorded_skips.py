"""A policy that records skips, so that tests can ask for them."""

from __future__ import annotations

from dataclasses import dataclass, field

from streampack.errors import ContentError
from streampack.sources.error_policy import ErrorPolicy


@dataclass(slots=True)
class RecordedSkips(ErrorPolicy):
    """The same, with `records`: ``[shard, index, rest_of_shard, message]`` of each."""

    on_error: str = "skip"  # type: ignore[assignment]
    records: list[list[object]] = field(default_factory=list)

    def handle(self, error: ContentError) -> None:
        ErrorPolicy.handle(self, error)
        self.records.append([error.shard, error.index, error.rest_of_shard, str(error)])
