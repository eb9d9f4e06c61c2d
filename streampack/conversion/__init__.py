"""Restartable conversion of a corpus to shards.

This package handles sources, tokenizers and writers of formats. It is independent of rows, batches
and training.
"""
