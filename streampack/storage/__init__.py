"""Files and objects: listed, downloaded, cached, read ahead, decompressed.

The package handles paths, retries and the cache directory, independent of file contents.
"""
