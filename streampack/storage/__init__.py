"""Bytes of files and objects: listed, fetched, cached, read ahead, unpacked.

Knows paths, retries and the cache directory; it does not know what the bytes mean.
"""
