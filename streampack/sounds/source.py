"""Source of texts and conversations with sounds, which are decoded after the plan."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from streampack.arguments import explained
from streampack.images.media_source import MediaSource
from streampack.sounds.heads import SoundSize
from streampack.sounds.planner import SoundPlanner
from streampack.sources.reading import ReadOptions
from streampack.storage.storage import Storage


class Sounds(MediaSource):
    """Conversations or texts with sounds: as `Images`, with sounds in place of images.

    A sound is the bytes of its file, a path, a URL, or an object ``{"bytes": ..., "path": ...}``
    as in Hugging Face's audio feature. Messages may have parts ``{"type": "audio"}`` or OpenAI's
    ``{"type": "input_audio"}``, or the text "<audio>" for each sound.

    A sound is planned by its samples and their rate. These are read from the heads of wav, flac,
    mp3 (Xing, Info, VBRI), ogg and m4a files; heads of webm files, and of mp3 without such a head,
    do not count the samples. After the plan PyAV decodes sounds, mixes channels and resamples.

    Args:
        data: as for `Images`.
        text: as for `Images`.
        audios: field with the sounds, or several fields in order. None means "audios" or "audio".
        sizes: fields with the number of samples of a channel and the samples per second; numbers
            or lists. None reads heads. A sound of another size is an error when it is decoded.
        count: "head" refuses sounds if their heads do not count the samples; "packets" decodes
            these whole, once more than for the batch.
        folder: as for `Images`; base of relative paths.
        placeholder: text that marks a sound; None means "<audio>", "" no text.
        template: chat template, as for `Images`.
        template_kwargs: arguments of the template.
        shape: shape of the conversations, as for `Images`.
        reading: read options of a lane.
        storage: access to files and URLs.

    Raises:
        ConfigError: arguments conflict, or the data lacks such fields.
    """

    kind, usual = "audio", ("audios", "audio")
    size = SoundSize.of
    sized_by = ("samples", "samples per second")
    planner = SoundPlanner

    @explained
    def __init__(
        self,
        data: Any,
        *,
        text: str | None = None,
        audios: str | Sequence[str] | None = None,
        sizes: tuple[str, str] | None = None,
        count: str = "head",
        folder: str | os.PathLike[str] | None = None,
        placeholder: str | None = None,
        template: str | Path | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        shape: str | None = None,
        reading: ReadOptions | None = None,
        storage: Storage | None = None,
    ) -> None:
        self._open(locals(), audios, (), placeholder="")
