"""Rules for special token ids: the ends of documents, padding, and the vocabulary's size."""

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
    """Rules for special token ids, where they differ from the tokenizer's.

    Args:
        eos: "ensure" (append an end-of-document id where it is missing), "append" (always) or
            "as-is" (never). None means "ensure" for text and "as-is" for documents that come as
            token ids.
        eos_id: end-of-document id. None uses the tokenizer's.
        pad_id: id that fills padding. None uses the tokenizer's, or 0. The value has no effect on
            training: padding has its own attention segments and no loss.
        vocab_size: bound for ids; larger ones are refused. None uses the tokenizer's.
        special_tokens_in_text: policy for special tokens in the text of documents, such as
            "<|endoftext|>" in a web page: "encode" turns it into that token, "split" treats it as
            ordinary text. None keeps the tokenizer's setting, usually "encode". Rendered
            conversations consist of special tokens, so they are always encoded.

    Raises:
        ConfigError: an id is not a token id, or not below `vocab_size`.
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
    """Raise `ConfigError` unless `rule` is a `SpecialInText`."""
    one_of("special_tokens_in_text", rule, get_args(SpecialInText))


def checked_id(name: str, token: Any, size: int | None) -> int | None:
    """Return an id as an int, or None.

    Raises:
        ConfigError: it is not a token id, or not below the vocabulary's size.
    """
    if token is None:
        return None
    number = whole_number(name, token, least=0, most=(1 << 32) - 1)
    if size is not None and number >= size:
        raise ConfigError(
            f"{name} must be below the vocabulary's size of {size} ids, got {number}.",
            "Pass a smaller id; or, if the model's embedding has more rows, their number as "
            "vocab_size.",
            setting=name,
        )
    return number
