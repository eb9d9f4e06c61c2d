"""Images: texts with images, of which a batch gets the pixels once it is planned."""

from __future__ import annotations

import os
from typing import Any

from streampack.arguments import explained
from streampack.documents.conversations import TurnRules
from streampack.media.reader import ImageReader
from streampack.packing.overflow import Overflow
from streampack.sources.base import Reading
from streampack.sources.chat.source import Chat, source_of_records
from streampack.storage.storage import Storage


class Images(Chat):
    """Texts with images: one record per line of JSON, row of a table, or item.

    A record has a text with the processor's placeholder for each image, in their order, and a field
    with the images: one of them or a list, each as the bytes of its file, a path or URL,
    ``{"bytes": ..., "path": ...}`` as Hugging Face's image feature has it, or in a list in memory
    an image of Pillow. Documents are whole: those longer than a row are dropped, counted and named.

    Args:
        data: as for `Chat`.
        text: the field with the texts.
        images: the field with the images.
        sizes: fields with the heights and the widths of the images in pixels, as they are seen; a
            number each, or lists. None reads them from the heads of the images.
        folder: where relative paths of images begin, a path or URL; None is the working directory.
        reading: how a lane reads the data.
        storage: how files are reached and cached; for files. Images that records name by paths or
            URLs are read where they are, twice: their heads for the plan, and whole for the batch.

    Raises:
        ConfigError: arguments that do not go together, or data without such fields.
    """

    overflow: Overflow = "drop"
    renders = False

    @explained
    def __init__(
        self,
        data: Any,
        *,
        text: str = "text",
        images: str = "images",
        sizes: tuple[str, str] | None = None,
        folder: str | os.PathLike[str] | None = None,
        reading: Reading | None = None,
        storage: Storage | None = None,
    ) -> None:
        self.template, self.template_kwargs, self.rules, self.shape = None, {}, TurnRules(), None
        reader = ImageReader(text, images, sizes, None if folder is None else os.fspath(folder))
        self.reader = reader
        self._records = source_of_records(data, reader, reading, storage)
        self.reading, self.once = self._records.reading, self._records.once

    def __repr__(self) -> str:
        return f"Images({self._records!r})"

    def describe(self) -> dict[str, Any]:
        """Adds the fields that are read."""
        return {**super().describe(), "fields": list(self.reader.columns)}
