"""Arrow files: IPC, Feather, and the datasets that Hugging Face's library saves.

Knows how record batches lie in a file; what their columns hold is as in Parquet.
"""

from streampack.sources.arrow.source import Arrow

__all__ = ["Arrow"]
