"""One ordering step: a window of documents in, the order they go on in out; by key as well.

An order sees one ordering window at a time and keeps nothing between them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import explained, one_of, real_number, type_in_words, whole_number
from streampack.documents.blocks import Documents
from streampack.errors import ConfigError
from streampack.ordering.approximate import (
    MARGIN,
    find_neighbours_approximately,
    require_faiss,
)
from streampack.ordering.embedding import Embedder, embed, embedder_name
from streampack.ordering.hashing import HashedNgrams
from streampack.ordering.neighbours import Neighbours, Wholes, find_neighbours, on_grid
from streampack.ordering.traversal import Limit, walk

Search = Literal["auto", "exact", "faiss"]

#: Above so many documents "auto" searches with faiss: an exact search compares every pair.
EXACT_DOCUMENTS = 65_536


class Ordered(NamedTuple):
    """What becomes of the N documents of a window.

    Attributes:
        order: (M,) int64, the documents that go on, in their new order.
        dropped: (D,) int64, the dropped ones, ascending.
        like: (D,) int64, a document that stays and that the dropped one is like.
    """

    order: NDArray[np.int64]
    dropped: NDArray[np.int64]
    like: NDArray[np.int64]


@runtime_checkable
class DocumentOrder(Protocol):
    """How the documents of an ordering window are ordered.

    Attributes:
        order_window_documents: documents that it gets at a time; fewer at the end of an epoch.
        exact: True if it gives the same order on any machine; otherwise a state stores the order.

    An order may also have `first_window_documents`. Then a lane's first window has so many
    documents, and each later one twice as many as the one before, until they are full. Where it
    has `duplicates_folder`, files there name what it drops.
    """

    @property
    def order_window_documents(self) -> int:
        """Documents per ordering window."""

    @property
    def exact(self) -> bool:
        """True if it gives the same order on any machine."""

    def order(self, documents: Documents, *, seed: int = 0) -> tuple[NDArray[np.int64], ...]:
        """The new order (M,) int64 of the documents, and the dropped ones (D,), ascending.

        An order that knows which other document each dropped one is like returns `Ordered`.

        Args:
            documents: N documents, in order of arrival.
            seed: of this window.
        """

    def describe(self) -> dict[str, Any]:
        """JSON-able identity for the fingerprint."""


@explained
@dataclass(frozen=True, kw_only=True)
class SimilarityOrder:
    """Related documents one after the other, near-duplicates dropped (In-Context Pretraining).

    What is dropped is counted (`Metrics.duplicates`, `duplicate_tokens`). A document is dropped
    only if all of it is like an earlier one, not for a preamble that both have.

    Use it with a packer that keeps the order (`Concat`) and ``attention="row"``: the point is to
    attend across documents. Rows are shuffled over the packing window, so a batch that is a small
    part of the window seldom holds rows that follow one another. Larger batches need a larger
    packing window.

    Args:
        order_window_documents: documents ordered together. Among more of them neighbours are
            closer. The whole window is held in memory (its tokens twice) and read before its first
            batch.
        first_window_documents: size of a lane's first window, so that its first batch comes early;
            the later ones double until they are full. With `order_window_documents` or more, all
            windows are full.
        embedder: `Documents` -> (N, D) float32, see `embedding`; None hashes token n-grams, and
            `BM25()` weighs tokens by how rare they are in the window.
        k: neighbours of each document in the graph.
        duplicate_threshold: a document is dropped if its cosine to an earlier kept one of its
            window exceeds this, by the embedder and as whole documents by token n-grams; 1 drops
            none.
        max_similarity: the highest cosine of two documents in a row; 1 sets no limit. With one, a
            document waits while it is more similar to one of the last `row_tokens` tokens
            (Threshold Filtering Packing). Only the ``3 k`` most similar ones of each document are
            kept apart, and not where nothing else is left, nor between ordering windows.
        row_tokens: what a row holds, for `max_similarity`: the dataset's `seq_len` or more.
        first_tokens: tokens of a document that the embedder sees.
        search: "exact" compares every pair, "faiss" searches approximately (extra `[ordering]`),
            "auto" is exact up to 65,536 documents.
        duplicates_folder: where files name what was dropped, JSON lines, one file for each
            ordering window that dropped any; None names nothing. A window that is read again after
            a resume writes the same file again, so that nothing is named twice. Give each run its
            own folder.

    Raises:
        ConfigError: a value out of its range, or faiss is needed and not installed.
    """

    order_window_documents: int = 8192
    first_window_documents: int = 2048
    embedder: Embedder | None = None
    k: int = 10
    duplicate_threshold: float = 0.95
    max_similarity: float = 1.0
    row_tokens: int = 8192
    first_tokens: int = 512
    search: Search = "auto"
    duplicates_folder: str | PathLike[str] | None = None

    revision: ClassVar[int] = 3
    _embed: Embedder = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        windows = ("order_window_documents", "first_window_documents")
        require_counts(self, *windows, "k", "row_tokens", "first_tokens")
        for name in ("duplicate_threshold", "max_similarity"):
            value = real_number(name, getattr(self, name), least=0.001, most=1)
            object.__setattr__(self, name, value)
        one_of("search", self.search, get_args(Search))
        if self.embedder is not None and not callable(self.embedder):
            raise ConfigError(
                f"embedder is {type_in_words(self.embedder)}.",
                "Pass a function of Documents, a TextEmbedder or a TokenEmbedder.",
                setting="embedder",
            )
        if self.duplicates_folder is not None:
            object.__setattr__(self, "duplicates_folder", fspath(self.duplicates_folder))
        object.__setattr__(self, "_embed", self.embedder or HashedNgrams())
        if self._approximate:
            require_faiss()

    @property
    def embedding(self) -> Embedder:
        """The embedder that is used."""
        return self._embed

    @property
    def _approximate(self) -> bool:
        large = self.order_window_documents > EXACT_DOCUMENTS
        return self.search == "faiss" or (self.search == "auto" and large)

    @property
    def exact(self) -> bool:
        """True if embedder and search give the same result on any machine."""
        return bool(getattr(self._embed, "exact", False)) and not self._approximate

    def embed(self, documents: Documents) -> NDArray[np.float32]:
        """(N, D) float32 vectors of N documents."""
        return embed(self._embed, documents, self.first_tokens)

    @property
    def num_neighbours(self) -> int:
        """Neighbours that are looked for: k of each; with a limit 3 k, for what is above it."""
        return self.k * (1 if self.max_similarity == 1 else MARGIN)

    def neighbours(self, documents: Documents, vectors: NDArray[np.float32]) -> Neighbours:
        """The neighbours of N documents by their vectors (N, D), without near-duplicates."""
        find = find_neighbours_approximately if self._approximate else find_neighbours
        hashed = self._embed if isinstance(self._embed, HashedNgrams) else None
        wholes = Wholes(documents, hashed)
        return find(vectors, self.num_neighbours, self.duplicate_threshold, wholes)

    def limit(self, lengths: NDArray[np.int64], unit_tokens: int = 1) -> Limit | None:
        """For a walk through documents of these lengths (M,), in units of which a token is some."""
        if self.max_similarity == 1:
            return None
        similarity = on_grid(self.max_similarity)
        return Limit(similarity, self.k, lengths, self.row_tokens * unit_tokens)

    def order(self, documents: Documents, *, seed: int = 0) -> Ordered:
        """The walk through the kept documents, and the near-duplicates.

        Nothing is random, so the seed changes nothing.
        """
        found = self.neighbours(documents, self.embed(documents))
        limit = self.limit(documents.lengths[found.kept])
        path = walk(found.ids, found.similarity, limit=limit)
        return ordered(found, path)

    def describe(self) -> dict[str, Any]:
        """Kind, parameters and algorithm revision; of the limit only where there is one."""
        limited = {"max_similarity": self.max_similarity, "row_tokens": self.row_tokens}
        return {
            "kind": type(self).__name__,
            "revision": self.revision,
            "order_window_documents": self.order_window_documents,
            "first_window_documents": min(self.first_window_documents, self.order_window_documents),
            "embedder": embedder_name(self._embed),
            "k": self.k,
            "duplicate_threshold": self.duplicate_threshold,
            "first_tokens": self.first_tokens,
            "search": "faiss" if self._approximate else "exact",
            **(limited if self.max_similarity < 1 else {}),
        }


def ordered(found: Neighbours, path: NDArray[np.int64]) -> Ordered:
    """The kept documents along a path (M,) of their positions, and the near-duplicates."""
    dropped = np.flatnonzero(found.duplicate_of >= 0)
    return Ordered(found.kept[path], dropped, found.duplicate_of[dropped])


def require_counts(order: Any, *names: str) -> None:
    """Raise `ConfigError` unless these attributes are positive whole numbers."""
    for name in names:
        value = whole_number(name, getattr(order, name))
        object.__setattr__(order, name, value)


@explained
@dataclass(frozen=True)
class GroupBy:
    """Documents with the same key side by side, inside an ordering window.

    Steps:
      1. Every document of the ordering window has a key.
      2. Groups follow one another as their first documents arrived, and the documents of a group as
         they arrived themselves.

    Cost: one sort of the window's keys. Nothing is compared, dropped or approximate. A group that
    is spread over several ordering windows comes in as many pieces.

    Use it as `SimilarityOrder`: with ``attention="row"`` and a packer that keeps the order.

    Args:
        key: the name of one of the dataset's `document_fields`; or a function of N `Documents`
            that returns (N,) values, the same for the same documents on any machine, such as
            ``lambda documents: documents.origin["shard"]``. It may have a `name`, which stands for
            it in the fingerprint of a saved state.
        order_window_documents: documents ordered together, all held in memory.
        first_window_documents: size of a lane's first window, as for `SimilarityOrder`.

    Raises:
        ConfigError: a value out of its range; while ordering, keys that cannot be compared.
    """

    key: str | Callable[[Documents], Any]
    order_window_documents: int = 8192
    first_window_documents: int = 2048

    exact: ClassVar[bool] = True
    revision: ClassVar[int] = 1

    def __post_init__(self) -> None:
        require_counts(self, "order_window_documents", "first_window_documents")
        if not (isinstance(self.key, str) and self.key) and not callable(self.key):
            raise ConfigError(
                f"key is {self.key!r}.",
                "Pass the name of a document field, or a function of Documents.",
                setting="key",
            )

    def order(
        self, documents: Documents, *, seed: int = 0
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The documents (N,) by group; nothing is dropped, and the seed changes nothing."""
        _, first, group = np.unique(self._keys(documents), return_index=True, return_inverse=True)
        return np.argsort(first[group], kind="stable"), np.zeros(0, dtype=np.int64)

    def describe(self) -> dict[str, Any]:
        """Kind, parameters and algorithm revision."""
        return {
            "kind": type(self).__name__,
            "revision": self.revision,
            "key": self.key if isinstance(self.key, str) else embedder_name(self.key),
            "order_window_documents": self.order_window_documents,
            "first_window_documents": min(self.first_window_documents, self.order_window_documents),
        }

    def _keys(self, documents: Documents) -> NDArray[Any]:
        if isinstance(self.key, str):
            if self.key not in documents.document_fields:
                raise ConfigError(
                    f'GroupBy goes by the document field "{self.key}", and the documents have '
                    f"{', '.join(documents.document_fields) or 'none'}.",
                    f'Declare it: PackedDataset(document_fields={{"{self.key}": "int64"}}).',
                    setting="document_fields",
                )
            return documents.document_fields[self.key]
        keys = np.asarray(self.key(documents))
        if keys.shape != (len(documents),) or keys.dtype.kind not in "biufSUV":
            raise ConfigError(
                f"The key of GroupBy was asked for {len(documents)} documents and returned "
                f"an array of shape {keys.shape} and dtype {keys.dtype}.",
                "Return a flat array of numbers or strings, one for each document.",
                setting="key",
            )
        return keys
