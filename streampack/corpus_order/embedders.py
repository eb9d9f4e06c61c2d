"""Embedders by name: a model is loaded once, in the process that uses it.

"bm25" is `BM25()`; "wordllama" the static embedding that comes with that package;
"sentence-transformers:NAME" a model of that library, by name or path; "package.module:function" a
function from N texts to (N, D) numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from streampack.errors import ConfigError
from streampack.ordering.bm25 import BM25
from streampack.ordering.embedding import Embedder, TextEmbedder

Decode = Callable[[Sequence[list[int]]], Sequence[str]]


def named_embedder(name: str, decode: Decode | None) -> Embedder:
    """Return an embedder by name, for texts or for ids that `decode` converts to texts.

    BM25 uses both unchanged.

    Raises:
        ConfigError: the name is unknown, or a package that the embedder needs is not installed.
    """
    if name == "bm25":
        return BM25()
    _load(name)
    return TextEmbedder(name, _Named(name), decode)


@dataclass(frozen=True)
class _Named:
    """Embedder that is pickled as its name."""

    name: str

    def __call__(self, texts: list[str]) -> Any:
        return _load(self.name)(texts)


@lru_cache(maxsize=1)
def _load(name: str) -> Callable[[list[str]], Any]:
    kind, _, target = name.partition(":")
    try:
        if name == "wordllama":
            root = logging.getLogger()
            before = root.level, root.handlers[:]
            # The import configures logging for the whole process.
            package = import_module("wordllama")
            root.setLevel(before[0])
            root.handlers[:] = before[1]
            folder = Path(str(package.__file__)).parent
            model = package.WordLlama.load(cache_dir=folder, disable_download=True)
            return lambda texts: model.embed(texts)
        if kind == "sentence-transformers" and target:
            library = import_module("sentence_transformers")
            encoder = library.SentenceTransformer(target)
            return lambda texts: encoder.encode(texts, show_progress_bar=False)
        if target:
            function = getattr(import_module(kind), target, None)
            if callable(function):
                return function  # type: ignore[no-any-return]
    except ImportError as error:
        raise ConfigError(
            f'The embedder "{name}" needs {error.name}, which cannot be imported.',
            "Install it or put it on PYTHONPATH, on every machine of a cluster.",
            setting="embedder",
        ) from error
    raise ConfigError(
        f'The name of an embedder must be a known one or "package.module:function", got "{name}".',
        'Use "bm25", "wordllama", "sentence-transformers:NAME" or "package.module:function"; leave '
        "it out for the n-grams of tokens.",
        setting="embedder",
    )
