"""Interface of embedders, and validation of their results.

An embedder is a callable that takes `Documents` (their first tokens only) and returns one vector
per document, (N, D) float32. It may have two attributes:

- `name`, a string that identifies it in the fingerprint of a saved state, by default its qualified
  name;
- `exact`, True if its results are bit-identical on any machine. A restored run then recomputes the
  order; otherwise the state holds the order, two to four bytes per document.

`HashedNgrams` is the default. `TokenEmbedder` names a function of token blocks, `TextEmbedder`
feeds decoded texts to a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Documents, gather_ragged, offsets_of
from streampack.errors import ConfigError

#: `Documents` of N documents -> (N, D) float32.
Embedder = Callable[[Documents], NDArray[np.float32]]


@dataclass(frozen=True)
class TokenEmbedder:
    """Embedder made of a function of token blocks.

    Attributes:
        name: name of the function in the fingerprint; change it when the function changes.
        function: `Documents` of N documents -> (N, D) numbers.
        exact: True if its results are bit-identical on any machine.
    """

    name: str
    function: Callable[[Documents], Any]
    exact: bool = False

    def __call__(self, documents: Documents) -> NDArray[np.float32]:
        """Return vectors (N, D) float32."""
        return np.asarray(self.function(documents), dtype=np.float32)


@dataclass(frozen=True)
class TextEmbedder:
    """Embedder made of a function of texts, such as `encode` of a sentence-embedding model.

    Attributes:
        name: name of the model in the fingerprint; change it when the model changes.
        function: N texts -> (N, D) numbers.
        decode: lists of ids -> texts, such as the tokenizer's `decode_batch`; None if documents are
            texts.
    """

    name: str
    function: Callable[[list[str]], Any]
    decode: Callable[[Sequence[list[int]]], Sequence[str]] | None = None
    exact: bool = False

    def __call__(self, documents: Documents) -> NDArray[np.float32]:
        """Return vectors (N, D) float32.

        Raises:
            ConfigError: documents are token ids, and `decode` is None.
        """
        if self.decode is None:
            raise ConfigError(
                f'The embedder "{self.name}" requires texts, got documents of token ids.',
                "Pass TextEmbedder(..., decode=), the tokenizer's decode_batch for example.",
                setting="embedder",
            )
        ids = [documents.document(i).tolist() for i in range(len(documents))]
        return np.asarray(self.function(list(self.decode(ids))), dtype=np.float32)


def embedder_name(embedder: Embedder) -> str:
    """Return an embedder's name in the fingerprint: `name`, or the callable's qualified name."""
    name = getattr(embedder, "name", None)
    if isinstance(name, str) and name:
        return name
    named = embedder if hasattr(embedder, "__qualname__") else type(embedder)
    return f"{named.__module__}.{named.__qualname__}"


def heads(documents: Documents, first_tokens: int) -> Documents:
    """Cut documents to their first tokens, in a compact block without masks."""
    lengths = np.minimum(documents.lengths, first_tokens)
    offsets = offsets_of(lengths)
    tokens = np.empty(offsets[-1], dtype=documents.tokens.dtype)
    gather_ragged(documents.tokens, documents.offsets[:-1], offsets, tokens)
    return Documents(tokens, offsets, documents.origin)


def embed(embedder: Embedder, documents: Documents, first_tokens: int) -> NDArray[np.float32]:
    """Compute vectors (N, D) float32 of N documents from the first tokens of each.

    Raises:
        ConfigError: the embedder did not return N finite vectors.
    """
    return checked(embedder, embedder(heads(documents, first_tokens)), len(documents))


def checked(
    embedder: Embedder, embedded: Any, count: int, name_of: Callable[[int], str] | None = None
) -> NDArray[np.float32]:
    """Validate an embedder's result for `count` documents and return it as (N, D) float32.

    Args:
        embedder: the embedder.
        embedded: its result, an array or anything that numpy converts to one.
        count: N.
        name_of: function from the index of a document to its name.

    Raises:
        ConfigError: the result is not N finite vectors.
    """
    name = embedder_name(embedder)
    first = "" if name_of is None or not count else f", {name_of(0)} and those after it,"
    try:
        vectors = np.asarray(embedded, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f'The embedder "{name}" was given {count} documents{first} and returned a '
            f"{type(embedded).__name__} that is not an array of numbers.",
            "Return one vector per document, shape (N, D).",
            setting="embedder",
        ) from error
    if vectors.ndim != 2 or len(vectors) != count or vectors.shape[1] == 0:
        raise ConfigError(
            f'The embedder "{name}" was given {count} documents{first} and returned an array of '
            f"shape {vectors.shape}.",
            "Return one vector per document, shape (N, D).",
            setting="embedder",
        )
    if not np.isfinite(vectors).all():
        wrong = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
        which = f"document {wrong} of {count}" if name_of is None else name_of(wrong)
        raise ConfigError(
            f'The embedder "{name}" returned a vector that is not finite, for {which}.',
            "Return zeros for documents that cannot be embedded.",
            setting="embedder",
        )
    return vectors
