"""Reader of records with images, which makes blocks of texts or conversations."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import type_in_words
from streampack.chats.checked import CheckedRecords
from streampack.chats.conversations import Conversations
from streampack.chats.reader import plain_record
from streampack.chats.records import RECORD_FIELDS, shape_of
from streampack.documents.blocks import Documents, Texts
from streampack.documents.fields import FieldSpec
from streampack.errors import ConfigError
from streampack.images.attachments import MEDIA, Attachments, Reference, Size, objects
from streampack.images.chats import (
    IMAGES,
    Placeholders,
    has_parts,
    marked_text,
    references_of,
    with_marks,
)
from streampack.images.images import references_in
from streampack.sources.base import Block
from streampack.sources.records import (
    BrokenDocumentError,
    Read,
    document_in,
    record_block,
    require_field,
)
from streampack.storage.storage import Storage

logger = logging.getLogger(__name__)

#: Default fields of images; a record has at most one of them.
USUAL_FIELDS = ("images", "image")
#: Field of paths in the metadata of an imagefolder of datasets.
FILE_NAME = "file_name"


@dataclass(frozen=True, slots=True)
class ImageReader:
    """Make blocks of records with images; see `RecordReader`.

    Attributes:
        text: field of the text; None reads conversations.
        images: fields of the images, in order.
        sizes: fields of the images' heights and widths, or of a `MediaModel`'s sizes, or None.
        folder: base of relative paths.
        placeholder: text that marks an image in texts and messages; see `with_marks`.
        shape: shape of all conversations; None detects it from each record's fields.
        storage: access to URLs of images.
        checked: checks of each record's marks.
    """

    function: ClassVar[str] = ""
    text: str | None
    images: tuple[str, ...]
    sizes: tuple[str, ...] | None = None
    folder: str | None = None
    placeholder: str | None = None
    shape: str | None = None
    storage: Storage = field(default_factory=Storage)
    checked: CheckedRecords = field(default_factory=CheckedRecords)

    @property
    def columns(self) -> Sequence[str]:
        """Names of the fields that are read."""
        fields = RECORD_FIELDS if self.text is None else (self.text,)
        return (*fields, *self.images, *(self.sizes or ()))

    @property
    def media(self) -> tuple[str, ...]:
        """Names of the fields of media."""
        return self.images

    def hold_ids(self, names: Collection[str], where: str) -> bool:
        """Return False, since records with images never hold token ids.

        Raises:
            ConfigError: the fields contain neither the text nor a known shape of conversations.
        """
        held = self.text in names
        if self.text is None:
            try:
                held = self.shape is not None or shape_of(names) is not None
            except BrokenDocumentError:
                held = False
        fields = ", ".join(f'"{name}"' for name in sorted(names)[:30])
        if not held:
            raise ConfigError(
                f"{where} must have the field text={self.text!r}, or a conversation if that is "
                f"None, but has the fields {fields}.",
                "Pass text= with the field of the texts; None reads conversations.",
                setting="text",
                document=where,
            )
        unnamed = self.images == USUAL_FIELDS and not {*self.media} & {*names}
        if self.text is not None and unnamed and FILE_NAME in names:
            raise ConfigError(
                f"{where} has the fields {fields}, and images= is not given.",
                f'Pass images="{FILE_NAME}", whose paths count from the folder of the file; for '
                "texts alone pass sources.open(path) in place of Images.",
                setting="images",
                document=where,
            )
        if self.text is not None and {*names} - {self.text} and not {*self.media} & {*names}:
            logger.warning(
                "%s has the fields %s, and no image is read from it: images= names the field that "
                "holds them, by default %s.",
                where,
                fields,
                " or ".join(USUAL_FIELDS),
            )
        return False

    def size(self, record: Any, tokenized: bool) -> int:
        """Estimate a record's size as four bytes per token, to measure a corpus."""
        if not isinstance(record, Mapping):
            return 0
        media = {*self.media}
        return sum(_bytes_in(record.get(name), is_image=name in media) for name in self.columns)

    def block(
        self,
        items: Iterable[Any],
        origin: NDArray[np.void],
        types: FieldSpec,
        tokenized: bool,
        parse: Callable[[Any], Any] | None = None,
    ) -> tuple[Block, dict[int, str]]:
        """Read N items into a block without the broken ones, and return their problems by index."""
        attachments: dict[int, Attachments] = {}

        def read(item: tuple[int, Any]) -> Read:
            number, value = item
            record = value if parse is None else parse(value)
            references: list[Reference] = []
            content: Read
            if self.text is not None:
                _, text = document_in(record, self.text, False)
                content = record, marked_text(text, self.placeholders(record))
            else:
                plain = plain_record(record)
                plain, references = with_marks(plain, self.placeholders(plain), self.folder)
                conversation = self.checked.conversation_in(plain, self.shape, types.document)
                content = plain, conversation
            attachments[number] = self._attachments(record, references)
            return content

        kind = Conversations if self.text is None else Texts
        block, problems = record_block(enumerate(items), read, kind, origin, types)
        assert not isinstance(block, Documents)
        media = objects(
            [attached for number, attached in attachments.items() if number not in problems]
        )
        return replace(block, document_fields={**block.document_fields, MEDIA: media}), problems

    def placeholders(self, record: Mapping[str, Any]) -> Placeholders:
        """Return the placeholders that stand for media in a record's texts, by kind."""
        usual = "" if self.text is None and has_parts(record, [IMAGES]) else IMAGES.usual
        return [(IMAGES, usual if self.placeholder is None else self.placeholder)]

    def _attachments(self, record: Mapping[str, Any], of_parts: list[Reference]) -> Attachments:
        fields = [
            references_in(record.get(name), f'in "{name}"', self.folder) for name in self.images
        ]
        if self.images == USUAL_FIELDS and all(fields):
            raise BrokenDocumentError(
                f"has images in the fields {' and '.join(USUAL_FIELDS)}, so images= must name the "
                "one to read"
            )
        references = references_of(of_parts, sum(fields, ()))
        if self.sizes is None or not references:
            return Attachments(references, storage=self.storage)
        columns = []
        for name in self.sizes:
            require_field(record, name)
            value = record[name]
            listed = list(value) if hasattr(value, "__len__") else [value]
            # Null means no image.
            columns.append([number for number in listed if number is not None])
        sizes: list[Size] = []
        for size in zip(*columns, strict=False):
            for name, number in zip(self.sizes, size, strict=True):
                if not isinstance(number, (int, np.integer)) or number < 1:
                    raise BrokenDocumentError(f'has {type_in_words(number)} in "{name}"')
            sizes.append(tuple(map(int, size)))
        if len(sizes) != len(references):
            raise BrokenDocumentError(
                f"has {len(references)} images and {len(sizes)} sizes of images"
            )
        return Attachments(references, tuple(sizes), storage=self.storage)


#: Bytes of an image file per byte of text with the same number of tokens: a photograph of 1024 x
#: 768 pixels has 150 KB and 1,000 tokens.
_PER_BYTE = 36


def _bytes_in(value: Any, *, is_image: bool = False) -> int:
    if isinstance(value, bytes):
        return len(value) // _PER_BYTE
    if isinstance(value, str):  # base64, or a path
        return len(value) * 3 // 4 // _PER_BYTE if is_image or value[:5] == "data:" else len(value)
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return 0
    return sum(_bytes_in(each, is_image=is_image) for each in value)
