"""Settings of ordering a corpus: source, destination and parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from streampack.arguments import explained, whole_number
from streampack.conversion.settings import ShardSettings
from streampack.conversion.shards import HIDDEN
from streampack.corpus_order.embedders import named_embedder
from streampack.corpus_order.work import Work
from streampack.documents.fields import FieldSpec
from streampack.errors import ConfigError
from streampack.ordering import signals
from streampack.ordering.by_field import ByField
from streampack.ordering.embedding import Embedder
from streampack.ordering.order import EXACT_DOCUMENTS, Search, SimilarityOrder
from streampack.tokenization import Tokenizer

PART_TOKENS = 1 << 20  # approximate tokens per part
MOST_PARTS = 1 << 14  # a process maps up to three files of each, and Linux allows 65,530
UNKNOWN_PARTS = 16  # number of parts for a source of unknown size
_OF_SIMILARITY = (
    *("embedder", "k", "duplicate_threshold", "max_similarity", "row_tokens"),
    *("first_tokens", "search"),
)


@explained
@dataclass(frozen=True, kw_only=True)
class CorpusOrder(ShardSettings):
    """Settings of ordering a corpus, which is a conversion that also reorders documents.

    Attributes:
        source: source, read in lanes without shuffling; it must be readable more than once.
        tokenizer: tokenizer for a source of text; None writes the text itself and compares words.
        work: folder for the stages' results, visible to all processes; by default in the
            destination, if this is a local folder.
        embedder: as for `SimilarityOrder`; or a name, see `named_embedder`.
        k: neighbours of each document in the graph.
        duplicate_threshold: as for `SimilarityOrder`, over the whole corpus.
        max_similarity, row_tokens: as for `SimilarityOrder`; a token of a text without tokenizer is
            four bytes.
        first_tokens: tokens (words of a text without tokenizer) that the embedder sees.
        search: "exact" compares every pair, "faiss" searches an inverted file, "auto" is exact up
            to 65,536 documents.
        by: order by a field of numbers, or, if documents are texts, by a function of
            `streampack.ordering.signals`, in place of similarity; no document is left out. The
            whole corpus is one ordering window.
        parts: number of pieces in which the source is read, the unit of work repeated after a kill;
            by default one per million tokens, up to 16,384.
        destination, shard_bytes, compression, dtype, on_error: as for `ShardSettings`.

    Raises:
        ConfigError: a value is out of its range, or a required package is not installed.
    """

    work: str | None = None
    embedder: Embedder | str | None = None
    k: int = 10
    duplicate_threshold: float = 0.95
    max_similarity: float = 1.0
    row_tokens: int = 8192
    first_tokens: int = 512
    search: Search = "auto"
    by: ByField | None = None
    parts: int | None = None

    #: Rules of similarity, as for one ordering window that holds the corpus.
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
        self._check_by()
        most = self.source.max_lanes()
        most = MOST_PARTS if most is None else min(most, MOST_PARTS)
        if self.parts is None:
            tokens = self.source.estimate_tokens()
            wanted = UNKNOWN_PARTS if tokens is None else -(-tokens // PART_TOKENS)
            object.__setattr__(self, "parts", min(max(wanted, 1), most))
        object.__setattr__(self, "parts", whole_number("parts", self.parts, most=most))

    def _check_by(self) -> None:
        """Let the source read the field, and refuse settings of similarity beside it."""
        if self.by is None:
            return
        defaults = {each.name: each.default for each in fields(self)}
        name = next((n for n in _OF_SIMILARITY if getattr(self, n) != defaults[n]), None)
        if name is not None:
            raise ConfigError(
                f"Only one order is possible, got by= and {name}=.",
                f"Leave {name} out, or by.",
                setting=name,
            )
        if self.by_signal:
            return
        types = FieldSpec(document={self.by.name: np.dtype(np.float64)})
        object.__setattr__(self, "source", self.source._with_fields(types))
        try:
            self.source.prepare()
        except ConfigError as error:
            if error.setting != "document_fields":
                raise
            raise ConfigError(
                error.fact,
                "Name a field of numbers; signals are computed from texts, for which --text names "
                "the column.",
                setting="by",
                path=error.path,
            ) from error

    @property
    def by_signal(self) -> bool:
        """True if the value to order by is computed from texts, not read from a field."""
        signal = self.by is not None and self.by.name in signals.__all__
        return signal and not self.source.tokenized

    def _folder(self) -> Path:
        local = self.destination.local
        if self.work is not None and local is not None:
            raise ConfigError(
                f'work requires a destination that is not a local folder, got work="{self.work}" '
                f"and {self.destination.url}.",
                "Leave --work out.",
                setting="work",
            )
        if local is not None:
            return local / HIDDEN / "order"
        if self.work is None:
            raise ConfigError(
                f"{self.destination.url} is not a local folder, so the job requires work=.",
                "Name a folder that all processes see for the stages' results: --work DIR.",
                setting="work",
            )
        return Path(self.work).expanduser().absolute() / "order"

    @property
    def num_parts(self) -> int:
        """Number of pieces in which the source is read."""
        assert self.parts is not None
        return self.parts

    def exact(self, documents: int) -> bool:
        """Return True if every pair of this many documents is compared."""
        return self.search == "exact" or (self.search == "auto" and documents <= EXACT_DOCUMENTS)

    def settings(self) -> dict[str, Any]:
        """See `ShardSettings.settings`."""
        described = self.similarity.describe()
        names = ("embedder", "k", "duplicate_threshold", "first_tokens", "revision")
        limited = ("max_similarity", "row_tokens")
        result = {name: described[name] for name in (*names, *limited) if name in described}
        result.update(search=self.search, parts=self.num_parts)
        if self.by is not None:
            by = self.by.describe()
            result["by"] = {name: by[name] for name in by if name != "order_window_documents"}
        if self.work is not None:  # otherwise the folder is in the destination
            result["destination"] = self.destination.url
        return {**super().settings(), **result}


def _decoded(tokenizer: Tokenizer, documents: Sequence[list[int]]) -> list[str]:
    return [tokenizer.decode(np.array(ids, dtype=np.int64)) for ids in documents]
