"""Reader of records with films or sounds, which makes blocks of texts or conversations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from streampack.arguments import type_in_words
from streampack.chats.conversations import MEDIA_PARTS
from streampack.images.attachments import (
    NOUNS,
    Attachments,
    MediaSettings,
    Medium,
    Reference,
    Size,
)
from streampack.images.chats import IMAGES, MediumParts, Placeholders, has_parts, references_of
from streampack.images.images import references_in
from streampack.images.reader import ImageReader
from streampack.sources.records import BrokenDocumentError, require_field


class MediaColumns(NamedTuple):
    """Fields with films or sounds.

    Attributes:
        kind: "video" or "audio".
        fields: fields of the media, in order.
        usual: True if a record has at most one of them.
        sizes: fields of the media's sizes, or None.
        size: function from the numbers in these to a size; raises `ValueError`.
        count_packets: read files whole if their heads do not tell the size.
        placeholder: text that marks a medium in texts and messages; None means the usual one.
    """

    kind: str
    fields: tuple[str, ...]
    usual: bool
    sizes: tuple[str, ...] | None
    size: Callable[..., Size]
    count_packets: bool = False
    placeholder: str | None = None

    @property
    def parts(self) -> MediumParts:
        """How messages have these media."""
        (mark,) = (mark for mark, kind in MEDIA_PARTS.items() if kind == self.kind)
        types = (self.kind, f"{self.kind}_url", f"input_{self.kind}")
        return MediumParts(mark, types, f"<{self.kind}>", self.medium, alone=True)

    def medium(self, reference: Reference, size: Size | None = None) -> Medium:
        """Return a reference as a medium."""
        return Medium(self.kind, reference, MediaSettings(size, self.count_packets))


@dataclass(frozen=True, slots=True)
class MediaReader(ImageReader):
    """Make blocks of records with films or sounds, and images.

    Attributes:
        others: fields of films or sounds.
    """

    others: MediaColumns | None = None

    @property
    def columns(self) -> Sequence[str]:
        """Names of the fields that are read."""
        before = super(MediaReader, self).columns
        return (*before, *self._others.fields, *(self._others.sizes or ()))

    @property
    def media(self) -> tuple[str, ...]:
        """Names of the fields of media."""
        return (*self.images, *self._others.fields)

    @property
    def _others(self) -> MediaColumns:
        assert self.others is not None
        return self.others

    def placeholders(self, record: Mapping[str, Any]) -> Placeholders:
        """Return the placeholders of media in a record's texts.

        In records with films alone, "<image>" stands for a film, as in LLaVA-Video's.
        """
        parts, placeholder = self._others.parts, self._others.placeholder
        usual = not (self.text is None and has_parts(record, [IMAGES, parts]))
        if usual and placeholder is None and self._others.kind == "video":
            images = any(references_in(record.get(name), f'in "{name}"') for name in self.images)
            texts = [value for name, value in record.items() if name not in self.media]
            if not images and parts.usual not in str(texts):
                return [(parts, IMAGES.usual)]
        mark = (parts.usual if usual else "") if placeholder is None else placeholder
        images_too = [(IMAGES, IMAGES.usual if usual else "")] if self.images else []
        return [*images_too, (parts, mark)]

    def _attachments(self, record: Mapping[str, Any], of_parts: list[Reference]) -> Attachments:
        others, noun = self._others, NOUNS[self._others.kind]
        images = [each for each in of_parts if not isinstance(each, Medium)]
        attached = ImageReader._attachments(self, record, images)
        fields = [
            references_in(record.get(name), f'in "{name}"', self.folder) for name in others.fields
        ]
        if others.usual and all(fields):
            raise BrokenDocumentError(
                f"has {noun}s in the fields {' and '.join(others.fields)}, so {others.kind}s= must "
                "name the one to read"
            )
        inside: list[Reference] = [each for each in of_parts if isinstance(each, Medium)]
        media = references_of(inside, tuple(others.medium(each) for each in sum(fields, ())))
        if others.sizes is not None and media:
            sizes = self._sizes(record, others.sizes)
            if len(sizes) != len(media):
                raise BrokenDocumentError(
                    f"has {len(media)} {noun}s and {len(sizes)} sizes of {noun}s"
                )
            media = tuple(
                others.medium(medium.reference, size)
                for medium, size in zip(media, sizes, strict=True)
            )
        return Attachments((*attached.references, *media), storage=self.storage)

    def _sizes(self, record: Mapping[str, Any], names: Sequence[str]) -> list[Size]:
        """Return the sizes of media by a record's fields, which hold numbers or lists."""
        columns = []
        for name in names:
            require_field(record, name)
            value = record[name]
            listed = list(value) if hasattr(value, "__len__") else [value]
            columns.append([number for number in listed if number is not None])
            for number in columns[-1]:
                if not isinstance(number, (int, float, np.integer, np.floating)):
                    raise BrokenDocumentError(f'has {type_in_words(number)} in "{name}"')
        if len({*map(len, columns)}) > 1:
            raise BrokenDocumentError("has fields of sizes with different lengths")
        try:
            return [self._others.size(*map(float, size)) for size in zip(*columns, strict=True)]
        except (ValueError, OverflowError) as error:
            raise BrokenDocumentError(str(error)) from error
