"""Which part of what a file holds is the document: a column, a field, or a member of an archive."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from streampack.errors import ConfigError
from streampack.reading.fields import (
    IDS,
    Fields,
    candidates,
    is_usual,
    loss_fields,
    texts_beside,
    usual_field,
)
from streampack.reading.padding import ATTENTION_MASK
from streampack.sources.mds.index import parse_index
from streampack.sources.tar.source import WebDataset
from streampack.storage.listing import FileInfo
from streampack.storage.remote import shown
from streampack.storage.storage import Storage

_KEYS = ("npy", "txt", "json")  # of tar members, in the order in which they are preferred
_PEEKED = 64  # members of a tar shard that are looked at


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
    masks = Fields.named(text=None, tokens="", loss_mask=given.get("loss_mask"), default=None)
    others = candidates(
        [name for name in kinds if name not in masks.loss_masks],
        lambda name: kinds[name] == "tokens",
    )
    name, texts = given.get("column"), None
    found = masks.loss_masks
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
        found = found or loss_fields(others)
    # What is named like ids is read as ids, so that what is wrong with them is said of them.
    tokenized = kinds.get(name) == "tokens" or (name not in kinds and "loss_mask" in given)
    tokenized = tokenized or (name in IDS and kinds.get(name) == "")
    return Fields(tokenized, name, found if tokenized else ()).arguments(), texts


def mds_column(folders: Sequence[str], storage: Storage) -> str:
    """The column of MDS shards that holds documents, by their index."""
    where = f"{folders[0]}/index.json"
    size = storage.list(where)[0].num_bytes
    first = next(parse_index(storage.read_range(where, 0, size), where), None)
    names = first.layout.names if first else ()

    def example(name: str) -> str:
        return f"sources.MDS({folders[0]!r}, column={name!r}), or --column {name}"

    name = usual_field(names, f"{shown(where)} lists the columns", example)
    if name != "text" and (masks := loss_fields(names)):
        raise ConfigError(
            f'{shown(where)} lists the columns "{name}" and "{masks[0]}".',
            "The documents would be learnt without their loss mask.",
            f"Name a mask of a byte per token as loss_mask= beside column=; or name one column: "
            f"{example(name)}.",
        )
    if name != "text" and ATTENTION_MASK in names:
        raise ConfigError(
            f'{shown(where)} lists the columns "{name}" and "{ATTENTION_MASK}".',
            "Padding would be learnt.",
            "Write the documents without padding; or, if they have none, name the column: "
            f"{example(name)}.",
        )
    return name


def tar_key(paths: Sequence[str], storage: Storage) -> str:
    """What the first members of the first tar shard end in."""
    shard: FileInfo = storage.list(paths[0], endings=WebDataset.endings)[0]
    found: list[str] = []
    try:
        with storage.local(shard.path) as file, tarfile.open(file) as archive:
            for member in archive:
                found.append(PurePosixPath(member.name).name.partition(".")[2].lower())
                if len(found) >= _PEEKED:
                    break
    except (tarfile.TarError, EOFError):  # damaged, or a compression that tarfile lacks
        pass
    keys = [key for key in _KEYS for name in found if name.rsplit(".", 1)[-1] == key]
    named = [name for name in found if keys and name.rsplit(".", 1)[-1] == keys[0]]
    if not named:
        raise ConfigError(
            f"Which of the files in {shown(shard.path)} hold documents is unknown"
            + (f" (they end in {', '.join(sorted(set(found))[:3])})." if found else "."),
            "Only .npy, .txt and .json files can be read without being named.",
            f"Name the extension: {WebDataset.example(paths)} (--key), with yours.",
        )
    return named[0]
