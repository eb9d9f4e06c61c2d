"""The protocol of stages between source and window, and the stages of token ids.

Knows blocks of documents; it does not know formats, tokenizers, rows or lanes.
"""
