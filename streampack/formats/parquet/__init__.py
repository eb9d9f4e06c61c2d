"""Parquet files, read by pyarrow.

Knows columns and row groups; it does not know lanes or tokenizers.
"""
