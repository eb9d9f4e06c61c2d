"""Iterables of texts, token ids or records, such as Hugging Face streams.

Knows how to continue in the middle of an iterable; it does not know shards or tokenizers.
"""

from streampack.sources.iterable.hf import HFStream
from streampack.sources.iterable.source import Iterable

__all__ = ["HFStream", "Iterable"]
