"""Sources: where documents come from, a file or folder per format; above, what formats share.

Knows formats, and which of them a path has; it does not know tokenizers, rows or batches.
"""

from streampack.sources.arrow import Arrow
from streampack.sources.base import LaneReader, Reading, Source
from streampack.sources.chat.source import Chat
from streampack.sources.infer import open
from streampack.sources.iterable.hf import HFStream
from streampack.sources.iterable.indexed import Items
from streampack.sources.iterable.source import Iterable
from streampack.sources.jsonl import JSONL
from streampack.sources.mds.source import MDS
from streampack.sources.megatron import MegatronIndexed
from streampack.sources.mixture import Mixture
from streampack.sources.parquet.source import Parquet
from streampack.sources.table import Table
from streampack.sources.tar.source import WebDataset
from streampack.sources.text import TextFiles
from streampack.sources.tokens import Tokens
from streampack.storage.storage import Storage

__all__ = [
    "JSONL",
    "MDS",
    "Arrow",
    "Chat",
    "HFStream",
    "Items",
    "Iterable",
    "LaneReader",
    "MegatronIndexed",
    "Mixture",
    "Parquet",
    "Reading",
    "Source",
    "Storage",
    "Table",
    "TextFiles",
    "Tokens",
    "WebDataset",
    "open",
]
