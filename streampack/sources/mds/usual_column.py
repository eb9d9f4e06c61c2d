"""Which column of MDS shards holds the documents, if nobody says so."""

from __future__ import annotations

from collections.abc import Sequence

from streampack.errors import ConfigError
from streampack.job.listed_once import listed_once
from streampack.reading.fields import loss_fields, usual_field
from streampack.reading.padding import ATTENTION_MASK
from streampack.sources.mds.files import read_index
from streampack.sources.mds.index import parse_index
from streampack.storage.remote import shown
from streampack.storage.storage import Storage


def usual_column(folders: Sequence[str], loss_mask: str | None, storage: Storage) -> str:
    """The column with the documents, by the index of the first folder.

    One process of a job looks at it, and the others take what it found.

    Args:
        folders: with an index each.
        loss_mask: the column of the loss mask; None if none is named.
        storage: how the index is reached.

    Raises:
        ConfigError: there is no index, or it is unknown which column it is.
    """
    described = {"column of": folders, "mask": loss_mask, "storage": storage.storage_options}
    return listed_once(described, lambda: _look(folders, loss_mask, storage))


def _look(folders: Sequence[str], loss_mask: str | None, storage: Storage) -> str:
    where = f"{folders[0]}/index.json"
    first = next(parse_index(read_index(folders[0], storage), shown(where)), None)
    names = first.layout.names if first else ()

    def example(name: str) -> str:
        return f"sources.MDS({folders[0]!r}, column={name!r}), or --column {name}"

    others = [name for name in names if name != loss_mask]
    name = usual_field(others, f"{shown(where)} lists the columns", example)
    if name != "text" and loss_mask is None and (masks := loss_fields(names)):
        raise ConfigError(
            f'{shown(where)} lists the columns "{name}" and "{masks[0]}".',
            "The documents would be learnt without their loss mask.",
            f"Name a mask of a byte per token as loss_mask=; or name one column: {example(name)}.",
        )
    if name != "text" and ATTENTION_MASK in names:
        raise ConfigError(
            f'{shown(where)} lists the columns "{name}" and "{ATTENTION_MASK}".',
            "Padding would be learnt.",
            "Write the documents without padding; or, if they have none, name the column: "
            f"{example(name)}.",
        )
    return name
