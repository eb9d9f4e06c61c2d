"""The table of file formats: the endings that each reads, and the module of its source.

A source is imported when one of its files is read, or its class named, so a new format is a module
and a line here. Formats are tried in the order of the table.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

_COMPRESSED = ("", ".gz", ".zst", ".zstd", ".bz2")  # endings of files that are read as streams
_LINES = (".jsonl", ".ndjson", ".json", ".jl", ".jsonlines", ".ldjson")


class Format(NamedTuple):
    """A format of files.

    Attributes:
        name: name of its class in `streampack.sources`.
        module: module of the class, below `streampack.formats`.
        endings: endings of its files' names, in lower case; "/" begins a whole name.
        beside: endings of other files that its own library writes into a folder.
    """

    name: str
    module: str
    endings: tuple[str, ...]
    beside: tuple[str, ...] = ()

    def load(self) -> Any:
        """Import the class of its sources."""
        return getattr(import_module(f"streampack.formats.{self.module}"), self.name)


_TABLE = (
    Format(
        "MDS",  # before JSONL: its index ends in ".json" as well
        "mds.source",
        ("/index.json", *(f".mds{c}" for c in ("", ".br", ".bz2", ".gz", ".snappy", ".zstd"))),
    ),
    Format(
        "WebDataset",
        "tar.source",
        (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.zst", ".tzst"),
    ),
    Format("Parquet", "parquet.source", (".parquet", ".parq", ".pq")),
    Format("Iceberg", "tables.iceberg", (".metadata.json",)),  # before JSONL
    Format(
        "JSONL",
        "jsonl",
        tuple(name + c for name in _LINES for c in _COMPRESSED),
    ),
    Format(
        "Arrow",
        "arrow.source",
        (".arrow", ".feather", ".ipc", ".arrows"),
        beside=("/dataset_dict.json", "/dataset_info.json", "/state.json"),
    ),
    Format("TextFiles", "text", (".txt",)),
    Format("MegatronIndexed", "megatron", (".idx",)),
    Format("Tokens", "tokens", (".npy", ".bin", ".ds")),
    Format("Delta", "tables.delta", ()),
)
#: Formats of tables, by the mark of their folders; see `streampack.names.marks`.
TABLES = {"_delta_log": "Delta", "metadata": "Iceberg"}
FORMATS = {known.name: known for known in _TABLE}

#: Formats that need no arguments but the field of the text or the ids.
DOCUMENT_FORMATS = ("Parquet", "JSONL", "Arrow", "TextFiles", *TABLES.values())
#: Formats of records with several fields, such as conversations.
RECORD_FORMATS = ("Parquet", "JSONL", "Arrow", *TABLES.values())
