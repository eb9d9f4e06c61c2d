"""Conversations in Parquet files or JSON lines.

Knows the fields of a record; it does not know how a template renders them.
"""

from streampack.sources.chat.source import Chat

__all__ = ["Chat"]
