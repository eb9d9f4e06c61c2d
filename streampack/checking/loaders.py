"""Loaders of a check: made by the user's function, one per rank, and read in step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

from streampack.arguments import type_in_words
from streampack.checking.marked import MarkedDocuments
from streampack.checking.reading import is_batch
from streampack.errors import ConfigError

_END = object()


class Loaders:
    """The loaders of all ranks, which are made anew for each pass if a function makes them.

    Args:
        loader: a loader, a list of loaders (one per rank), or a function that returns either. The
            function may have the arguments `documents`, `rank` and `world_size`.
        documents: value of `documents`.
        ranks: number of ranks, for a function with the argument `rank`.

    Raises:
        ConfigError: `loader` is something else, or the function needs other arguments.
    """

    def __init__(self, loader: Any, documents: MarkedDocuments | None, ranks: int) -> None:
        is_function = isinstance(loader, type) or not hasattr(loader, "__iter__")
        self._make = loader if callable(loader) and is_function else None
        self._names = _parameters(self._make) if self._make is not None else set()
        if self._make is None and not hasattr(loader, "__iter__"):
            raise ConfigError(
                f"loader must be an iterable of batches, or a function that returns one, got "
                f"{type_in_words(loader)}.",
                "Pass a DataLoader, a list of loaders (one per rank), or a function with the "
                "argument documents.",
                setting="loader",
            )
        self._loader, self._documents, self._ranks = loader, documents, ranks

    @property
    def takes_documents(self) -> bool:
        """True if the function takes the marked documents."""
        return "documents" in self._names

    def with_documents(self, documents: MarkedDocuments) -> Loaders:
        """Return the same loaders over these documents."""
        return Loaders(self._loader, documents, self._ranks)

    def make(self) -> list[Any]:
        """Return the loaders, one per rank."""
        if self._make is None:
            return _ranks_of(self._loader)
        values = {"documents": self._documents, "world_size": self._ranks}
        call = {name: value for name, value in values.items() if name in self._names}
        if "rank" in self._names:
            return [self._make(**call, rank=rank) for rank in range(self._ranks)]
        return _ranks_of(self._make(**call))


def in_step(loaders: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield the batches of all ranks step by step; `None` for a rank that has ended."""
    for batches in zip_longest(*loaders, fillvalue=_END):
        yield [None if batch is _END else batch for batch in batches]


def _ranks_of(loader: Any) -> list[Any]:
    if isinstance(loader, (list, tuple)) and loader and not is_batch(loader[0]):
        return list(loader)
    return [loader]


def _parameters(function: Callable[..., Any]) -> set[str]:
    allowed = {"documents", "rank", "world_size"}
    parameters = inspect.signature(function).parameters.values()
    needed = {p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL}
    needed -= {p.name for p in parameters if p.kind is p.VAR_KEYWORD}
    if needed - allowed:
        raise ConfigError(
            f"The function of loaders takes documents, rank and world_size, but this one needs "
            f"{', '.join(sorted(needed - allowed))}.",
            "Give the other arguments defaults.",
            setting="loader",
        )
    return {p.name for p in parameters} & allowed
