"""Records of several documents, which stay together in one batch.

Knows blocks and rows; it does not know formats, tokenizers or lanes.
"""
