"""Check of a tokenizer against the one that wrote the ids of converted shards."""

from __future__ import annotations

import hashlib

from streampack.errors import ConfigError
from streampack.files.converted import manifest_beside
from streampack.sources.base import Source
from streampack.tokenization.tokenizer import Tokenizer


def vocabulary_digest(tokenizer: Tokenizer) -> str:
    """Return a 64-bit hash, in hexadecimal, of the tokens and their ids alone."""
    vocabulary = sorted(tokenizer._engine.get_vocab(with_added_tokens=True).items())
    return hashlib.blake2b(repr(vocabulary).encode(), digest_size=8).hexdigest()


def check_vocabulary(source: Source, tokenizer: Tokenizer) -> None:
    """Raise `ConfigError` if a conversion wrote the source's ids with another vocabulary."""
    manifest = manifest_beside(source)
    written = None if manifest is None else manifest["tokenizer"]
    if written is not None and written["vocabulary"] != vocabulary_digest(tokenizer):
        raise ConfigError(
            f"The shards must be read with the tokenizer of their conversion, with "
            f"{written['vocab_size']:,} ids and the vocabulary {written['vocabulary']}; got one "
            f"with {tokenizer.vocab_size:,} ids and {vocabulary_digest(tokenizer)}.",
            "Pass the tokenizer that wrote them, or convert the texts with this one.",
            setting="tokenizer",
        )
