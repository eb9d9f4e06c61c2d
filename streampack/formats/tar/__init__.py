"""Tar shards, as webdataset writes them.

Knows the headers of members and the arrays in them; it does not know lanes or tokenizers.
"""
