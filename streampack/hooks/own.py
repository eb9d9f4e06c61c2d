"""User-defined stages: ``stages=[...]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streampack.documents.blocks import Documents
from streampack.documents.fields import FieldSpec
from streampack.errors import ConfigError
from streampack.metrics import user_code
from streampack.stages.base import BlockStage, Place
from streampack.stages.ids import CheckedIds, WithoutEmpty

if TYPE_CHECKING:
    from streampack.stages.recipe import Recipe


LOSS_MASK = "loss_mask"


@dataclass(frozen=True, slots=True)
class Own:
    """Apply a user's stage and check the block that it returns.

    Attributes:
        writes: columns that the stage declares to write.
    """

    stage: BlockStage
    writes: tuple[str, ...] = ()

    def describe(self) -> Mapping[str, Any]:
        return {}

    @property
    def title(self) -> tuple[str, str]:
        """Return kind and name, for messages."""
        return "stage", type(self.stage).__name__

    def __call__(self, documents: Documents, place: Place) -> Documents:
        if not len(documents):
            return documents
        with user_code("hook_s"):
            result = self.stage(documents, place)
        if not isinstance(result, Documents):
            raise _refused(
                f"The stage {type(self.stage).__name__} must return Documents, got "
                f"{type(result).__name__}.",
                "Return Documents, such as dataclasses.replace(documents, tokens=...) or "
                "documents.take(indices).",
            )
        missing = [name for name in self.writes if not has_column(result, name)]
        if missing:
            raise _refused(
                f"The stage {type(self.stage).__name__} must write {missing[0]!r}, and returned "
                "documents without it.",
                "Return it in token_fields, document_fields or loss_mask, or leave it out of "
                "`writes`.",
            )
        return result


def has_column(documents: Documents, name: str) -> bool:
    """Return whether documents have a column: a field, or "loss_mask"."""
    fields = (documents.token_fields, documents.document_fields)
    return any(name in each for each in fields) or (
        name == LOSS_MASK and documents.loss_mask is not None
    )


def check_columns(stages: Sequence[BlockStage], fields: FieldSpec) -> None:
    """Check the columns that stages declare in `reads` and `writes`, in order.

    Raises:
        ConfigError: a stage reads a column that neither a record nor an earlier stage has, writes
            one that is used nowhere, or one that an earlier stage wrote and it does not read.
    """
    declared = {*fields.token, *fields.document, LOSS_MASK}
    written: dict[str, str] = {}
    for at, stage in enumerate(stages):
        name = type(stage).__name__
        reads, writes = columns_of(stage, "reads"), columns_of(stage, "writes")
        for column in reads:
            if column not in declared and column not in written:
                raise _refused(
                    f"The stage {name} reads {column!r}, which is not a declared field.",
                    "Declare it in token_fields or document_fields, or put the stage that writes "
                    "it first.",
                )
        later = {c for other in stages[at + 1 :] for c in columns_of(other, "reads")}
        for column in writes:
            if column in written and column not in reads:
                raise _refused(
                    f"The stages {written[column]} and {name} both write {column!r}.",
                    f"Let {name} read it too, if it changes the value, or remove one of them.",
                )
            if column not in declared | later:
                raise _refused(
                    f"The stage {name} writes {column!r}, which is not a declared field and which "
                    "no later stage reads.",
                    "Declare it in token_fields or document_fields, so that batches have it.",
                )
            written[column] = name


def columns_of(stage: BlockStage, attribute: str) -> tuple[str, ...]:
    """Return the columns that a stage declares in an optional attribute."""
    columns = getattr(stage, attribute, ())
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise _refused(
            f"{attribute} of the stage {type(stage).__name__} must be names of columns, got "
            f"{columns!r:.80}.",
            'Pass a tuple of names, such as ("score",).',
        )
    return tuple(columns)


def _refused(fact: str, remedy: str) -> ConfigError:
    return ConfigError(fact, remedy, setting="stages")


def add(recipe: Recipe, stages: Sequence[BlockStage]) -> None:
    """Add the user's stages, after `filter` and `map`.

    Raises:
        ConfigError: a stage is not callable or has no `describe`, or the columns that stages
            declare contradict each other or the declared fields.
    """
    for stage in stages:
        described = callable(getattr(stage, "describe", None))
        if isinstance(stage, type) or not callable(stage) or not described:
            raise _refused(
                f"stages must hold block stages, got {stage!r:.80}.",
                "Pass objects with __call__(documents, place) and describe(); see "
                "streampack.stages.base.BlockStage.",
            )
        recipe.add("chosen", Own(stage, columns_of(stage, "writes")))
        recipe.add("chosen", CheckedIds(recipe.vocab_size))
        recipe.add("chosen", WithoutEmpty())
    check_columns(stages, recipe.fields)
    if stages:
        recipe.described["stages"] = [
            {"kind": type(stage).__name__, **stage.describe()} for stage in stages
        ]
