"""The protocol of stages between source and window, and the stages of token ids.

The package handles blocks of documents, independent of formats, tokenizers, rows and lanes.
"""
