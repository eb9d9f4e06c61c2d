"""What an embedder is, and the check of what it returns.

An embedder is a callable that takes `Documents` (their first tokens only) and returns one vector
per document, (N, D) float32. Two attributes may come with it:

- `name`, a string that stands for it in the fingerprint of a saved state (otherwise its qualified
  name does);
- `exact`, True if it gives the same bits on any machine. Then a restored run orders the documents
  again; otherwise the state holds the order itself, two to four bytes per document.

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
    """A function of token blocks.

    Attributes:
        name: stands for the function in the fingerprint; change it when the function changes.
        function: `Documents` of N documents -> (N, D) numbers.
        exact: True if it gives the same bits on any machine.
    """

    name: str
    function: Callable[[Documents], Any]
    exact: bool = False

    def __call__(self, documents: Documents) -> NDArray[np.float32]:
        """(N, D) float32."""
        return np.asarray(self.function(documents), dtype=np.float32)


@dataclass(frozen=True)
class TextEmbedder:
    """A function of texts, such as the `encode` of a sentence-embedding model.

    Attributes:
        name: stands for the model in the fingerprint; change it when the model changes.
        function: N texts -> (N, D) numbers.
        decode: lists of ids -> texts, such as the tokenizer's `decode_batch`; None for documents
            that are texts.
    """

    name: str
    function: Callable[[list[str]], Any]
    decode: Callable[[Sequence[list[int]]], Sequence[str]] | None = None
    exact: bool = False

    def __call__(self, documents: Documents) -> NDArray[np.float32]:
        """(N, D) float32.

        Raises:
            ConfigError: there is no `decode`.
        """
        if self.decode is None:
            raise ConfigError(
                f'The embedder "{self.name}" reads texts, and the documents are token ids.',
                "Pass TextEmbedder(..., decode=), the tokenizer's decode_batch for example.",
                setting="embedder",
            )
        ids = [documents.document(i).tolist() for i in range(len(documents))]
        return np.asarray(self.function(list(self.decode(ids))), dtype=np.float32)


def embedder_name(embedder: Embedder) -> str:
    """What stands for it in the fingerprint: its `name`, or the qualified name of the callable."""
    name = getattr(embedder, "name", None)
    if isinstance(name, str) and name:
        return name
    named = embedder if hasattr(embedder, "__qualname__") else type(embedder)
    return f"{named.__module__}.{named.__qualname__}"


def heads(documents: Documents, first_tokens: int) -> Documents:
    """The same documents cut to their first tokens, compact and without masks."""
    lengths = np.minimum(documents.lengths, first_tokens)
    offsets = offsets_of(lengths)
    tokens = np.empty(offsets[-1], dtype=documents.tokens.dtype)
    gather_ragged(documents.tokens, documents.offsets[:-1], offsets, tokens)
    return Documents(tokens, offsets, documents.origin)


def embed(embedder: Embedder, documents: Documents, first_tokens: int) -> NDArray[np.float32]:
    """(N, D) float32 vectors of N documents, from the first tokens of each.

    Raises:
        ConfigError: the embedder did not return N finite vectors.
    """
    return checked(embedder, embedder(heads(documents, first_tokens)), len(documents))


def checked(
    embedder: Embedder, found: Any, count: int, name_of: Callable[[int], str] | None = None
) -> NDArray[np.float32]:
    """What an embedder found for `count` documents, as (N, D) float32.

    Args:
        embedder: that found it.
        found: an array, or what numpy makes one of.
        count: N.
        name_of: the name of a document, by its number among them.

    Raises:
        ConfigError: it is not N finite vectors.
    """
    name = embedder_name(embedder)
    first = "" if name_of is None or not count else f", {name_of(0)} and those after it,"
    try:
        vectors = np.asarray(found, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f'The embedder "{name}" was given {count} documents{first} and returned a '
            f"{type(found).__name__} that is no array of numbers.",
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
            "Return zeros for what cannot be embedded.",
            setting="embedder",
        )
    return vectors
