"""Iterables of texts, token ids or records, such as Hugging Face streams.

Knows how to continue in the middle of an iterable; it does not know shards or tokenizers.
"""
