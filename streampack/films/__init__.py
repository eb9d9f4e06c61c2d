"""Documents with films: frames are counted from the heads of files.

A film's tokens follow from its frames, height, width and rate; the frames that the processor
samples are decoded once the batch is planned. Only runs with such a source import this package.
"""

from streampack.films.source import Films

__all__ = ["Films"]
