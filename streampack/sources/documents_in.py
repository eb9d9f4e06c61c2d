"""Which field of records, or column of a table, holds the documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streampack.reading.fields import Fields, is_usual, loss_field, usual_field
from streampack.storage.remote import shown


def field_of_records(source: Any, paths: Sequence[str], given: Mapping[str, Any]) -> dict[str, str]:
    """The arguments that name the documents in records, for example ``{"text": name}``.

    Args:
        source: of the files, which has `first_fields`.
        paths: for messages.
        given: the arguments; `column` names a field of whichever kind.
    """
    kinds = source.first_fields()
    others = [name for name in kinds if name != given.get("loss_mask")]
    name = given.get("column")
    mask = None
    if name is None:
        name = "text"
        if name not in kinds and is_usual(others):
            files = repr(paths[0] if len(paths) == 1 else list(paths))
            call = f"sources.open({files}"
            name = usual_field(
                others,
                f"{shown(paths[0])} has the fields",
                lambda field: f"{call}, column={field!r}), or --column {field}",
                f"Pass sources.Chat({files}); commands that measure take FILE.py:NAME, where NAME "
                "is that",
            )
        mask = given.get("loss_mask", loss_field(others))
    tokenized = kinds.get(name) == "tokens" or (name not in kinds and "loss_mask" in given)
    return Fields(tokenized, name, mask if tokenized else None).arguments()
