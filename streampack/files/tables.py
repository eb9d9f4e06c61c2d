"""Folders of tables, which a listing refuses, as formats."""

from __future__ import annotations

import os
from collections.abc import Sequence

from streampack.errors import ConfigError
from streampack.file_info import split_url
from streampack.sources.formats import FORMATS, TABLES, Format


def table_at(path: str, error: ConfigError, wanted: Sequence[Format]) -> Format:
    """Return the format of the table at a path; raise `error` if the path is not its folder.

    Args:
        path: the path that a user named.
        error: the error of the listing.
        wanted: the accepted formats.
    """
    table = FORMATS.get(TABLES.get(getattr(error, "mark", ""), ""))
    if table is None or table not in wanted or error.folder != located(path):  # type: ignore[attr-defined]
        raise error
    return table


def located(path: str) -> str:
    """Return the absolute path, or the URL, of a folder, without a slash at its end."""
    protocol, local = split_url(path)
    return os.path.abspath(os.path.expanduser(local)) if protocol is None else path.rstrip("/")
