"""Images: texts and conversations with images, whose pixels a batch gets once it is planned."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from streampack.arguments import explained
from streampack.documents.conversations import TurnRules
from streampack.media.reader import USUAL_FIELDS, ImageReader
from streampack.packing.overflow import Overflow
from streampack.sources.base import Reading
from streampack.sources.chat.source import Chat, source_of_records
from streampack.sources.formats import RECORD_FORMATS
from streampack.storage.storage import Storage

_BLOCK_DOCUMENTS = 32  # for an image takes as much memory as hundreds of texts


class Images(Chat):
    """Conversations or texts with images: one record per line of JSON, row of a table, or item.

    Conversations are those of `Chat`, whose messages may have parts that are images,
    ``{"type": "image"}``: with the image as "image", "url", "path" or "image_url", or else each
    is the next one of the record's field with images. Texts and messages may have `placeholder`
    for each image instead, and texts the processor's own. The images of a text without any, such
    as a caption, come before it.

    An image is the bytes of its file, a path or URL (``data:`` URLs too), base64, an object
    ``{"bytes": ..., "path": ...}`` as Hugging Face's image feature has it, or in a list in memory
    an image of Pillow; "" and null are no image. Documents are whole: those longer than a row are
    dropped, counted and named.

    Args:
        data: files of Parquet, Arrow, JSON lines, MDS or WebDataset, or records in memory, as for
            `Chat`.
        text: the field with the texts; in tar shards the ending of their files, or "json:caption".
            None reads conversations, which tar shards and MDS do not hold.
        images: the field with the images, or several fields, in their order; in tar shards endings
            ("jpg"), in MDS columns of the type jpeg, png or bytes. None is "images" or "image".
        sizes: fields with the heights and the widths of the images in pixels, as they are seen; a
            number each, or lists. None reads them from the heads of the images. For a `MediaModel`
            the fields of what its sizes are.
        folder: where relative paths of images begin, a path or URL; None is the working directory.
        placeholder: a text that stands for an image in texts and messages. None is "<image>",
            except in conversations with parts that are images; "" is nothing.
        template: as for `Chat`; None is the processor's.
        template_kwargs: as for `Chat`.
        shape: as for `Chat`.
        reading: how a lane reads the data.
        storage: how files and URLs are reached and cached; for files. Images that records name by
            paths or URLs are read where they are, and not kept: their heads for the plan, and whole
            for the batch.

    Raises:
        ConfigError: arguments that do not go together, or data without such fields.
    """

    overflow: Overflow = "drop"

    @explained
    def __init__(
        self,
        data: Any,
        *,
        text: str | None = None,
        images: str | Sequence[str] | None = None,
        sizes: tuple[str, ...] | None = None,
        folder: str | os.PathLike[str] | None = None,
        placeholder: str | None = None,
        template: str | Path | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        shape: str | None = None,
        reading: Reading | None = None,
        storage: Storage | None = None,
    ) -> None:
        self._set(template, template_kwargs, TurnRules(), shape)
        self.renders = text is None
        fields = (images,) if isinstance(images, str) else tuple(images or USUAL_FIELDS)
        below = None if folder is None else os.fspath(folder)
        given = {} if storage is None else {"storage": storage}
        reader = ImageReader(text, fields, sizes, below, placeholder, shape, **given)
        self.reader = reader
        reading = Reading(block_documents=_BLOCK_DOCUMENTS) if reading is None else reading
        formats = RECORD_FORMATS if text is None else ("MDS", "WebDataset", *RECORD_FORMATS)
        self._records = source_of_records(data, reader, reading, storage, formats, text)
        self.reading, self.once = self._records.reading, self._records.once

    def __repr__(self) -> str:
        return f"Images({self._records!r})"

    def leaves(self) -> list[str]:
        return ["processor", *super().leaves()]

    def describe(self) -> dict[str, Any]:
        """Adds the fields that are read."""
        reader = self.reader
        if reader.images == USUAL_FIELDS:  # as it was when there was one of them
            reader = replace(reader, images=USUAL_FIELDS[:1])
        return {**super().describe(), "fields": list(reader.columns), "images": reader.placeholder}
