"""Which column of MDS shards holds the documents, if nobody says so."""

from __future__ import annotations

from collections.abc import Sequence

from streampack.job.listed_once import listed_once
from streampack.reading.fields import usual_fields
from streampack.sources.mds.files import read_index
from streampack.sources.mds.index import kinds_of, parse_index
from streampack.storage.remote import shown
from streampack.storage.storage import Storage


def usual_column(folders: Sequence[str], loss_masks: Sequence[str], storage: Storage) -> str:
    """The column with the documents, by the index of the first folder.

    One process of a job looks at it, and the others take what it found.

    Args:
        folders: with an index each.
        loss_masks: the columns of loss masks that are named.
        storage: how the index is reached.

    Raises:
        ConfigError: there is no index, or it is unknown which column it is.
    """
    described = {"column of": folders, "masks": loss_masks, "storage": storage.storage_options}
    return listed_once(described, lambda: _look(folders, loss_masks, storage))


def _look(folders: Sequence[str], loss_masks: Sequence[str], storage: Storage) -> str:
    where = f"{folders[0]}/index.json"
    first = next(parse_index(read_index(folders[0], storage), shown(where)), None)
    kinds = kinds_of(first.layout) if first else {}

    def example(name: str) -> str:
        return f"sources.MDS({folders[0]!r}, column={name!r}), or --column {name}"

    fields = usual_fields(kinds, loss_masks, f"{shown(where)} lists the columns", example)
    return str(fields.document)
