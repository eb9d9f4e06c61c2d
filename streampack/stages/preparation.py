"""Preparation: the stages of a run, for each of its sources."""

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
        stages: a sequence of stages for each source of a mixture, or for the only source.
    """

    stages: tuple[tuple[BlockStage, ...], ...] = ()
    described: Mapping[str, Any] = field(default_factory=dict)

    def of(self, number: int) -> tuple[BlockStage, ...]:
        """Return the stages of a source; by default the check of token ids."""
        return self.stages[number] if self.stages else IDS_AS_THEY_ARE

    def find(self, name: str) -> Any:
        """Return the first attribute called `name` among all stages; None without one."""
        every = (stage for stages in self.stages for stage in stages)
        value = next((value for stage in every if (value := getattr(stage, name, None))), None)
        return getattr(value, name, value)  # a chat tokenizer contains the encoder

    def titles(self, kind: str = "") -> list[tuple[str, str]]:
        """Return the user's stages as (kind, name)."""
        stages = self.of(0)
        return [title for stage in stages if (title := getattr(stage, "title", None)) is not None]

    def describe(self) -> dict[str, Any]:
        """Return the descriptions of all stages of the first source."""
        return {**self.described_by(0), **self.described}

    def described_by(self, number: int) -> dict[str, Any]:
        """Return the descriptions of the stages of a source."""
        return {
            name: value for stage in self.of(number) for name, value in stage.describe().items()
        }
