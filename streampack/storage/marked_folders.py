"""The error for a folder that is not a corpus by itself, for each mark."""

from __future__ import annotations

from streampack.errors import ConfigError
from streampack.storage.file_info import shown

_OLD_ROWS = "and its folder also holds rows that were deleted or replaced"
#: By mark, the predicate of a sentence about the folder, and a remedy with a placeholder for it.
_FACTS = {
    "_delta_log": (
        f"is a Delta table, {_OLD_ROWS}",
        "Pass that folder by itself, or sources.Delta({0!r}, version=...).",
    ),
    ".hoodie": (
        f"is a Hudi table, {_OLD_ROWS}",
        "Pass the files of its current version: the table's folder joined with "
        "slice.base_file_relative_path(), for each slice of "
        "hudi.HudiTableBuilder.from_base_uri({0!r}).build().get_file_slices(), if none "
        "has_log_files().",
    ),
    "metadata": (
        f"is an Iceberg table, {_OLD_ROWS}",
        "Pass sources.Iceberg(table, snapshot_id=...), with a table of pyiceberg or its metadata "
        "file; or that folder by itself if it has a metadata/version-hint.text.",
    ),
    "_versions": (
        "is a Lance dataset, which the library lance alone reads",
        "Pass its rows: lance.dataset({0!r}).to_table().",
    ),
    ".streampack": (
        "holds an unfinished conversion or order, so documents are missing there",
        "Repeat the command to finish it, or remove the folder.",
    ),
}


class MarkedFolderError(ConfigError):
    """Raised for a folder that is not a corpus by itself.

    Attributes:
        folder: path or URL of the folder; mark: its key in `MARKS`.
    """

    folder: str
    mark: str


def marked_folder(folder: str, mark: str) -> MarkedFolderError:
    """Return the error for a folder with a mark."""
    fact, remedy = _FACTS[mark]
    error = MarkedFolderError(f"{shown(folder)} {fact}.", remedy.format(folder), path=shown(folder))
    error.folder, error.mark = folder, mark
    return error
