"""Tar shards, as webdataset writes them.

Knows the headers of members and the arrays in them; it does not know lanes or tokenizers.
"""

from streampack.sources.tar.source import WebDataset

__all__ = ["WebDataset"]
