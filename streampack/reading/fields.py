"""Which field of a record holds what: text or token ids, and loss masks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from streampack.errors import ConfigError

_TEXTS = ("text", "txt")
#: Usual names of fields with token ids.
IDS = ("tokens", "input_ids")
_LISTS = ("messages", "conversations")
_OF_CHATS = (*_LISTS, "completion", "chosen")
_IN_OTHER_FILES = "Pass files of JSON lines or Parquet with such records to sources.Chat(paths)"
#: What says which token ids are learnt, where it stands beside them: one that is in several of them
#: is learnt where all say so.
LOSS_FIELDS = ("loss_mask", "labels", "assistant_masks", "completion_mask")


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a record that are read.

    Attributes:
        tokenized: True if documents are token ids, False if they are text.
        document: the field with the document; None if a record is itself the document.
        loss_masks: the fields with loss masks, for token ids.
        masks_known: False until `with_masks` has looked for them, if nobody named any.
        unread: usual names of loss masks that were not there when `with_masks` looked; a document
            that has one would be read without it.
        texts: the field of texts beside token ids, where nobody said which of them are the
            documents.
        several: True if the field has lists of ids, which are the documents of a group.
    """

    tokenized: bool
    document: str | None = None
    loss_masks: tuple[str, ...] = ()
    masks_known: bool = True
    unread: tuple[str, ...] = ()
    texts: str | None = None
    several: bool = False

    @classmethod
    def named(
        cls,
        *,
        text: str | None,
        tokens: str | None,
        loss_mask: str | Sequence[str] | None,
        default: str | None,
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
        if loss_mask and tokens is None:
            raise ConfigError(
                f"loss_mask={loss_mask!r} is given without tokens.",
                "A loss mask has one value per token id, and text has no token ids yet.",
                "Pass tokens=, or leave loss_mask= out.",
            )
        if tokens is not None:
            return cls(True, tokens, named_masks(loss_mask), loss_mask is not None)
        return cls(False, default if text is None else text)

    def with_masks(self, kinds: Mapping[str, str], where: str) -> Fields:
        """These, and the loss masks beside token ids, if nobody said which there are.

        Args:
            kinds: "text", "tokens" or "mask" (numbers or booleans, a list), or "", by field.
            where: the records are, for messages.

        Raises:
            ConfigError: a field may be a mask, and its name does not say whether it is.
        """
        several = self.tokenized and kinds.get(self.document or "") == "several"
        if self.masks_known:
            return replace(self, several=several)
        others = {name: kind for name, kind in kinds.items() if name != self.document}
        found = tuple(name for name in LOSS_FIELDS if name in others)
        lists = [name for name, kind in others.items() if kind in ("tokens", "several", "mask")]
        unknown = [name for name in lists if may_be_mask(name)]
        if unknown and not found:
            raise ConfigError(
                f'{where} has "{unknown[0]}" beside the token ids in "{self.document}".',
                "Whether it says which tokens are learnt is unknown.",
                f"Pass loss_mask={unknown[0]!r} (--loss-mask) if it does, and loss_mask=[] "
                '(--loss-mask "") if it does not.',
            )
        unread = tuple(name for name in LOSS_FIELDS if name not in others)
        return replace(self, loss_masks=found, masks_known=True, unread=unread, several=several)

    def refuse_unread(self, names: Collection[str], where: str) -> None:
        """Raise `ConfigError` if files of these columns would be read without their loss masks."""
        for name in self.unread:
            if name in names and self.tokenized:
                raise ConfigError(
                    f'{where} has "{name}" beside the token ids, and the first file has not.',
                    "Its tokens would be learnt whatever that says.",
                    "Give it to all of them, or make them two sources of a Mixture; loss_mask=[] "
                    '(--loss-mask "") reads none.',
                )

    @property
    def loss_mask(self) -> str | list[str] | None:
        """The argument that names the loss masks."""
        return list(self.loss_masks) if self.loss_masks[1:] else next(iter(self.loss_masks), None)

    def arguments(self) -> dict[str, Any]:
        """The arguments of a source that name them."""
        masks = {"loss_mask": self.loss_mask or []} if self.tokenized and self.masks_known else {}
        return {"tokens" if self.tokenized else "text": self.document, **masks}


def may_be_mask(name: str) -> bool:
    """True if a list of that name beside token ids may say which of them are learnt."""
    plain = name.lower()
    other = "attention" in plain or "special_tokens" in plain
    return not other and (
        any(word in plain for word in ("mask", "label", "loss")) or plain.startswith("target")
    )


def named_masks(loss_mask: str | Sequence[str] | None) -> tuple[str, ...]:
    """The fields that the argument of a source names."""
    return (loss_mask,) if isinstance(loss_mask, str) else tuple(loss_mask or ())


def chat_fields(names: Collection[str]) -> list[str]:
    """Those of a record's fields that hold conversations, as `sources.Chat` reads them."""
    return [name for name in names if name in _OF_CHATS]


def is_usual(names: Collection[str]) -> bool:
    """True if `usual_fields` has something to go by: one field, or one that holds documents."""
    known = (*_TEXTS, *IDS, *_OF_CHATS)
    return len(names) == 1 or any(name in known for name in names)


def candidates(kinds: Mapping[str, str], loss_mask: str | Sequence[str] | None) -> list[str]:
    """The fields without those that cannot be the documents: masks that are named, what a pipeline
    adds for itself, and beside a text, what is named like token ids and holds none.
    """
    names = [name for name in kinds if name not in named_masks(loss_mask)]
    found = [name for name in names if not name.startswith("__")] or names
    if any(name in _TEXTS for name in found):
        found = [name for name in found if name not in IDS or kinds[name] in ("tokens", "several")]
    return found


def are_ids(kinds: Mapping[str, str], name: str) -> bool:
    """True for a field of token ids: what is named so, too, so that what is wrong is said of it."""
    return kinds.get(name) in ("tokens", "several") or (name in IDS and kinds.get(name) != "text")


def usual_fields(
    kinds: Mapping[str, str],
    loss_mask: str | Sequence[str] | None,
    what: str,
    example: Callable[[str], str],
    chats: str | None = None,
) -> Fields:
    """The fields that are read if nobody says which: the only one, or one of the usual names.
    Token ids go before texts: `Fields.texts` says whether there are both.

    Args:
        kinds: of all fields, by name; see `Fields.with_masks`.
        loss_mask: the fields of loss masks, if somebody named them.
        what: begins the sentence that ends with all names: "a.parquet has the columns".
        example: how a field is named, as code.
        chats: begins the sentence that says how these records are read as conversations; None if
            they are not, as they are.

    Raises:
        ConfigError: there is none or several such fields, or fields beside it say that it is a
            conversation.
    """
    names = candidates(kinds, loss_mask)
    name = _usual_field(names, what, example, chats)
    if not are_ids(kinds, name):
        return Fields.named(text=name, tokens=None, loss_mask=loss_mask, default=None)
    fields = Fields.named(text=None, tokens=name, loss_mask=loss_mask, default=None)
    beside = next((text for text in _TEXTS if name in IDS and text in names), None)
    return replace(fields, texts=beside)


def _usual_field(
    names: Sequence[str], what: str, example: Callable[[str], str], chats: str | None
) -> str:
    found = [name for name in IDS if name in names] or [name for name in _TEXTS if name in names]
    found = found or list(names)[: len(names) == 1]
    beside = chat_fields(names)
    if not found and {"instruction", "output"} <= set(names):
        beside = ["output"]
    if found and found[0] in IDS:  # ids of pairs have "chosen" beside
        beside = [name for name in beside if name in _LISTS]
    if not found and not beside:
        consequence, remedy = "None of them is known to hold the documents.", ""
    elif beside:
        consequence = f'With "{beside[0]}" they are what sources.Chat reads.'
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
