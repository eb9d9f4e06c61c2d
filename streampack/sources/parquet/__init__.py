"""Parquet files, read by pyarrow.

Knows columns and row groups; it does not know lanes or tokenizers.
"""

from streampack.sources.parquet.source import Parquet

__all__ = ["Parquet"]
