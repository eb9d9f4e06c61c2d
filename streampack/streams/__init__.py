"""The documents of one lane: read, tokenized, passed through hooks, mixed, ordered.

Knows sources and tokenizers; it does not know rows, packers or batches.
"""
