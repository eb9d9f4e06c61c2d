"""Source of texts and conversations with films; sampled frames are decoded after the plan."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from streampack.arguments import explained
from streampack.films.families import refuse_sound_inside
from streampack.films.planner import FilmPlanner
from streampack.films.size import FilmSize
from streampack.images.media_source import MediaSource
from streampack.images.reader import USUAL_FIELDS
from streampack.images.source import names_in
from streampack.sources.reading import ReadOptions
from streampack.storage.storage import Storage


class Films(MediaSource):
    """Conversations or texts with films, and images: as `Images`, with films.

    A film is the bytes of its file, a path, a URL, or an object ``{"bytes": ..., "path": ...}`` as
    in Hugging Face's video feature. Messages may have parts ``{"type": "video"}``, or the text
    "<video>" for each film; in records with films alone also "<image>", as in LLaVA-Video's.

    A film is planned by its frames, height, width and rate. These are read from the heads of mp4
    and mov files, by one or two ranges; the heads of webm, mkv, avi and fragmented mp4 files do not
    count the frames. After the plan PyAV decodes the frames that the processor samples. With
    ``processor.load_audio_from_video = True`` Qwen2.5-Omni and Qwen3-Omni get their sound, too.

    Args:
        data: as for `Images`.
        text: as for `Images`.
        videos: field with the films, or several fields in order. None means "videos" or "video".
        images: field with the images, or several; None means "images" or "image".
        sizes: fields with the number of frames, the height, the width (after rotation), and the
            frames per second of the films; numbers or lists. None reads heads. A film of another
            size is an error when it is decoded. Where the sound is read, two more fields have its
            samples (0 without sound) and their rate.
        count: "head" refuses films if their heads do not count the frames; "packets" reads these
            whole, once more than for decoding.
        folder: as for `Images`; base of relative paths.
        placeholder: text that marks a film; None means "<video>", "" no text.
        template: chat template, as for `Images`.
        template_kwargs: arguments of the template.
        shape: shape of the conversations, as for `Images`.
        reading: read options of a lane.
        storage: access to files and URLs.

    Raises:
        ConfigError: arguments conflict, or the data lacks such fields.
    """

    kind, usual = "video", ("videos", "video")
    size = FilmSize.of
    sized_by = ("frames", "height", "width", "frames per second")
    sized_more = ("samples of sound", "samples per second")
    planner = FilmPlanner

    @explained
    def __init__(
        self,
        data: Any,
        *,
        text: str | None = None,
        videos: str | Sequence[str] | None = None,
        images: str | Sequence[str] | None = None,
        sizes: tuple[str, ...] | None = None,
        count: str = "head",
        folder: str | os.PathLike[str] | None = None,
        placeholder: str | None = None,
        template: str | Path | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        shape: str | None = None,
        reading: ReadOptions | None = None,
        storage: Storage | None = None,
    ) -> None:
        refuse_sound_inside(template_kwargs or {})
        self._open(locals(), videos, names_in(images, USUAL_FIELDS))
