"""TokenRules: the ids that mark documents and padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from streampack.arguments import explained, one_of, whole_number
from streampack.errors import ConfigError

EosRule = Literal["ensure", "append", "as-is"]


def check_rule(rule: str) -> None:
    """Raise `ConfigError` unless `rule` is an `EosRule`."""
    one_of("eos", rule, get_args(EosRule))


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
