"""Blocks of conversations, or of ids and masks, from records, wherever these were."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Documents
from streampack.documents.conversations import Conversations
from streampack.documents.fields import FieldTypes
from streampack.errors import ConfigError
from streampack.reading.base import Block
from streampack.reading.fields import LOSS_FIELDS
from streampack.reading.nesting import MOST_NESTED
from streampack.reading.padding import with_masks
from streampack.reading.record_block import Read, masks_in, record_block
from streampack.reading.records import BrokenDocumentError, ids_of, require_field
from streampack.sources.chat.records import conversation_of, known_shapes, shape_of
from streampack.storage.remote import shown

_LEARNT = "\0learnt"  # a name that no field has
_UNWANTED = (
    'has a "label" that is false, as unwanted answers have (KTO), and would be learnt like the '
    'others; to have the label in batches, pass document_fields={"label": "bool"}'
)
_MASKS = ", ".join(f'"{name}"' for name in LOSS_FIELDS)


def field_names(items: Sequence[Any]) -> set[str]:
    """The fields that records in memory have; raises `ConfigError` if there are no records."""
    if not len(items):
        raise ConfigError(
            "There are no items in data.",
            "There is nothing to read.",
            "Pass data that holds records.",
        )
    names = {str(name) for item in items if isinstance(item, Mapping) for name in item}
    if not names:
        raise ConfigError(
            f"The first item of data is {items[0]!r:.80} ({type(items[0]).__name__}).",
            "A conversation is in a record, a mapping with fields.",
            'Pass records, such as [{"messages": messages} for messages in data]; paths go in a '
            "list.",
        )
    return names


def holds_ids(names: Collection[str], where: str, shape: str | None) -> bool:
    """True if records with these fields hold ids; raises `ConfigError` if they hold no chats."""
    try:
        if shape is not None or shape_of(names):
            return False
    except BrokenDocumentError as reason:
        raise ConfigError(
            f"{shown(where)} {str(reason).partition(';')[0]}.",
            "One record would be learnt in two ways.",
            'Pass shape="messages" or "sharegpt" for conversations, or shape="preference" for '
            "pairs.",
        ) from None
    if "input_ids" in names:
        return True
    there = ", ".join(f'"{name}"' for name in sorted(names)[:30])
    raise ConfigError(
        f"{shown(where)} has the fields {there}.",
        f'Chat reads {known_shapes()}; and "input_ids" with one of {_MASKS}.',
        "Bring the records into one of these forms.",
    )


def block_of(
    records: Iterable[Any],
    origin: NDArray[np.void],
    tokenized: bool,
    shape: str | None,
    types: FieldTypes,
    parse: Callable[[Any], Any] = lambda record: record,
) -> tuple[Block, dict[int, str]]:
    """What records hold, without the broken ones, and what is wrong with those, by number.

    Args:
        records: N of them, or what `parse` makes one of.
        origin: (N,) theirs.
        tokenized: they hold ids; otherwise conversations.
        shape: of all conversations; None tells it by each one's fields.
        types: the fields that are taken besides.
        parse: makes a record of an item; it may raise `BrokenDocumentError` too.
    """

    def read(item: Any) -> Read:
        record = _plain(parse(item))
        if tokenized:
            return _labelled_ids(record)
        made = conversation_of(record, shape)
        label = record.get("label")
        if isinstance(label, bool | np.bool_) and not label and "label" not in types.document:
            raise BrokenDocumentError(_UNWANTED)
        if made.rejected is not None:
            record |= {"chosen": True}  # filled in with the two documents
        return record, made

    kind, masks = (Documents, [_LEARNT]) if tokenized else (Conversations, [])
    return record_block(records, read, kind, origin, types, masks)


def _labelled_ids(record: dict[str, Any]) -> Read:
    """A record with the loss mask that all masks and labels in it make, and its "input_ids"."""
    require_field(record, "input_ids")
    ids = ids_of(record, "input_ids")
    there = [name for name in LOSS_FIELDS if record.get(name) is not None]
    if not there:
        raise BrokenDocumentError(f'has none of {_MASKS} beside "input_ids"')
    given = masks_in(record, len(ids), there)
    learnt, wrong = with_masks(Documents.from_arrays([ids]), {name: given[name] for name in there})
    if wrong:
        raise BrokenDocumentError(wrong[0])
    if not learnt.loss_mask_or_ones.any():
        raise BrokenDocumentError("has no token that carries loss")
    return record | {_LEARNT: learnt.loss_mask}, ids


def _plain(record: Any) -> dict[str, Any]:
    """A copy of a record, with lists where one in memory has arrays or tuples."""
    if not isinstance(record, Mapping):
        raise BrokenDocumentError(f"is of the type {type(record).__name__}, not a record")
    return {name: _listed(value) for name, value in record.items()}


def _listed(value: Any) -> Any:
    if isinstance(value, str | list):
        return value
    if isinstance(value, tuple):
        return list(value)
    return value.tolist() if getattr(value, "ndim", 0) else value


def record_size(value: Any, depth: int = 0) -> int:
    """About the bytes of a record, without what is nested deeper than one may be."""
    if isinstance(value, str):
        return len(value)
    if depth > MOST_NESTED:
        return 0
    if isinstance(value, Mapping):
        return sum(record_size(item, depth + 1) for item in value.values())
    if isinstance(value, list | tuple):
        is_ids = len(value) > 0 and isinstance(value[0], int)
        return 4 * len(value) if is_ids else sum(record_size(item, depth + 1) for item in value)
    return 4 * len(value) if getattr(value, "ndim", 0) else 4
