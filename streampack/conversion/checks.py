"""What is refused of shards that are to be written, whoever writes them."""

from __future__ import annotations

from streampack.errors import ConfigError
from streampack.reading.base import Source
from streampack.tokenization import Tokenizer


def check_shard_bytes(shard_bytes: int) -> None:
    """Raise `ConfigError` unless shards can be so large."""
    if not 0 < shard_bytes < 1 << 32:
        raise ConfigError(
            f"A shard is to hold {shard_bytes} bytes.",
            "Offsets in a shard are 32-bit numbers, and a shard needs at least one byte.",
            "Pass a size below 4 GiB, such as 64MiB.",
        )


def check_content(source: Source, tokenizer: Tokenizer | None) -> None:
    """Raise `ConfigError` if there is a tokenizer and no text for it, or it is unknown which."""
    source.check_documents_named("Name the field, --text {text} or --tokens with its name.")
    if tokenizer is not None and source.tokenized:
        raise ConfigError(
            "A tokenizer was given for documents that are tokenized already.",
            "There is no text to tokenize.",
            "Leave --tokenizer out, or name a column of text with --text.",
        )


def no_documents(consequence: str = "Nothing was written.") -> ConfigError:
    """The error for a source that holds none."""
    return ConfigError(
        "The source holds no document.", consequence, "Check the path and the name of the column."
    )
