"""Rewriting a corpus as shards, restartable.

Knows sources, tokenizers and the writers of formats; it does not know rows, batches or training.
"""
