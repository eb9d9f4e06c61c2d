"""Hooks: user functions between reading and packing, with checked results.

A hook works on whole blocks and has a name, which identifies it in the fingerprint of a saved
state. Randomness comes from one seed per document, so that the result for a document never depends
on the other documents of its block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import type_in_words
from streampack.documents.blocks import Documents
from streampack.errors import ConfigError
from streampack.hooks.hook import Hook as Hook
from streampack.hooks.hook import HookFunction as HookFunction
from streampack.hooks.hook import as_hook
from streampack.metrics import user_code
from streampack.packing.rng import derive_seed, derive_seeds
from streampack.stages.base import Place
from streampack.stages.ids import WithoutEmpty

if TYPE_CHECKING:
    from streampack.stages.recipe import Recipe


Refuse = Callable[[str, str], ConfigError]


def _place(origin: np.void) -> str:
    return f"document {int(origin['index'])} of shard {int(origin['shard'])}"


def document_seeds(seed: int, epoch: int, origin: NDArray[np.void]) -> NDArray[np.uint64]:
    """Return (N,) uint64 seeds, each a function of (seed, epoch, origin of the document) alone.

    Args:
        seed: seed of the run.
        epoch: index of the epoch, so that a document has a different seed in each.
        origin: (N,) origins of dtype `ORIGIN`.
    """
    base = derive_seed(seed, epoch)
    source = origin["source"].astype(np.int64).view(np.uint64) << np.uint64(32)
    place = source | (origin["shard"].astype(np.int64).view(np.uint64) & np.uint64(0xFFFFFFFF))
    return derive_seeds(base, derive_seeds(base, place) ^ origin["index"].view(np.uint64))


def apply_map(
    hook: Hook,
    documents: Documents,
    seeds: NDArray[np.uint64],
    vocab_size: int | None = None,
    name: Callable[[np.void], str] = _place,
) -> Documents:
    """Apply a map to a block of N documents and check the result.

    Args:
        hook: the map.
        documents: N documents.
        seeds: (N,) seeds from `document_seeds`.
        vocab_size: exclusive upper bound of ids; None only refuses negative ids.
        name: names a document by its origin, for errors.

    Raises:
        ConfigError: the hook raised, or did not return these documents with valid ids.
    """
    result = _called("map", hook, documents, seeds, name)
    refuse = partial(_refused, documents, name)
    if not isinstance(result, Documents):
        raise refuse(
            f'The map "{hook.name}" returned {type_in_words(result)}.',
            "Return Documents, for example with dataclasses.replace(documents, tokens=...).",
        )
    if len(result) != len(documents) or not np.array_equal(result.origin, documents.origin):
        raise refuse(
            f'The map "{hook.name}" was given {len(documents)} documents and returned '
            f"{len(result)}, or changed their order or origins.",
            "Return them all in the order given; make a document empty to drop it, or use a "
            "filter.",
        )
    _check_arrays(hook, result, refuse)
    _check_ids(hook, result, vocab_size, refuse)
    return result


def apply_filter(
    hook: Hook,
    documents: Documents,
    seeds: NDArray[np.uint64],
    name: Callable[[np.void], str] = _place,
) -> Documents:
    """Return the documents that the filter keeps, in order.

    Args:
        hook: the filter.
        documents: N documents; returned unchanged if all are kept.
        seeds: (N,) seeds from `document_seeds`.
        name: names a document by its origin, for errors.

    Raises:
        ConfigError: the hook raised, or did not return an (N,) bool array.
    """
    keep = _called("filter", hook, documents, seeds, name)
    refuse = partial(_refused, documents, name)
    if not isinstance(keep, np.ndarray) or keep.dtype != np.bool_:
        is_array = isinstance(keep, np.ndarray)
        kind = f"an array of {keep.dtype}" if is_array else type_in_words(keep)
        raise refuse(
            f'The filter "{hook.name}" returned {kind}.',
            "Return a numpy array of bool, for example `documents.lengths >= 64`.",
        )
    if keep.shape != (len(documents),):
        raise refuse(
            f'The filter "{hook.name}" returned a mask of shape {keep.shape} for '
            f"{len(documents)} documents.",
            "Return one value per document.",
        )
    return documents if keep.all() else documents.take(np.flatnonzero(keep))


def _check_arrays(hook: Hook, result: Documents, refuse: Refuse) -> None:
    offsets = result.offsets
    if (
        offsets.dtype != np.int64
        or offsets[0] < 0
        or offsets[-1] > len(result.tokens)
        or (np.diff(offsets) < 0).any()
    ):
        raise refuse(
            f'The map "{hook.name}" returned offsets that do not lie in its tokens in order.',
            "Return int64 offsets that never decrease, from 0 to at most the number of tokens.",
        )
    if result.loss_mask is not None and result.loss_mask.dtype != np.bool_:
        raise refuse(
            f'The map "{hook.name}" returned a loss mask of {result.loss_mask.dtype}.',
            "Return a mask of bool, or None.",
        )


def _check_ids(hook: Hook, result: Documents, vocab_size: int | None, refuse: Refuse) -> None:
    tokens = result.tokens[result.offsets[0] : result.offsets[-1]]
    if len(tokens) == 0:
        return
    lowest, highest = int(tokens.min()), int(tokens.max())
    if lowest < 0 or (vocab_size is not None and highest >= vocab_size):
        wrong = lowest if lowest < 0 else highest
        raise refuse(
            f'The map "{hook.name}" returned the token id {wrong}'
            + (f", and the vocabulary has {vocab_size} ids." if vocab_size is not None else "."),
            "Return ids of the tokenizer; the model has no embedding for others.",
        )


def _called(
    kind: str,
    hook: Hook,
    documents: Documents,
    seeds: NDArray[np.uint64],
    name: Callable[[np.void], str],
) -> Any:
    """Call the hook; reraise its exception as an error that names the document."""
    try:
        with user_code("hook_s"):
            return hook.function(documents, seeds)
    except Exception as error:
        where = f"at {name(documents.origin[0])} or after it in its block"
        for i in range(len(documents)):  # a hook's result does not depend on the block
            try:
                hook.function(documents[i : i + 1], seeds[i : i + 1])
            except Exception:
                where = f"at {name(documents.origin[i])}"
                break
        raise ConfigError(
            f'The {kind} "{hook.name}" raised {type(error).__name__}: {error} ({where}).',
            "Correct its function, or let a filter leave such documents out before a map.",
            setting=kind,
        ) from error


def _refused(
    documents: Documents, name: Callable[[np.void], str], fact: str, remedy: str
) -> ConfigError:
    return ConfigError(fact, remedy, document=name(documents.origin[0]) if len(documents) else None)


@dataclass(frozen=True, slots=True)
class Filtered:
    """Block stage that applies the user's filter."""

    hook: Hook

    @property
    def title(self) -> tuple[str, str]:
        """Kind of the stage, and the user's name for it."""
        return "filter", self.hook.name

    def describe(self) -> Mapping[str, Any]:
        """See `BlockStage`."""
        return {"filter": self.hook.name}

    def __call__(self, documents: Documents, place: Place) -> Documents:
        """See `BlockStage`."""
        if not len(documents):
            return documents
        seeds = document_seeds(place.seed, place.epoch, documents.origin)
        return apply_filter(self.hook, documents, seeds, place.name)


@dataclass(frozen=True, slots=True)
class Mapped:
    """Block stage that applies the user's map and drops documents that it empties."""

    hook: Hook
    vocab_size: int | None

    @property
    def title(self) -> tuple[str, str]:
        """Kind of the stage, and the user's name for it."""
        return "map", self.hook.name

    def describe(self) -> Mapping[str, Any]:
        """See `BlockStage`."""
        return {"map": self.hook.name}

    def __call__(self, documents: Documents, place: Place) -> Documents:
        """See `BlockStage`."""
        if not len(documents):
            return documents
        seeds = document_seeds(place.seed, place.epoch, documents.origin)
        documents = apply_map(self.hook, documents, seeds, self.vocab_size, place.name)
        return WithoutEmpty()(documents, place)


def add_filter(recipe: Recipe, function: Any) -> None:
    """Add the user's filter."""
    recipe.add("chosen", Filtered(as_hook("filter", function)))


def add_map(recipe: Recipe, function: Any) -> None:
    """Add the user's map, after the filter."""
    recipe.add("chosen", Mapped(as_hook("map", function), recipe.vocab_size))
