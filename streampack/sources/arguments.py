"""Arguments that the constructors of many sources take, each documented by its source.

A constructor takes them as ``**named: Unpack[...]``. `streampack.arguments.explained` writes them
out in its signature, so that help() and errors list them; type checkers do the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from streampack.sources.reading import ReadOptions
    from streampack.storage.storage import Storage


class NamedFields(TypedDict, total=False):
    """The fields of a record that are read; see `streampack.sources.fields.Fields`."""

    text: str | None
    tokens: str | None
    loss_mask: str | Sequence[str] | None


class FileOptions(TypedDict, total=False):
    """How files are read."""

    reading: ReadOptions | None
    storage: Storage | None


class RecordFileOptions(NamedFields, FileOptions, total=False):
    """Arguments of formats of files with records."""
