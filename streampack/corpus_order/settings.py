"""What is to be put in order, where to and how; embedders by name.

Embedders by name: a model is loaded in the process that uses it, once.

"wordllama" is the static embedding that comes with that package; "sentence-transformers:NAME" a
model of that library, by name or path; "package.module:function" a function from N texts to
(N, D) numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np

from streampack.arguments import explained, whole_number
from streampack.conversion.shards import HIDDEN, Destination, check_content, check_shards
from streampack.corpus_order.corpus import Work
from streampack.errors import ConfigError
from streampack.ordering.embedding import Embedder, TextEmbedder
from streampack.ordering.order import EXACT_DOCUMENTS, Search, SimilarityOrder
from streampack.sources.base import Source
from streampack.tokenization import Tokenizer

Decode = Callable[[Sequence[list[int]]], Sequence[str]]


def named_embedder(name: str, decode: Decode | None) -> TextEmbedder:
    """The embedder of a name, for texts, or for ids that `decode` makes texts of.

    Raises:
        ConfigError: there is no such name, or what it needs is not installed.
    """
    _load(name)
    return TextEmbedder(name, _Named(name), decode)


@dataclass(frozen=True)
class _Named:
    """Pickled by its name alone."""

    name: str

    def __call__(self, texts: list[str]) -> Any:
        return _load(self.name)(texts)


@lru_cache(maxsize=1)
def _load(name: str) -> Callable[[list[str]], Any]:
    kind, _, rest = name.partition(":")
    try:
        if name == "wordllama":
            root = logging.getLogger()
            before = root.level, root.handlers[:]
            package = import_module("wordllama")  # sets up the whole process's log
            root.setLevel(before[0])
            root.handlers[:] = before[1]
            folder = Path(str(package.__file__)).parent
            model = package.WordLlama.load(cache_dir=folder, disable_download=True)
            return lambda texts: model.embed(texts)
        if kind == "sentence-transformers" and rest:
            library = import_module("sentence_transformers")
            encoder = library.SentenceTransformer(rest)
            return lambda texts: encoder.encode(texts, show_progress_bar=False)
        if rest:
            function = getattr(import_module(kind), rest, None)
            if callable(function):
                return function  # type: ignore[no-any-return]
    except ImportError as error:
        raise ConfigError(
            f'The embedder "{name}" needs {error.name}, which cannot be imported.',
            "Install it or put it on PYTHONPATH, on every machine of a cluster.",
            setting="embedder",
        ) from error
    raise ConfigError(
        f'"{name}" names no embedder.',
        'Use "wordllama", "sentence-transformers:NAME" or "package.module:function"; leave it out '
        "for the n-grams of tokens.",
        setting="embedder",
    )


PART_TOKENS = 1 << 20  # of a part, about
MOST_PARTS = 1 << 14  # a process maps up to three files of each, and Linux allows 65,530
UNKNOWN_PARTS = 16  # where a source cannot say how large it is


@explained
@dataclass(frozen=True, kw_only=True)
class CorpusOrder:
    """What to put in order, where to and how.

    Attributes:
        source: read in lanes without shuffling; it must be readable more than once.
        destination: empty, or holding an unfinished run of the same settings.
        tokenizer: for a source of text; None writes the text itself and compares its words.
        work: folder of the stages' results, which all processes see; None is in the destination,
            where that is a local folder.
        embedder: as for `SimilarityOrder`; or a name, see the top of this file.
        k: neighbours of each document in the graph.
        duplicate_threshold: as for `SimilarityOrder`, over the whole corpus.
        first_tokens: tokens (words of a text without tokenizer) that the embedder sees.
        search: "exact" compares every pair, "faiss" searches an inverted file, "auto" is exact up
            to 65,536 documents.
        seed: of the sample that trains the index.
        parts: pieces in which the source is read, and what is done again after a kill; None
            is one for every million tokens, up to 16,384.
        shard_bytes: a shard ends before it would hold more content than this.
        compression, dtype, on_error: as for `Conversion`.

    Raises:
        ConfigError: a value is out of its range, or something that is needed is not installed.
    """

    source: Source
    destination: Destination
    tokenizer: Tokenizer | None = None
    work: str | None = None
    embedder: Embedder | str | None = None
    k: int = 10
    duplicate_threshold: float = 0.95
    first_tokens: int = 512
    search: Search = "auto"
    seed: int = 0
    parts: int | None = None
    shard_bytes: int = 64 << 20
    compression: str | None = None
    dtype: str | None = None
    on_error: Literal["raise", "skip"] = "raise"

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
            first_tokens=self.first_tokens,
            search=self.search,
        )
        object.__setattr__(self, "similarity", similarity)
        object.__setattr__(self, "files", Work(self._folder()))
        whole_number("seed", self.seed, least=0)
        check_content(self.source, self.tokenizer)
        if self.source.once:
            raise ConfigError(
                f"{self.source!r} can be read once only.",
                "Write the documents to files, or pass a list.",
                setting="source",
            )
        check_shards(self.shard_bytes, self.compression)
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

    def describe(self) -> dict[str, Any]:
        """What the result depends on; a run of other settings does not continue this one."""
        described = self.similarity.describe()
        names = ("embedder", "k", "duplicate_threshold", "first_tokens", "revision")
        return {
            "version": 1,
            "source": self.source.describe(),
            "tokenizer": None if self.tokenizer is None else self.tokenizer.fingerprint,
            **{name: described[name] for name in names},
            "search": self.search,
            "seed": self.seed,
            "parts": self.num_parts,
            "shard_bytes": self.shard_bytes,
            "compression": self.compression,
            "dtype": self.dtype,
            "on_error": self.on_error,
        }


def _decoded(tokenizer: Tokenizer, documents: Sequence[list[int]]) -> list[str]:
    return [tokenizer.decode(np.array(ids, dtype=np.int64)) for ids in documents]
