"""The manifest of a finished conversion, which `files.converted` reads."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from streampack import __version__
from streampack.conversion.parts import PartNote
from streampack.conversion.settings import Conversion
from streampack.tokenization.converted import vocabulary_digest


def manifest_of(
    conversion: Conversion, totals: dict[str, int], notes: Sequence[PartNote]
) -> dict[str, Any]:
    """Return the manifest: totals, counts of each part and shard, tokenizer and versions.

    Args:
        conversion: the conversion.
        totals: counts of the whole conversion by name.
        notes: notes of all parts, in order.
    """
    tokenizer = conversion.tokenizer
    return {
        "version": 1,
        **totals,
        "tokenizer": None
        if tokenizer is None
        else {
            "fingerprint": tokenizer.fingerprint,
            "vocabulary": vocabulary_digest(tokenizer),
            "vocab_size": tokenizer.vocab_size,
        },
        "settings": conversion.settings(),
        "versions": {"streampack": __version__}
        | {name: version(name) for name in ("pyarrow", "tokenizers")},
        "parts": [note.contents() for note in notes],
    }
