"""What is to be put in order, where to and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from streampack.arguments import explained, whole_number
from streampack.conversion.convert import Conversion
from streampack.conversion.shards import HIDDEN
from streampack.corpus_order.embedders import named_embedder
from streampack.corpus_order.work import Work
from streampack.errors import ConfigError
from streampack.ordering.embedding import Embedder
from streampack.ordering.order import EXACT_DOCUMENTS, Search, SimilarityOrder
from streampack.tokenization import Tokenizer

PART_TOKENS = 1 << 20  # of a part, about
MOST_PARTS = 1 << 14  # a process maps up to three files of each, and Linux allows 65,530
UNKNOWN_PARTS = 16  # where a source cannot say how large it is


@explained
@dataclass(frozen=True, kw_only=True)
class CorpusOrder(Conversion):
    """What to put in order, where to and how: a conversion in another order.

    Attributes:
        source: read in lanes without shuffling; it must be readable more than once.
        tokenizer: for a source of text; None writes the text itself and compares its words.
        work: folder of the stages' results, which all processes see; None is in the destination,
            where that is a local folder.
        embedder: as for `SimilarityOrder`; or a name, see `named_embedder`.
        k: neighbours of each document in the graph.
        duplicate_threshold: as for `SimilarityOrder`, over the whole corpus.
        max_similarity, row_tokens: as for `SimilarityOrder`; a token of a text without tokenizer is
            four bytes.
        first_tokens: tokens (words of a text without tokenizer) that the embedder sees.
        search: "exact" compares every pair, "faiss" searches an inverted file, "auto" is exact up
            to 65,536 documents.
        parts: pieces in which the source is read, and what is done again after a kill; None
            is one for every million tokens, up to 16,384.
        destination, shard_bytes, compression, dtype, on_error: as for `Conversion`.

    Raises:
        ConfigError: a value is out of its range, or something that is needed is not installed.
    """

    work: str | None = None
    embedder: Embedder | str | None = None
    k: int = 10
    duplicate_threshold: float = 0.95
    max_similarity: float = 1.0
    row_tokens: int = 8192
    first_tokens: int = 512
    search: Search = "auto"
    parts: int | None = None

    #: The rules of similarity, which are those of one window that holds the corpus.
    similarity: SimilarityOrder = field(init=False, repr=False)
    files: Work = field(init=False, repr=False)

    def __post_init__(self) -> None:
        embedder = self.embedder
        if isinstance(embedder, str):
            decode = None if self.tokenizer is None else partial(_decoded, self.tokenizer)
            embedder = named_embedder(embedder, decode)
        similarity = SimilarityOrder(
            embedder=embedder,
            k=self.k,
            duplicate_threshold=self.duplicate_threshold,
            max_similarity=self.max_similarity,
            row_tokens=self.row_tokens,
            first_tokens=self.first_tokens,
            search=self.search,
        )
        object.__setattr__(self, "similarity", similarity)
        object.__setattr__(self, "files", Work(self._folder()))
        super().__post_init__()
        if self.source.once:
            raise ConfigError(
                f"{self.source!r} can be read once only.",
                "Write the documents to files, or pass a list.",
                setting="source",
            )
        most = self.source.max_lanes()
        most = MOST_PARTS if most is None else min(most, MOST_PARTS)
        if self.parts is None:
            tokens = self.source.estimate_tokens()
            wanted = UNKNOWN_PARTS if tokens is None else -(-tokens // PART_TOKENS)
            object.__setattr__(self, "parts", min(max(wanted, 1), most))
        object.__setattr__(self, "parts", whole_number("parts", self.parts, most=most))

    def _folder(self) -> Path:
        local = self.destination.local
        if self.work is not None and local is not None:
            raise ConfigError(
                f'work="{self.work}" was given, and {self.destination.url} is a local folder.',
                "Leave --work out.",
                setting="work",
            )
        if local is not None:
            return local / HIDDEN / "order"
        if self.work is None:
            raise ConfigError(
                f"{self.destination.url} is no local folder.",
                "Name a folder that all processes see for the stages' results: --work DIR.",
                setting="work",
            )
        return Path(self.work).expanduser().absolute() / "order"

    @property
    def num_parts(self) -> int:
        """Pieces in which the source is read."""
        assert self.parts is not None
        return self.parts

    def exact(self, documents: int) -> bool:
        """Whether every pair of so many documents is compared."""
        return self.search == "exact" or (self.search == "auto" and documents <= EXACT_DOCUMENTS)

    def settings(self) -> dict[str, Any]:
        """See `Conversion.settings`."""
        described = self.similarity.describe()
        names = ("embedder", "k", "duplicate_threshold", "first_tokens", "revision")
        limited = ("max_similarity", "row_tokens")
        own = {name: described[name] for name in (*names, *limited) if name in described}
        own.update(search=self.search, parts=self.num_parts)
        if self.work is not None:  # which does not lie in the destination
            own["destination"] = self.destination.url
        return {**super().settings(), **own}


def _decoded(tokenizer: Tokenizer, documents: Sequence[list[int]]) -> list[str]:
    return [tokenizer.decode(np.array(ids, dtype=np.int64)) for ids in documents]
