"""Conversations in Parquet files or JSON lines.

Knows the fields of a record; it does not know how a template renders them.
"""
