"""How the lanes of a finite run share a source: dealt as they need it, so that they end together.

Knows lines, lanes and numbers of batches; it does not know documents, files or processes' pipes.
"""
