"""Iterables of texts, token ids or records, Hugging Face streams among them.

Knows how to go on in the middle of an iterable; it does not know lanes or tokenizers.
"""

from streampack.sources.iterable.hf import HFStream
from streampack.sources.iterable.source import Iterable

__all__ = ["HFStream", "Iterable"]
