"""Which field of a record holds what: text or token ids, and a loss mask."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from streampack.errors import ConfigError

_USUAL = ("text", "tokens", "input_ids")
_LISTS = ("messages", "conversations")
_OF_CHATS = (*_LISTS, "completion", "chosen")
_IN_OTHER_FILES = "Pass files of JSON lines or Parquet with such records to sources.Chat(paths)"
_OF_LOSS = ("loss_mask", "labels")


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a record that are read.

    Attributes:
        tokenized: True if documents are token ids, False if they are text.
        document: the field with the document; None if a record is itself the document.
        loss_mask: the field with the loss mask, for token ids; None if there is none.
    """

    tokenized: bool
    document: str | None = None
    loss_mask: str | None = None

    @classmethod
    def named(
        cls, *, text: str | None, tokens: str | None, loss_mask: str | None, default: str | None
    ) -> Fields:
        """The fields that a source's arguments name.

        Args:
            text, tokens, loss_mask: the arguments.
            default: the field of text if neither `text` nor `tokens` is given.

        Raises:
            ConfigError: they do not go together.
        """
        if text is not None and tokens is not None:
            raise ConfigError(
                f"Both text={text!r} and tokens={tokens!r} are given.",
                "A document is read from one field.",
                "Pass one of them.",
            )
        if loss_mask is not None and tokens is None:
            raise ConfigError(
                f"loss_mask={loss_mask!r} is given without tokens.",
                "A loss mask has one value per token id, and text has no token ids yet.",
                "Pass tokens=, or leave loss_mask= out.",
            )
        if tokens is not None:
            return cls(True, tokens, loss_mask)
        return cls(False, default if text is None else text)

    def arguments(self) -> dict[str, str]:
        """The arguments of a source that name them."""
        named = {"tokens" if self.tokenized else "text": self.document, "loss_mask": self.loss_mask}
        return {name: field for name, field in named.items() if field is not None}


def chat_fields(names: Collection[str]) -> list[str]:
    """Those of a record's fields that hold conversations, as `sources.Chat` reads them."""
    return [name for name in names if name in _OF_CHATS]


def is_usual(names: Collection[str]) -> bool:
    """True if `usual_field` has something to go by: one field, or one that holds documents."""
    known = (*_USUAL, *_OF_CHATS)
    return len(names) == 1 or any(name in known for name in names)


def loss_field(names: Collection[str]) -> str | None:
    """The field beside token ids that says which of them are learnt, if nobody says so."""
    return next((name for name in _OF_LOSS if name in names), None)


def usual_field(
    names: Collection[str],
    what: str,
    example: Callable[[str], str],
    chats: str | None = None,
) -> str:
    """The field that holds the documents, if nobody says so: the only one, or "text", "tokens" or
    "input_ids" if one of them is there.

    Args:
        names: all fields.
        what: begins the sentence that ends with them: "a.parquet has the columns".
        example: how one is named, as code.
        chats: begins the sentence that says how these records are read as conversations; None if
            they are not, as they are.

    Raises:
        ConfigError: there is none or several such fields, or fields beside it say that it is a
            conversation.
    """
    found = [name for name in _USUAL if name in names] or list(names)[: len(names) == 1]
    beside = chat_fields(names)
    if not found and {"instruction", "output"} <= set(names):
        beside = ["output"]
    if any(name in ("tokens", "input_ids") for name in found):  # ids of pairs have "chosen" beside
        beside = [name for name in beside if name in _LISTS]
    if not found and not beside:
        consequence, remedy = "None of them is known to hold the documents.", ""
    elif beside:
        consequence = f'"{beside[0]}" holds conversations.'
        remedy = f"{chats or _IN_OTHER_FILES}, or "
        if chats and set(found) <= set(_LISTS) and beside[0] in _LISTS:
            raise ConfigError(f"{what} {_listed(names)}.", consequence, f"{chats}.")
    elif len(found) > 1:
        consequence, remedy = f"Both {found[0]!r} and {found[1]!r} may be the documents.", ""
    else:
        return found[0]
    name = (found or list(names) or ["text"])[0]
    remedy = f"{remedy}{'name' if remedy else 'Name'} one field: {example(name)}."
    raise ConfigError(f"{what} {_listed(names)}.", consequence, remedy)


def _listed(names: Collection[str]) -> str:
    return ", ".join(f'"{name}"' for name in list(names)[:30]) or "(none)"
