"""Which field of records, or column of a table, holds the documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streampack.reading.fields import (
    IDS,
    Fields,
    candidates,
    is_usual,
    named_masks,
    texts_beside,
    usual_field,
)
from streampack.storage.remote import shown


def field_of_records(
    source: Any, paths: Sequence[str], given: Mapping[str, Any]
) -> tuple[dict[str, Any], str | None]:
    """The arguments that name the documents in records, for example ``{"text": name}``; and the
    field of texts beside token ids, if nobody said which of them are meant.

    Args:
        source: of the files, which has `first_fields`.
        paths: for messages.
        given: the arguments; `column` names a field of whichever kind.
    """
    kinds = source.first_fields()
    masks = named_masks(given.get("loss_mask"))
    others = candidates(
        [name for name in kinds if name not in masks],
        lambda name: kinds[name] == "tokens",
    )
    name, texts = given.get("column"), None
    if name is None:
        name = "text"
        if is_usual(others) and ("text" not in others or any(ids in others for ids in IDS)):
            files = repr(paths[0] if len(paths) == 1 else list(paths))
            call = f"sources.open({files}"
            name = usual_field(
                others,
                f"{shown(paths[0])} has the fields",
                lambda field: f"{call}, column={field!r}), or --column {field}",
                f"Pass sources.Chat({files}); commands that measure take FILE.py:NAME, where NAME "
                "is that",
            )
            texts = texts_beside(others, name)
    # What is named like ids is read as ids, so that what is wrong with them is said of them.
    tokenized = kinds.get(name) == "tokens" or (name not in kinds and "loss_mask" in given)
    tokenized = tokenized or (name in IDS and kinds.get(name) != "text")
    return Fields(tokenized, name, masks_known=False).arguments(), texts
