"""Columns of tar shards: the file of a sample that holds a document, and the field in it."""

from __future__ import annotations

from typing import NamedTuple

from streampack.errors import ConfigError
from streampack.reading.integer_arrays import integer_kind

TEXT_ENDINGS = ("txt", "text", "md")


class TarColumn(NamedTuple):
    """Where the documents are.

    Attributes:
        key: the ending of the files, in lower case: "npy".
        field: in a JSON or .npz file; "" in others.
        form: how the file is read: "npy", "npz", "text", "json" or "raw".
    """

    key: str
    field: str
    form: str

    @classmethod
    def of(cls, name: str, dtype: str | None, tokenized: bool) -> TarColumn:
        """The column of a name, "npy" or "json:text".

        Args:
            name: the ending, and behind a colon the field.
            dtype: of bare arrays.
            tokenized: token ids are wanted.

        Raises:
            ConfigError: such files cannot be read, or hold something else.
        """
        if dtype is not None:
            integer_kind(dtype)
        key, _, field = name.partition(":")
        key = key.lower().removeprefix(".")
        last = key.rpartition(".")[2]
        form = "raw" if dtype is not None else "text" if last in TEXT_ENDINGS else last
        argument = f"{'tokens' if tokenized else 'text'}={name!r}"
        if form not in ("npy", "npz", "text", "json", "raw"):
            raise ConfigError(
                f"{argument} names no files that can be read.",
                remedy="Name the ending of files in npy, npz, txt or json, or of any with dtype= "
                'for bare arrays of ids; and a field as "json:text".',
            )
        if bool(field) != (form in ("json", "npz")):
            raise ConfigError(
                f"{argument} names {'a' if field else 'no'} field, and JSON and .npz files have "
                "fields, others none.",
                remedy=f'Name it as "{key}:FIELD".' if not field else f"Pass {key!r}.",
            )
        if form != "json" and tokenized != (form != "text"):
            raise ConfigError(
                f"{argument} is given, and .{key} files hold {'text' if tokenized else 'ids'}.",
                remedy=f"Pass {'text' if tokenized else 'tokens'}={name!r}.",
            )
        return cls(key, field, form)
