"""Fields of a record: text or ids, the masks of tokens with loss, the mask of padding.

Padding is the tokens at which a document's attention mask is 0. Tokenizers that pad
(`padding="max_length"`) write such masks beside the ids. Padding lies at either end of a document,
and is removed with all values that belong to its tokens.

Tokens with loss are marked by masks of 0 and 1, or by labels: the token's own id where it carries
loss, and -100 elsewhere, not shifted. Fields with names that end in "labels" hold labels, others
masks. With several fields, a token carries loss if it does so in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Documents, offsets_of
from streampack.documents.fields import FieldSpec
from streampack.errors import ConfigError
from streampack.sources.arguments import NamedFields

if TYPE_CHECKING:
    from typing_extensions import Unpack

LABELS = "labels"
#: The label of a token without loss, as `torch.nn.CrossEntropyLoss` has it.
IGNORED = -100


def joint_mask(masks: Iterable[NDArray[np.bool_]]) -> NDArray[np.bool_] | None:
    """Return the (T,) conjunction of masks (T,); None if there are no masks."""
    columns = list(masks)
    return np.logical_and.reduce(columns) if columns[1:] else next(iter(columns), None)


def masks_of_rows(
    values: NDArray[Any],
    ids: NDArray[Any],
    offsets: NDArray[np.int64],
    name: str,
    reasons: dict[int, str],
) -> NDArray[np.bool_]:
    """Return the (T,) mask of tokens with loss, of N documents end to end.

    Args:
        values: (T,) booleans, or whole numbers: 0 and 1, or labels.
        ids: (T,) token ids of the documents.
        offsets: (N + 1,) offsets of the documents.
        name: name of the field.
        reasons: gets the reason for each broken document, by its index.
    """
    labels = name.endswith(LABELS) and values.dtype.kind != "b"
    mask: NDArray[np.bool_] = values != IGNORED if labels else values == 1
    wrong = mask & (values != ids) if labels else ~mask & (values != 0)
    places = np.flatnonzero(wrong)
    rows, first = np.unique(np.searchsorted(offsets, places, "right") - 1, return_index=True)
    for row, place in zip(rows.tolist(), places[first].tolist(), strict=True):
        at, value = place - int(offsets[row]), values[place]
        reasons.setdefault(
            row,
            f"has the label {value} at token {at}, which has the id {ids[place]}; a label is the "
            f"token's own id or {IGNORED} (it is the model that shifts)"
            if labels
            else f'has the value {value} at token {at} in "{name}", so it is no mask of 0 and 1; '
            f'fields of labels have names that end in "{LABELS}"',
        )
    return mask


ATTENTION_MASK = "attention_mask"


def kept_tokens(
    values: NDArray[Any], offsets: NDArray[np.int64], reasons: dict[int, str]
) -> NDArray[np.bool_] | None:
    """Return a (T,) mask that is False at padding, of N documents; None without padding.

    Args:
        values: (T,) attention masks, 0 and 1.
        offsets: (N + 1,) offsets of the documents, which lie end to end.
        reasons: gets the reason for each broken document, by its index.
    """
    kept: NDArray[np.bool_] = values == 1
    if kept.all():
        return None
    row = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    for wrong in np.unique(row[~kept & (values != 0)]).tolist():
        reasons.setdefault(wrong, f'has values other than 0 and 1 in "{ATTENTION_MASK}"')
    begins = kept & np.append(True, ~kept[:-1] | (row[1:] != row[:-1]))
    for wrong in np.flatnonzero(np.bincount(row[begins], minlength=len(offsets) - 1) > 1).tolist():
        reasons.setdefault(
            wrong,
            f'has zeros between ones in "{ATTENTION_MASK}", and padding lies at the ends of a '
            "document",
        )
    return kept


def with_masks(
    documents: Documents, masks: Mapping[str, NDArray[Any]]
) -> tuple[Documents, dict[int, str]]:
    """Attach the masks and labels of T tokens to N documents end to end, and drop padding.

    Args:
        documents: documents in an array of T tokens, without loss masks.
        masks: (T,) values by name of the field: attention masks, loss masks or labels.

    Returns:
        All documents, and a dict from index to reason for the broken ones.
    """
    reasons: dict[int, str] = {}
    ids, offsets = documents.tokens, documents.offsets
    names = [name for name in masks if name != ATTENTION_MASK]
    found = (masks_of_rows(masks[name], ids, offsets, name, reasons) for name in names)
    attended = masks.get(ATTENTION_MASK)
    kept = None if attended is None else kept_tokens(attended, offsets, reasons)
    return without_padding(replace(documents, loss_mask=joint_mask(found)), kept), reasons


def without_padding(documents: Documents, kept: NDArray[np.bool_] | None) -> Documents:
    """Return documents in an array of T tokens without the tokens outside of `kept` (T,)."""
    if kept is None:
        return documents
    return replace(
        documents,
        tokens=documents.tokens[kept],
        offsets=offsets_of(kept.astype(np.int64))[documents.offsets],
        loss_mask=None if documents.loss_mask is None else documents.loss_mask[kept],
        token_fields={name: values[kept] for name, values in documents.token_fields.items()},
    )


#: Usual names of fields with texts and with token ids, and of such files in tar shards, beside
#: "tokens.npy" and "json:text".
TEXTS = ("text", "txt")
IDS = ("tokens", "input_ids", "npy")
#: Usual names of loss masks and labels beside token ids. With several, a token is learnt if it is
#: learnt in all of them.
LOSS_FIELDS = ("loss_mask", "labels", "assistant_masks", "completion_mask")


class RecordReader(Protocol):
    """Maker of blocks from whole records, for documents that are not one field of a record."""

    @property
    def columns(self) -> Sequence[str]:
        """The fields to read of each record."""

    @property
    def function(self) -> str:
        """Name of the user's function that is applied to records with all their fields, or ""."""

    def hold_ids(self, names: Collection[str], where: str) -> bool:
        """Return True if records with these fields hold ids; raise `ConfigError` if they hold no
        document.
        """

    def size(self, record: Any, tokenized: bool) -> int:
        """Estimate the bytes of the documents in a record: one per character, four per id."""

    def block(
        self,
        items: Iterable[Any],
        origin: NDArray[np.void],
        types: FieldSpec,
        tokenized: bool,
        parse: Callable[[Any], Any] | None = None,
    ) -> tuple[Any, dict[int, str]]:
        """Make a block of the valid items among N, and a dict from index to reason for the others.

        Args:
            items: N records, or inputs of `parse`.
            origin: (N,) origins of the items.
            types: the fields to read beside the documents.
            tokenized: the result of `hold_ids`.
            parse: makes a record of an item; raises `BrokenDocumentError` for an invalid item.
        """


@dataclass(frozen=True, slots=True)
class RecordSchema:
    """The fields of a record that are read.

    Attributes:
        tokenized: True if documents are token ids, False if they are text.
        document: the field with the document; None if a record is itself the document; "" until
            `found_in` has chosen it.
        loss_masks: the fields with loss masks, for token ids.
        masks_known: False until `found_in` has looked for loss masks, if no argument names any.
        unread: usual names of loss masks that `found_in` did not find; a document that has one
            would be read without it.
        others: fields beside token ids that are not read, except texts.
        several: True if the field has lists of ids, which are the documents of a group.
        records: reader of whole records, in place of a field.
    """

    tokenized: bool
    document: str | None = None
    loss_masks: tuple[str, ...] = ()
    masks_known: bool = True
    unread: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    several: bool = False
    records: RecordReader | None = None

    @classmethod
    def named(cls, *, default: str | None = "", **named: Unpack[NamedFields]) -> RecordSchema:
        """Return the fields that a source's arguments name.

        Args:
            named: the arguments.
            default: `document` if neither `text` nor `tokens` is given.

        Raises:
            ConfigError: the arguments exclude each other.
        """
        text, tokens = named.get("text"), named.get("tokens")
        loss_mask = named.get("loss_mask")
        if text is not None and tokens is not None:
            raise ConfigError(
                f"Only one of text and tokens may be set, got text={text!r} and tokens={tokens!r}.",
                "Pass one of them.",
                setting="tokens",
            )
        document = default if text is None else text
        if tokens is None and document == "":
            return cls(False, "", named_masks(loss_mask), loss_mask is not None)
        if loss_mask and tokens is None:
            raise _mask_of_text(loss_mask)
        if tokens is not None:
            return cls(True, tokens, named_masks(loss_mask), loss_mask is not None)
        return cls(False, document)

    @property
    def known(self) -> bool:
        """True if the field with the documents is known."""
        return self.document != ""

    def found_in(self, kinds: Mapping[str, str], where: str) -> RecordSchema:
        """Fill in the documents' field and the loss masks beside ids, if no argument names them.

        Documents are in the one field that has a usual name and its type, or else in the only
        field.

        Args:
            kinds: "text", "tokens", "several" (lists of token lists), "mask" (a list of numbers or
                booleans) or "", by field.
            where: name of the records' file or table, for messages.

        Raises:
            ConfigError: no field, or more than one, may hold the documents.
        """
        if self.records is not None:
            tokenized = self.records.hold_ids(kinds, where)
            several = getattr(self.records, "several", False)
            return replace(self, tokenized=tokenized, document=None, several=several)
        return self.with_document(kinds, where).with_masks(kinds)

    def with_masks(self, kinds: Mapping[str, str]) -> RecordSchema:
        """Fill in the loss masks among fields of these kinds, if no argument names any."""
        if not self.tokenized:
            return self
        several = kinds.get(self.document or "") == "several"
        if self.masks_known:
            return replace(self, several=several)
        beside = [name for name in kinds if name != self.document and name[:2] != "__"]
        found = tuple(name for name in LOSS_FIELDS if name in beside)
        return replace(
            self,
            several=several,
            loss_masks=found,
            masks_known=True,
            unread=tuple(name for name in LOSS_FIELDS if name not in beside),
            others=tuple(
                n for n in beside if n not in (*found, ATTENTION_MASK) and kinds[n] != "text"
            ),
        )

    def with_document(self, kinds: Mapping[str, str], where: str) -> RecordSchema:
        """Fill in the documents' field, if no argument names it; see `found_in`."""
        if self.known:
            return self
        given = [n for n in kinds if not {n, _plain(n)} & {*self.loss_masks}]
        # Names of pipelines, such as "__key__", are skipped.
        names = [name for name in given if not name.startswith("__")] or given
        fits = [name for name in names if is_usual(name, kinds[name])]
        fits = fits or [name for name in names if _plain(name) in (*TEXTS, *IDS)]
        if not fits and len(names) == 1 and kinds[names[0]]:
            fits = names
        if len(fits) != 1:
            from streampack.wrong_calls.corpora import unknown_document

            raise unknown_document(fits, {name: kinds[name] for name in names}, where)
        kind = kinds[fits[0]]
        tokenized = kind in ("tokens", "several") or (_plain(fits[0]) in IDS and kind != "text")
        if not tokenized and self.loss_masks:
            raise _mask_of_text(self.loss_masks)
        known = self.masks_known or not tokenized
        return replace(self, tokenized=tokenized, document=fits[0], masks_known=known)

    def refuse_unread(self, names: Collection[str], where: str) -> None:
        """Raise `ConfigError` if files of these columns would be read without their loss masks."""
        for name in self.unread:
            if name in names and self.tokenized:
                raise ConfigError(
                    f'{where} has "{name}" beside the token ids, and the first file has not.',
                    "Give it to all of them, or make them two sources of a Mixture; loss_mask=[] "
                    '(--loss-mask "") reads none.',
                    setting="loss_mask",
                )

    @property
    def by_function(self) -> dict[str, str]:
        """Part of the fingerprint: the name of the function that is applied to records."""
        name = "" if self.records is None else self.records.function
        return {"record_function": name} if name else {}

    @property
    def in_words(self) -> str:
        """Description of the documents: "token ids in 'tokens'"."""
        if self.records is not None:
            return "records"
        where = "" if self.document is None else f" in {self.document!r}"
        return f"{'token ids' if self.tokenized else 'texts'}{where}"

    @property
    def loss_mask(self) -> str | list[str] | None:
        """The argument that names the loss masks."""
        return list(self.loss_masks) if self.loss_masks[1:] else next(iter(self.loss_masks), None)


def is_usual(name: str, kind: str) -> bool:
    """Return True for a usual name of a field with documents, if the field has the right type."""
    plain = _plain(name)
    return (kind == "text" and plain in TEXTS) or (kind in ("tokens", "several") and plain in IDS)


def _plain(name: str) -> str:
    """Return a field's name without the file of a tar shard before it, or that file's ending."""
    return name.rpartition(":")[2].removesuffix(".npy")


def named_masks(loss_mask: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the fields that the argument `loss_mask` of a source names."""
    return (loss_mask,) if isinstance(loss_mask, str) else tuple(loss_mask or ())


def _mask_of_text(loss_mask: Any) -> ConfigError:
    return ConfigError(
        f"loss_mask={loss_mask!r} is given without tokens.",
        "Pass tokens=, or leave loss_mask= out.",
        setting="loss_mask",
    )
