"""Arrow files (IPC, Feather, saved datasets of Hugging Face) and tables in memory.

Knows how record batches lie in a file or a table; what their columns hold is as in Parquet.
"""
