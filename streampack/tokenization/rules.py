"""TokenRules: the ids that mark documents and padding; EOS and BOS added to blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import explained, one_of, whole_number
from streampack.documents.blocks import Documents, gather_ragged, offsets_of, words_of
from streampack.errors import ConfigError

EosRule = Literal["ensure", "append", "as-is"]


def apply_eos(
    documents: Documents,
    rule: EosRule,
    eos_id: int | None,
    *,
    only: NDArray[np.bool_] | None = None,
) -> Documents:
    """The documents with `eos_id` at their ends.

    Args:
        documents: N documents; returned as they are if nothing is added.
        rule: "ensure" adds where it is missing, "append" always, "as-is" never. An empty
            document stays empty. Added tokens count in the loss.
        eos_id: may be None for "as-is" only.
        only: (N,) true for those that may get one; None is all.
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
    bos_id: int | None,
    *,
    only: NDArray[np.bool_] | None = None,
    counts: bool = True,
) -> Documents:
    """The documents with `bos_id` before each that does not begin with it; empty ones stay so.

    `only` (N,) is true for those that may get one, None is all; `counts` says if it carries loss.
    """
    if bos_id is None:
        raise missing_id("bos", "bos=True", "use bos=False")
    add = documents.lengths > 0
    if len(documents.tokens):
        heads = np.minimum(documents.offsets[:-1], len(documents.tokens) - 1)
        add &= documents.tokens[heads] != bos_id
    if only is not None:
        add &= only
    return _extend(documents, add, bos_id, at_head=True, counts=counts)


def _extend(
    documents: Documents,
    add: NDArray[np.bool_],
    token: int,
    *,
    at_head: bool,
    counts: bool = True,
) -> Documents:
    """The documents with one `token` more, at the start or end of those where `add` (N,) is True.

    `counts` is True if it carries loss, in documents that have a loss mask. Token fields have 0.
    """
    if not add.any():
        return documents
    dtype = documents.tokens.dtype
    if token > np.iinfo(cast(Any, dtype)).max:
        raise ConfigError(
            f"The id {token} is added to documents of {dtype}.",
            "Pass the id of the tokenizer that the documents were made with.",
            setting="eos_id",
        )
    # The added token is the last of the values, and a piece of one token wherever it is added.
    places = np.flatnonzero(add) + (not at_head)
    starts = np.insert(documents.offsets[:-1], places, len(documents.tokens))
    pieces = offsets_of(np.insert(documents.lengths, places, 1))

    def extended(values: NDArray[Any], added: Any) -> NDArray[Any]:
        values = np.append(values, np.array(added, dtype=values.dtype))
        out = np.empty(pieces[-1], dtype=values.dtype)
        gather_ragged(words_of(values), starts, pieces, words_of(out))
        return out

    mask = documents.loss_mask
    return replace(
        documents,
        tokens=extended(documents.tokens, token),
        offsets=offsets_of(documents.lengths + add),
        loss_mask=None if mask is None else extended(mask, counts),
        token_fields={name: extended(values, 0) for name, values in documents.token_fields.items()},
    )


def check_rule(rule: str) -> None:
    """Raise `ConfigError` unless `rule` is an `EosRule`."""
    one_of("eos", rule, get_args(EosRule))


def missing_id(kind: str, setting: str, alternative: str) -> ConfigError:
    """The error for a rule that needs an id which is not known."""
    return ConfigError(
        f"{setting} needs an id, and the tokenizer declares none.",
        f"Pass {kind}_id={' (--eos-id)' if kind == 'eos' else ''}, or {alternative}.",
        setting=kind,
    )


SpecialInText = Literal["encode", "split"]


@explained
@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """What the run knows of token ids, if it is not taken from the tokenizer.

    Args:
        eos: "ensure" (append an end-of-document id where missing), "append" or "as-is"; None is
            "ensure" for text and "as-is" for documents that are token ids already.
        eos_id: the end-of-document id; None is the tokenizer's.
        pad_id: what padding is filled with; None is the tokenizer's, or else 0, which nothing
            reads: padding has its own attention segments and no loss.
        vocab_size: ids must be below it; None is the tokenizer's.
        special_tokens_in_text: what happens to a special token that a text writes, such as
            "<|endoftext|>" in a web page: "encode" makes it that token, "split" ordinary text.
            None is the tokenizer's own rule, which is mostly "encode". Rendered conversations
            consist of special tokens, so theirs are always encoded.

    Raises:
        ConfigError: an id is not a token id, or not in the vocabulary.
    """

    eos: EosRule | None = None
    eos_id: int | None = None
    pad_id: int | None = None
    vocab_size: int | None = None
    special_tokens_in_text: SpecialInText | None = None

    def __post_init__(self) -> None:
        if self.eos is not None:
            check_rule(self.eos)
        if self.special_tokens_in_text is not None:
            check_special_rule(self.special_tokens_in_text)
        size = self.vocab_size
        if size is not None:
            size = whole_number("vocab_size", size, most=1 << 32)
            object.__setattr__(self, "vocab_size", size)
        for name in ("eos_id", "pad_id"):
            object.__setattr__(self, name, checked_id(name, getattr(self, name), size))


def check_special_rule(rule: Any) -> None:
    """Raise `ConfigError` unless it is a rule for special tokens in texts."""
    one_of("special_tokens_in_text", rule, get_args(SpecialInText))


def checked_id(name: str, token: Any, size: int | None) -> int | None:
    """An id as a plain int, if there is one.

    Raises:
        ConfigError: it is no token id, or not below the size of the vocabulary.
    """
    if token is None:
        return None
    number = whole_number(name, token, least=0, most=(1 << 32) - 1)
    if size is not None and number >= size:
        raise ConfigError(
            f"{name} is {number}, and the vocabulary has {size} ids.",
            "Pass an id below that; or, if the model's embedding has more rows, their number as "
            "vocab_size.",
            setting=name,
        )
    return number
