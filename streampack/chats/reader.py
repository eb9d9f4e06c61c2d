"""ChatReader: blocks of conversations, or of ids and masks, from records of any source."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampack.chats.checked import CheckedRecords
from streampack.chats.conversations import Conversations
from streampack.chats.records import PROMPTS, RECORD_FIELDS, known_shapes, prompt_of, shape_of
from streampack.documents.blocks import Documents
from streampack.documents.fields import FieldSpec
from streampack.errors import ConfigError
from streampack.files.json_records import MOST_NESTED, size_of
from streampack.sources.base import Block
from streampack.sources.fields import ATTENTION_MASK, LOSS_FIELDS
from streampack.sources.records import (
    BrokenDocumentError,
    Read,
    ids_of,
    record_block,
    require_field,
)

_IDS = "input_ids"


@dataclass(frozen=True, slots=True)
class ChatReader:
    """Makes blocks of chat records; see `RecordReader`.

    Attributes:
        shape: shape of all records; None recognises it by each record's fields.
        checked: checks of each record's marks.
        prompts: True if records hold messages that wait for an answer.
    """

    function: ClassVar[str] = ""
    shape: str | None = None
    checked: CheckedRecords = field(default_factory=CheckedRecords)
    prompts: bool = False

    @property
    def columns(self) -> Sequence[str]:
        """The fields to read of each record."""
        return (*RECORD_FIELDS, _IDS, *LOSS_FIELDS, ATTENTION_MASK)

    def hold_ids(self, names: Collection[str], where: str) -> bool:
        """Return True if records with these fields hold ids; `ConfigError` for no known shape."""
        try:
            prompts = self.prompts and not {*PROMPTS}.isdisjoint(names)
            if self.shape is not None or prompts or shape_of(names):
                return False
        except BrokenDocumentError as reason:
            raise ConfigError(
                f"{where} {str(reason).partition(';')[0]}.",
                'Pass shape="messages" or "sharegpt" for conversations, or shape="preference" for '
                "pairs.",
                document=where,
            ) from None
        if _IDS in names:
            return True
        fields = ", ".join(f'"{name}"' for name in sorted(names)[:30])
        masks = ", ".join(f'"{name}"' for name in LOSS_FIELDS)
        raise ConfigError(
            f"{where} has the fields {fields}.",
            f'Bring the records into a form of Chat: {known_shapes()}; or "{_IDS}" with {masks}.',
            document=where,
        )

    def size(self, record: Any, tokenized: bool) -> int:
        """Estimate the bytes of the documents in a record: one per character, four per id."""
        if tokenized and isinstance(record, Mapping):
            return size_of(record.get(_IDS))
        return size_of(record)

    def block(
        self,
        items: Iterable[Any],
        origin: NDArray[np.void],
        types: FieldSpec,
        tokenized: bool,
        parse: Callable[[Any], Any] | None = None,
    ) -> tuple[Block, dict[int, str]]:
        """Make a block of the valid items among N, and a dict from index to reason for others."""

        def read_ids(item: Any) -> Read:
            record = plain_record(item if parse is None else parse(item))
            require_field(record, _IDS)
            return record, ids_of(record[_IDS], f' in "{_IDS}"')

        def read_chat(item: Any) -> Read:
            record = plain_record(item if parse is None else parse(item))
            if self.prompts:
                return record, prompt_of(record)
            conversation = self.checked.conversation_in(record, self.shape, types.document)
            if conversation.rejected is not None:
                record |= {"chosen": True}  # filled in later, with the two documents
            return record, conversation

        if tokenized:
            return record_block(items, read_ids, Documents, origin, types, masks=None)
        return record_block(items, read_chat, Conversations, origin, types)


def plain_record(record: Any) -> dict[str, Any]:
    """Copy a record, with lists in place of the arrays and tuples of records in memory."""
    if not isinstance(record, Mapping):
        raise BrokenDocumentError(f"is of the type {type(record).__name__}, not a record")
    return {name: _listed(value) for name, value in record.items()}


def _listed(value: Any, depth: int = 0) -> Any:
    """Return the value with lists in place of arrays and tuples at every level."""
    if isinstance(value, str) or depth > MOST_NESTED:
        return value
    if isinstance(value, Mapping):
        return {name: _listed(inner, depth + 1) for name, inner in value.items()}
    if hasattr(value, "ndim"):  # a scalar of numpy becomes one of Python
        value = value.tolist()
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], int):  # a list of ids, or a mask
            return list(value)
        return [_listed(inner, depth + 1) for inner in value]
    return value
