"""Sources: where documents come from, a folder per format.

Knows formats, and which of them a path has; it does not know tokenizers, rows or batches.
"""

from streampack.reading.base import LaneReader, Source
from streampack.reading.options import Reading
from streampack.sources.arrow.source import Arrow
from streampack.sources.arrow.table import Table
from streampack.sources.chat.source import Chat
from streampack.sources.infer import open
from streampack.sources.iterable.hf import HFStream
from streampack.sources.iterable.indexed import Items
from streampack.sources.iterable.source import Iterable
from streampack.sources.jsonl.source import JSONL
from streampack.sources.mds.source import MDS
from streampack.sources.megatron.source import MegatronIndexed
from streampack.sources.mixture.source import Mixture
from streampack.sources.parquet.source import Parquet
from streampack.sources.tar.source import WebDataset
from streampack.sources.text.source import TextFiles
from streampack.sources.tokens.source import Tokens
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
