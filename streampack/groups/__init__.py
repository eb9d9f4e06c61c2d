"""Records of several documents, which stay together in one batch.

The package handles blocks and rows, independent of formats, tokenizers and lanes.
"""
