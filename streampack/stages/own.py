"""User-defined stages: ``stages=[...]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streampack.documents.blocks import Documents
from streampack.errors import ConfigError
from streampack.stages.base import BlockStage, Place
from streampack.stages.ids import CheckedIds, WithoutEmpty

if TYPE_CHECKING:
    from streampack.run.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Own:
    """Apply a user's stage and check the block that it returns."""

    stage: BlockStage

    def describe(self) -> Mapping[str, Any]:
        return {}

    @property
    def title(self) -> tuple[str, str]:
        """Return kind and name, for messages."""
        return "stage", type(self.stage).__name__

    def __call__(self, documents: Documents, place: Place) -> Documents:
        if not len(documents):
            return documents
        result = self.stage(documents, place)
        if not isinstance(result, Documents):
            raise ConfigError(
                f"The stage {type(self.stage).__name__} must return Documents, got "
                f"{type(result).__name__}.",
                "Return Documents, such as dataclasses.replace(documents, tokens=...) or "
                "documents.take(indices).",
                setting="stages",
            )
        return result


def add(recipe: Recipe, stages: Sequence[BlockStage]) -> None:
    """Add the user's stages, after `filter` and `map`.

    Raises:
        ConfigError: a stage is not callable, or has no `describe`.
    """
    for stage in stages:
        described = callable(getattr(stage, "describe", None))
        if isinstance(stage, type) or not callable(stage) or not described:
            raise ConfigError(
                f"stages must hold block stages, got {stage!r:.80}.",
                "Pass objects with __call__(documents, place) and describe(); see "
                "streampack.stages.base.BlockStage.",
                setting="stages",
            )
        recipe.add("chosen", Own(stage))
        recipe.add("chosen", CheckedIds(recipe.vocab_size))
        recipe.add("chosen", WithoutEmpty())
    if stages:
        recipe.described["stages"] = [
            {"kind": type(stage).__name__, **stage.describe()} for stage in stages
        ]
