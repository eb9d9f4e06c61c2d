"""A lane: documents in, batches out, and the state that repeats them.

Knows its stream, window and packer; it does not know which rank or worker runs it.
"""
