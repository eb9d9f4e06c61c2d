"""Preparation: the stages of a run, for every source of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from streampack.stages.base import BlockStage
from streampack.stages.ids import IDS_AS_THEY_ARE


@dataclass(frozen=True, slots=True)
class Preparation:
    """The stages of a run.

    Attributes:
        stages: for every source of a mixture, or the only one.
    """

    stages: tuple[tuple[BlockStage, ...], ...] = ()
    described: Mapping[str, Any] = field(default_factory=dict)

    def of(self, number: int) -> tuple[BlockStage, ...]:
        """Those of a source; token ids as they are, checked, if nothing was put together."""
        return self.stages[number] if self.stages else IDS_AS_THEY_ARE

    def find(self, name: str) -> Any:
        """The first value of an attribute of that name among all stages; None without one."""
        every = (stage for own in self.stages for stage in own)
        found = next((found for stage in every if (found := getattr(stage, name, None))), None)
        return getattr(found, name, found)  # of the tokenizer of chats, what it encodes with

    def titles(self, kind: str = "") -> list[tuple[str, str]]:
        """The user's own stages, as (kind, name)."""
        own = self.of(0)
        return [title for stage in own if (title := getattr(stage, "title", None)) is not None]

    def describe(self) -> dict[str, Any]:
        """What all stages describe, of the first source."""
        return {**self.described_by(0), **self.described}

    def described_by(self, number: int) -> dict[str, Any]:
        """What the stages of a source describe."""
        return {
            name: value for stage in self.of(number) for name, value in stage.describe().items()
        }
