"""Files and objects: listed, downloaded, cached, read ahead, decompressed.

Knows paths, retries and the cache directory; it does not know what the bytes mean.
"""
