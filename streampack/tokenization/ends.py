"""Addition of EOS and BOS tokens to blocks, and the EOS stage for documents of token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Documents, gather_slices, offsets_of
from streampack.errors import ConfigError
from streampack.stages.base import Place
from streampack.stages.token_rules import EosRule, check_rule

if TYPE_CHECKING:
    from streampack.stages.recipe import Recipe


def apply_eos(
    documents: Documents,
    rule: EosRule,
    eos_id: int | None,
    *,
    only: NDArray[np.bool_] | None = None,
) -> Documents:
    """Append `eos_id` to documents.

    Args:
        documents: N documents; returned unchanged if nothing is added.
        rule: "ensure" adds EOS where it is missing, "append" always, "as-is" never. An empty
            document stays empty. Added tokens count in the loss.
        eos_id: the EOS id; None is allowed for "as-is" only.
        only: (N,) bool mask of the documents that may get EOS; None means all.

    Raises:
        ConfigError: the id is missing or does not fit the documents' dtype.
    """
    check_rule(rule)
    if rule == "as-is":
        return documents
    if eos_id is None:
        raise missing_id("eos", f'eos="{rule}"', 'use eos="as-is"')
    add = documents.lengths > 0
    if rule == "ensure" and len(documents.tokens):
        add &= documents.tokens[np.maximum(documents.offsets[1:] - 1, 0)] != eos_id
    if only is not None:
        add &= only
    return _extend(documents, add, eos_id, at_head=False)


def apply_bos(
    documents: Documents,
    bos_id: int | Sequence[int] | None,
    *,
    only: NDArray[np.bool_] | None = None,
    counts: bool = True,
) -> Documents:
    """Prepend `bos_id` to documents that do not begin with it; empty ones stay empty.

    Args:
        documents: N documents.
        bos_id: the BOS id, or the ids that documents must begin with.
        only: (N,) bool mask of the documents that may get BOS; None means all.
        counts: added tokens carry loss.

    Raises:
        ConfigError: the id is missing or does not fit the documents' dtype.
    """
    if bos_id is None:
        raise missing_id("bos", "bos=True", "use bos=False")
    ids = [*bos_id] if isinstance(bos_id, Sequence) else [bos_id]
    add = documents.lengths < len(ids)
    heads = documents.offsets[:-1]
    for place, token in enumerate(ids):
        at = np.minimum(heads + place, max(len(documents.tokens) - 1, 0))
        add |= documents.tokens[at] != token if len(documents.tokens) else False
    add &= documents.lengths > 0
    if only is not None:
        add &= only
    for token in reversed(ids):
        documents = _extend(documents, add, token, at_head=True, counts=counts)
    return documents


def _extend(
    documents: Documents,
    add: NDArray[np.bool_],
    token: int,
    *,
    at_head: bool,
    counts: bool = True,
) -> Documents:
    """Add one token at the start or end of documents.

    Args:
        documents: N documents.
        add: (N,) bool mask of the documents that get the token.
        token: the id. Token fields are 0 there.
        at_head: add it at the start instead of the end.
        counts: the token carries loss, in documents with a loss mask.
    """
    if not add.any():
        return documents
    dtype = documents.tokens.dtype
    if token > np.iinfo(cast(Any, dtype)).max:
        raise ConfigError(
            f"The id must fit the documents' dtype, {dtype}, got {token}.",
            "Pass the id of the tokenizer with which the documents were made.",
            setting="eos_id",
        )
    # The token is stored once, after all values, and gathered as a piece wherever it is added.
    places = np.flatnonzero(add) + (not at_head)
    starts = np.insert(documents.offsets[:-1], places, len(documents.tokens))
    pieces = offsets_of(np.insert(documents.lengths, places, 1))

    def extended(values: NDArray[Any], added: Any) -> NDArray[Any]:
        last = np.full((1, *values.shape[1:]), added, dtype=values.dtype)
        return gather_slices(np.concatenate([values, last]), starts, pieces)

    mask = documents.loss_mask
    return replace(
        documents,
        tokens=extended(documents.tokens, token),
        offsets=offsets_of(documents.lengths + add),
        loss_mask=None if mask is None else extended(mask, counts),
        token_fields={name: extended(values, 0) for name, values in documents.token_fields.items()},
    )


def missing_id(kind: str, setting: str, alternative: str) -> ConfigError:
    """Return the error for a rule that needs a missing id."""
    return ConfigError(
        f"{setting} needs an id, but the tokenizer declares none.",
        f"Pass {kind}_id={' (--eos-id)' if kind == 'eos' else ''}, or {alternative}.",
        setting=kind,
    )


@dataclass(frozen=True, slots=True)
class Ended:
    """Apply the EOS rule to documents that come as token ids."""

    rule: EosRule
    eos_id: int | None

    def describe(self) -> Mapping[str, Any]:
        return {"eos": [self.rule, self.eos_id]}

    def __call__(self, documents: Documents, place: Place) -> Documents:
        return apply_eos(documents, self.rule, self.eos_id)


def add(recipe: Recipe, rule: EosRule) -> None:
    """Add the stage that applies the EOS rule to documents that come as token ids.

    Raises:
        ConfigError: the EOS id is unknown.
    """
    numbers = [n for n, part in enumerate(recipe.source._parts.values()) if part.tokenized]
    if numbers and recipe.eos_id is None:
        raise ConfigError(
            f'eos="{rule}" needs the id of EOS, which is unknown.',
            "Pass token_rules=TokenRules(eos_id=...), or a tokenizer that declares it.",
            setting="token_rules",
        )
    for number in numbers:
        recipe.add("ended", Ended(rule, recipe.eos_id), number)
