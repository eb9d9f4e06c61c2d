"""Stage for runs with fields: keep declared fields, in their dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streampack.documents.blocks import Documents
from streampack.documents.fields import FieldSpec
from streampack.fields.casting import cast_fields
from streampack.fields.columns import FieldColumns
from streampack.sources.broken import broken_document
from streampack.stages.base import Place
from streampack.stages.ids import without_records

if TYPE_CHECKING:
    from streampack.stages.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Cast:
    """Cast the fields of documents; report documents with unfit values to `skips`."""

    types: FieldSpec

    def describe(self) -> Mapping[str, Any]:
        return {"fields": self.types.describe()}

    def __call__(self, documents: Documents, place: Place) -> Documents:
        documents, problems = cast_fields(documents, self.types)
        if not problems:
            return documents
        broken: dict[tuple[int, int], str] = {}  # a record is skipped with all of its documents
        for i, problem in problems.items():
            origin = documents.origin[i]
            broken.setdefault((int(origin["shard"]), int(origin["index"])), problem)
        for (shard, index), problem in broken.items():
            place.skips.handle(broken_document(place.source, shard, index, problem))
        return without_records(documents, [*problems])


def add(recipe: Recipe, types: FieldSpec) -> None:
    """Add the stage that casts fields, and let rows carry the fields of their pieces."""
    recipe.add("columns", Cast(types))
    gathered = types if recipe.gathered is None else recipe.gathered
    if gathered:
        recipe.add_rows("columns", FieldColumns(gathered))
