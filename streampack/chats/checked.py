"""CheckedRecords: conversations in records, with checks of the marks that exclude turns."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from streampack.chats.conversations import Conversation
from streampack.chats.earlier import read_otherwise
from streampack.chats.marks import refuse_unlearnt
from streampack.chats.records import conversation_of
from streampack.chats.unread import warn_unread
from streampack.errors import StateError

#: Revision of the reading of records, raised when a record makes another conversation.
REVISION = 2


@dataclass(frozen=True, slots=True)
class CheckedRecords:
    """Reader of the conversations in a source's records.

    Attributes:
        as_before: True for a run that revision 1 began; a record that it read otherwise ends it.
        source: number of the source in its process, to log once for each.
    """

    as_before: bool = False
    source: int = field(default_factory=itertools.count().__next__, repr=False, compare=False)

    def conversation_in(
        self, record: Mapping[str, Any], shape: str | None, declared: Collection[str]
    ) -> Conversation:
        """Return the conversation in a record of plain values.

        Args:
            record: the record.
            shape: its shape; None recognises it by the fields.
            declared: names of the document fields.

        Raises:
            BrokenDocumentError: the record has no conversation, or is not to be learnt.
            StateError: a run of revision 1 read the record otherwise.
        """
        if self.as_before and (name := read_otherwise(record, declared)):
            raise StateError(
                f'A record has "{name}", which the version that began this run did not read.',
                "Start a new run, or remove the field to continue with the same batches.",
            )
        conversation = conversation_of(record, shape)
        refuse_unlearnt(record, declared)
        warn_unread(record, self.source)
        return conversation
