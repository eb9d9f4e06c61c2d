"""Sources: where documents come from."""

from streampack.sources.base import Source
from streampack.sources.chat import Chat
from streampack.sources.hf import HFStream
from streampack.sources.iterable import Iterable
from streampack.sources.jsonl import JSONL
from streampack.sources.mds import MDS
from streampack.sources.mixture import Mixture
from streampack.sources.parquet import Parquet
from streampack.sources.storage import Storage
from streampack.sources.webdataset import WebDataset

__all__ = [
    "JSONL",
    "MDS",
    "Chat",
    "HFStream",
    "Iterable",
    "Mixture",
    "Parquet",
    "Source",
    "Storage",
    "WebDataset",
]
