"""Orders: arrange the documents of one ordering window, by similarity or by key.

An order sees one ordering window at a time and keeps no state between them.
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
from streampack.ordering.above_limit import log_share_above
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

#: Number of documents above which "auto" uses faiss, since an exact search compares every pair.
EXACT_DOCUMENTS = 65_536


class Ordered(NamedTuple):
    """Order of the N documents of a window.

    Attributes:
        order: (M,) int64, kept documents in their new order.
        dropped: (D,) int64, dropped documents, ascending.
        like: (D,) int64, a kept document similar to each dropped one.
    """

    order: NDArray[np.int64]
    dropped: NDArray[np.int64]
    like: NDArray[np.int64]


@runtime_checkable
class DocumentOrder(Protocol):
    """Interface of an order of documents.

    Attributes:
        order_window_documents: documents per ordering window; fewer at the end of an epoch.
        exact: True if it gives the same order on any machine; otherwise a state stores the order.

    An order with ``related = False`` does not ask for a packer that keeps documents side by side.
    An order with compiled code may have `warm_up(documents)`, called before workers are forked.
    An order may also have `first_window_documents`, the size of a lane's first window; later
    windows double until they are full. With `duplicates_folder`, files in this folder list the
    documents that it drops.
    """

    @property
    def order_window_documents(self) -> int:
        """Documents per ordering window."""

    @property
    def exact(self) -> bool:
        """True if it gives the same order on any machine."""

    def order(self, documents: Documents, *, seed: int = 0) -> tuple[NDArray[np.int64], ...]:
        """Return the new order (M,) int64 of the documents, and the dropped ones (D,), ascending.

        Return `Ordered` to also report the kept document that each dropped one is similar to.

        Args:
            documents: N documents, in order of arrival.
            seed: seed of this window.
        """

    def describe(self) -> dict[str, Any]:
        """Return the JSON-compatible identity for the fingerprint."""


@explained
@dataclass(frozen=True, kw_only=True)
class SimilarityOrder:
    """Puts related documents next to each other and drops near-duplicates (In-Context Pretraining).

    Dropped documents are counted (`Metrics.duplicates`, `duplicate_tokens`). A document is dropped
    only if all of it is similar to an earlier one, not for a common preamble.

    Use it with a packer that keeps the order (`Concat`) and ``attention="row"``, so that tokens
    attend across documents. Rows are shuffled over the packing window, so a batch that is a small
    part of the window seldom holds consecutive rows. Larger batches need a larger packing window.

    Args:
        order_window_documents: documents ordered together. More documents have closer neighbours,
            but the whole window is held in memory (its tokens twice) and read before its first
            batch.
        first_window_documents: size of a lane's first window, so that its first batch comes early;
            later windows double until they are full. With `order_window_documents` or more, all
            windows are full.
        embedder: function from `Documents` to (N, D) float32, see `embedding`. By default it hashes
            token n-grams; `BM25()` weights tokens by their rarity in the window.
        k: neighbours of each document in the graph.
        duplicate_threshold: cosine to an earlier kept document of the window above which a document
            is dropped, both by the embedder and by token n-grams of whole documents; 1 drops none.
        max_similarity: highest cosine of two documents in a row; 1 sets no limit. A document waits
            while it is more similar to one of the last `row_tokens` tokens (Threshold Filtering
            Packing). Only each document's ``3 k`` most similar ones are kept apart, unless no
            others are left, and not across ordering windows; the share of pairs that stays above
            the limit is logged.
        row_tokens: tokens per row, for `max_similarity`: the dataset's `seq_len` or more.
        first_tokens: tokens of a document that the embedder sees.
        search: "exact" compares every pair, "faiss" searches approximately (extra `[ordering]`),
            "auto" is exact up to 65,536 documents.
        duplicates_folder: folder for lists of dropped documents in JSON lines, one file per
            ordering window with any; None writes no lists. A window that is repeated after a resume
            rewrites its file, so that no document is listed twice. Use one folder per run.

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
                f"embedder must be a callable, got {type_in_words(self.embedder)}.",
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
        """The given embedder, or the default."""
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
        """Compute vectors (N, D) float32 of N documents."""
        return embed(self._embed, documents, self.first_tokens)

    @property
    def num_neighbours(self) -> int:
        """Neighbours to search per document: k, or 3 k with a limit, some of them above it."""
        return self.k * (1 if self.max_similarity == 1 else MARGIN)

    def neighbours(self, documents: Documents, vectors: NDArray[np.float32]) -> Neighbours:
        """Find the neighbours of N documents by their vectors (N, D), without near-duplicates."""
        find = find_neighbours_approximately if self._approximate else find_neighbours
        hashed = self._embed if isinstance(self._embed, HashedNgrams) else None
        wholes = Wholes(documents, hashed)
        return find(vectors, self.num_neighbours, self.duplicate_threshold, wholes)

    def limit(self, lengths: NDArray[np.int64], unit_tokens: int = 1) -> Limit | None:
        """Return the limit for a walk through documents of lengths (M,), in units per token."""
        if self.max_similarity == 1:
            return None
        similarity = on_grid(self.max_similarity)
        return Limit(similarity, self.k, lengths, self.row_tokens * unit_tokens)

    def order(self, documents: Documents, *, seed: int = 0) -> Ordered:
        """Return the walk through the kept documents, and the near-duplicates.

        Nothing is random, so the seed has no effect.
        """
        vectors = self.embed(documents)
        neighbours = self.neighbours(documents, vectors)
        limit = self.limit(documents.lengths[neighbours.kept])
        path = walk(neighbours.ids, neighbours.similarity, limit=limit)
        done = ordered(neighbours, path)
        if limit is not None:
            log_share_above(
                vectors[done.order], limit._replace(lengths=documents.lengths[done.order])
            )
        return done

    def warm_up(self, documents: Documents) -> None:
        """Compile the kernels by ordering the documents, unless that loads a model."""
        if self.exact:
            self.order(documents)

    def describe(self) -> dict[str, Any]:
        """Return kind, parameters and algorithm revision; the limit only if one is set."""
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


def ordered(neighbours: Neighbours, path: NDArray[np.int64]) -> Ordered:
    """Return the kept documents along a path (M,) of positions, and the near-duplicates."""
    dropped = np.flatnonzero(neighbours.duplicate_of >= 0)
    return Ordered(neighbours.kept[path], dropped, neighbours.duplicate_of[dropped])


def require_counts(order: Any, *names: str) -> None:
    """Raise `ConfigError` unless the named attributes of `order` are positive integers."""
    for name in names:
        value = whole_number(name, getattr(order, name))
        object.__setattr__(order, name, value)


@explained
@dataclass(frozen=True)
class GroupBy:
    """Puts documents with equal keys next to each other, inside an ordering window.

    Steps:
      1. Every document of the ordering window has a key.
      2. Groups are in the order of their first documents' arrival, and the documents of a group in
         the order of arrival.

    Cost: one sort of the window's keys. No documents are compared or dropped. A group that is
    spread over several ordering windows is delivered in as many pieces.

    Use it like `SimilarityOrder`: with ``attention="row"`` and a packer that keeps the order.

    Args:
        key: name of one of the dataset's `document_fields`, of numbers or texts; or a function of
            N `Documents` that returns (N,) values, the same for equal documents on any machine,
            such as ``lambda documents: documents.origin["shard"]``. A `name` of the function
            identifies it in the fingerprint of a saved state.
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
                f"key must be a name or a function, got {self.key!r}.",
                "Pass the name of a document field, or a function of Documents.",
                setting="key",
            )

    def order(
        self, documents: Documents, *, seed: int = 0
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the documents (N,) by group; nothing is dropped, and the seed has no effect."""
        _, first, group = np.unique(self._keys(documents), return_index=True, return_inverse=True)
        return np.argsort(first[group], kind="stable"), np.zeros(0, dtype=np.int64)

    def describe(self) -> dict[str, Any]:
        """Return kind, parameters and algorithm revision."""
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
                    f'GroupBy requires the document field "{self.key}", and the documents have '
                    f"{', '.join(documents.document_fields) or 'no fields'}.",
                    f'Declare it: PackedDataset(document_fields={{"{self.key}": "int64"}}), '
                    'or "text" for names.',
                    setting="document_fields",
                )
            return documents.document_fields[self.key]
        keys = np.asarray(self.key(documents))
        if keys.shape != (len(documents),) or keys.dtype.kind not in "biufSUV":
            raise ConfigError(
                f"The key of GroupBy must return {len(documents)} values for {len(documents)} "
                f"documents, got an array of shape {keys.shape} and dtype {keys.dtype}.",
                "Return a flat array of numbers or strings, one for each document.",
                setting="key",
            )
        return keys
