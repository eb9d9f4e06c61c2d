"""Source of texts and conversations with images, which are decoded once a batch is planned."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from streampack.arguments import explained
from streampack.chats.conversations import TurnRules
from streampack.chats.records import ADDED_FIELDS
from streampack.chats.source import Chat
from streampack.errors import ConfigError
from streampack.file_info import shown
from streampack.files.record_files import RecordFiles
from streampack.images.reader import FILE_NAME, USUAL_FIELDS, ImageReader
from streampack.iterables.of_records import source_of_records
from streampack.packing.overflow import Overflow
from streampack.sources.formats import RECORD_FORMATS
from streampack.sources.reading import ReadOptions
from streampack.storage.storage import Storage

_BLOCK_DOCUMENTS = 32  # small, because an image takes as much memory as hundreds of texts


class Images(Chat):
    """Conversations or texts with images: one record per line of JSON, row of a table, or item.

    Conversations have the shapes of `Chat`. Their messages may have image parts, ``{"type":
    "image"}``, with the image as "image", "url", "path" or "image_url"; a part without one takes
    the next image of the record's image field. Texts and messages may use `placeholder` for each
    image instead, and texts also the processor's marker. The images of a text without
    placeholders, such as a caption, come before the text.

    An image is the bytes of its file, a path or URL (also a ``data:`` URL), base64, an object
    ``{"bytes": ..., "path": ...}`` as in Hugging Face's image feature, or a Pillow image in a list
    in memory; "" and null are no image. Documents are never cut: longer ones than a row are
    dropped, counted and logged.

    Args:
        data: files of Parquet, Arrow, JSON lines, MDS or WebDataset, or records in memory, as for
            `Chat`.
        text: field with the texts; in tar shards their file extension, or "json:caption". None
            reads conversations, which tar shards and MDS do not support.
        images: field with the images, or several fields in order; in tar shards extensions
            ("jpg"), in MDS columns of type jpeg, png or bytes. None means "images" or "image".
        sizes: fields with the heights and the widths of the images in pixels, after EXIF rotation;
            numbers or lists. None reads them from the heads of the files, which is slower for
            remote images. For a `MediaModel`, the fields of its sizes.
        folder: base of relative image paths, a path or URL. None means the working directory, and
            for ``images="file_name"``, as in an imagefolder of datasets, the folder of the file.
        placeholder: text that marks an image in texts and messages. None means "<image>", except in
            conversations with image parts; "" means no text does.
        template: as for `Chat`; None uses the processor's.
        template_kwargs: as for `Chat`.
        shape: as for `Chat`.
        reading: read options of a lane.
        storage: access to files and URLs, and their cache, for files. Images that records reference
            by path or URL are not cached: their heads are read for the plan, and the whole files
            for the batch.

    Raises:
        ConfigError: arguments conflict, or the data lacks such fields.
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
        reading: ReadOptions | None = None,
        storage: Storage | None = None,
    ) -> None:
        reader = ImageReader(
            text,
            names_in(images, USUAL_FIELDS),
            sizes,
            None if folder is None else os.fspath(folder),
            placeholder,
            shape,
            Storage() if storage is None else storage,
        )
        self._read(data, reader, template, template_kwargs, reading, storage)

    def _read(
        self,
        data: Any,
        reader: ImageReader,
        template: str | Path | None,
        template_kwargs: Mapping[str, Any] | None,
        reading: ReadOptions | None,
        storage: Storage | None,
    ) -> None:
        """Open the data for a reader."""
        self._set(template, template_kwargs, TurnRules(), reader.shape)
        text, fields, self.reader = reader.text, reader.media, reader
        self.renders = text is None
        reading = ReadOptions(block_documents=_BLOCK_DOCUMENTS) if reading is None else reading
        formats = RECORD_FORMATS if text is None else ("MDS", "WebDataset", *RECORD_FORMATS)
        self._records = source_of_records(data, reader, reading, storage, formats, text)
        if FILE_NAME in fields and reader.folder is None and isinstance(self._records, RecordFiles):
            below = _one_folder(self._records.manifest.paths)
            self._records.fields = replace(
                self._records.fields, records=replace(reader, folder=below)
            )
        self.reading, self.once = self._records.reading, self._records.once

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._records!r})"

    def _leaves(self) -> list[str]:
        return ["processor", *super()._leaves()]

    def describe(self) -> dict[str, Any]:
        """Add the fields that are read."""
        reader = self.reader
        if reader.images == USUAL_FIELDS:  # equal to states from before there were two defaults
            reader = replace(reader, images=USUAL_FIELDS[:1])
        fields = [name for name in reader.columns if name not in ADDED_FIELDS]
        return {**super().describe(), "fields": fields, "images": reader.placeholder}


def names_in(given: str | Sequence[str] | None, usual: tuple[str, ...]) -> tuple[str, ...]:
    """Return names of fields that a user gives, or the usual ones."""
    return (given,) if isinstance(given, str) else tuple(given or usual)


def _one_folder(paths: Sequence[str]) -> str:
    """Return the folder of files; raise `ConfigError` if they lie in several."""
    folders = sorted({path.rpartition("/")[0] for path in paths})
    if len(folders) > 1:
        raise ConfigError(
            f"The files lie in {len(folders)} folders, such as {shown(folders[0])} and "
            f"{shown(folders[1])}, and their images are named from their own folder.",
            "Make each an Images of its own in a sources.Mixture, or pass folder=.",
            setting="folder",
        )
    return folders[0]
