"""Loaders of a check: made by the user's function, one per rank, and read in step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from streampack.arguments import type_in_words
from streampack.checking.marked import MarkedDocuments
from streampack.checking.reading import is_batch
from streampack.errors import ConfigError


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


def in_step(loaders: Sequence[Any]) -> Iterator[tuple[list[Any], bool]]:
    """Yield the batches of all ranks step by step; `None` for a rank that has ended.

    A list of batches, such as the microbatches of a step, gives each of them. The second value is
    True where no rank is inside such a list.
    """
    for pairs in zip_longest(*map(_microbatches, loaders), fillvalue=(None, True)):
        yield [batch for batch, _ in pairs], all(whole for _, whole in pairs)


def _microbatches(loader: Any) -> Iterator[tuple[Any, bool]]:
    for item in loader:
        parts = [item]
        if isinstance(item, (list, tuple)) and item and not is_batch(item):
            parts = list(item) if all(map(is_batch, item)) else parts
        for number, part in enumerate(parts, 1):
            yield part, number == len(parts)


def _ranks_of(loader: Any) -> list[Any]:
    if not isinstance(loader, (list, tuple)) or not loader or is_batch(loader[0]):
        return [loader]
    no_loader = isinstance(loader[0], (Mapping, str)) or hasattr(loader[0], "shape")
    return [loader] if no_loader else list(loader)


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
