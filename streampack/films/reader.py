"""Reader of records with films, which makes blocks of texts or conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from streampack.arguments import type_in_words
from streampack.chats.conversations import VIDEO_PART
from streampack.films.planner import FilmSettings
from streampack.films.size import FilmSize
from streampack.images.attachments import Attachments, Medium, Reference
from streampack.images.chats import IMAGES, MediumParts, Placeholders, has_parts, references_of
from streampack.images.images import references_in
from streampack.images.reader import ImageReader
from streampack.sources.records import BrokenDocumentError, require_field

#: Default fields of films; a record has at most one of them.
USUAL_FILMS = ("videos", "video")


@dataclass(frozen=True, slots=True)
class FilmReader(ImageReader):
    """Make blocks of records with films, and images.

    Attributes:
        videos: fields of the films, in order.
        film_sizes: fields of frames, height, width and frames per second, or None.
        count_packets: read films whole if their heads do not count the frames.
        film_placeholder: text that marks a film in texts and messages.
    """

    videos: tuple[str, ...] = USUAL_FILMS
    film_sizes: tuple[str, ...] | None = None
    count_packets: bool = False
    film_placeholder: str | None = None

    @property
    def columns(self) -> Sequence[str]:
        """Names of the fields that are read."""
        before = super(FilmReader, self).columns
        return (*before, *self.videos, *(self.film_sizes or ()))

    @property
    def media(self) -> tuple[str, ...]:
        """Names of the fields of media."""
        return (*self.images, *self.videos)

    @property
    def _films(self) -> MediumParts:
        wrap = partial(Medium, "video", settings=FilmSettings(None, self.count_packets))
        return MediumParts(VIDEO_PART, ("video", "video_url"), "<video>", wrap, alone=True)

    def placeholders(self, record: Mapping[str, Any]) -> Placeholders:
        """Return the placeholders of images and films in a record's texts.

        In records with films alone, "<image>" stands for a film, as in LLaVA-Video's.
        """
        films = self._films
        usual = not (self.text is None and has_parts(record, [IMAGES, films]))
        placeholders = [
            (IMAGES, IMAGES.usual if usual else "") if self.placeholder is None else
            (IMAGES, self.placeholder),
            (films, films.usual if usual else "") if self.film_placeholder is None else
            (films, self.film_placeholder),
        ]  # fmt: skip
        if usual and self.placeholder is None and self.film_placeholder is None:
            held = any(references_in(record.get(name), f'in "{name}"') for name in self.images)
            if not held and films.usual not in str(self._texts(record)):
                return [(IMAGES, ""), (films, IMAGES.usual)]
        return placeholders

    def _texts(self, record: Mapping[str, Any]) -> Any:
        return [value for name, value in record.items() if name not in self.media]

    def _attachments(self, record: Mapping[str, Any], of_parts: list[Reference]) -> Attachments:
        images = [each for each in of_parts if not isinstance(each, Medium)]
        attached = ImageReader._attachments(self, record, images)
        fields = [
            references_in(record.get(name), f'in "{name}"', self.folder) for name in self.videos
        ]
        if self.videos == USUAL_FILMS and all(fields):
            raise BrokenDocumentError(
                f"has films in the fields {' and '.join(USUAL_FILMS)}, so videos= must name the "
                "one to read"
            )
        inside: list[Reference] = [each for each in of_parts if isinstance(each, Medium)]
        films = references_of(inside, tuple(self._films.wrap(each) for each in sum(fields, ())))
        if self.film_sizes is not None and films:
            sizes = self._sizes(record)
            if len(sizes) != len(films):
                raise BrokenDocumentError(f"has {len(films)} films and {len(sizes)} sizes of films")
            films = tuple(
                Medium("video", film.reference, FilmSettings(size))
                for film, size in zip(films, sizes, strict=True)
            )
        return Attachments((*attached.references, *films), storage=self.storage)

    def _sizes(self, record: Mapping[str, Any]) -> list[FilmSize]:
        """Return the sizes of films by a record's fields, which hold numbers or lists."""
        columns = []
        for name in self.film_sizes or ():
            require_field(record, name)
            value = record[name]
            listed = list(value) if hasattr(value, "__len__") else [value]
            columns.append([number for number in listed if number is not None])
            for number in columns[-1]:
                if not isinstance(number, (int, float, np.integer, np.floating)):
                    raise BrokenDocumentError(f'has {type_in_words(number)} in "{name}"')
        if len({*map(len, columns)}) > 1:
            raise BrokenDocumentError("has fields of sizes of films with different lengths")
        try:
            return [
                FilmSize.of(int(frames), int(height), int(width), float(fps))
                for frames, height, width, fps in zip(*columns, strict=True)
            ]
        except (ValueError, OverflowError) as error:
            raise BrokenDocumentError(str(error)) from error
