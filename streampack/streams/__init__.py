"""The documents of one lane: read, tokenized, passed through hooks, mixed, ordered.

The package handles sources and tokenizers, independent of rows, packers and batches.
"""
