"""Source of texts and conversations with sounds, which are decoded after the plan."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from streampack.arguments import explained, one_of
from streampack.errors import ConfigError
from streampack.images.media_reader import MediaColumns, MediaReader
from streampack.images.source import Images, names_in
from streampack.sounds.heads import SoundSize
from streampack.sounds.planner import SoundPlanner
from streampack.sources.reading import ReadOptions
from streampack.storage.storage import Storage

#: Default fields of sounds; a record has at most one of them.
USUAL_SOUNDS = ("audios", "audio")


class Sounds(Images):
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
        one_of("count", count, ("head", "packets"))
        if sizes is not None and (isinstance(sizes, str) or len(sizes) != 2):
            raise ConfigError(
                f"sizes must be two names of fields, got {sizes!r}.",
                "Name the fields of samples and samples per second, in this order.",
                setting="sizes",
            )
        columns = MediaColumns(
            "audio",
            names_in(audios, USUAL_SOUNDS),
            audios is None,
            sizes,
            SoundSize.of,
            count == "packets",
            placeholder,
        )
        reader = MediaReader(
            text,
            (),
            folder=None if folder is None else os.fspath(folder),
            placeholder="",
            shape=shape,
            storage=Storage() if storage is None else storage,
            others=columns,
        )
        self._read(data, reader, template, template_kwargs, reading, storage)

    def media_planners(self, processor: Any) -> dict[str, Any]:
        """Return the planner of sounds for a processor."""
        return {"audio": SoundPlanner(processor)}

    def describe(self) -> dict[str, Any]:
        """Add the placeholder of sounds."""
        reader = self.reader
        assert isinstance(reader, MediaReader)
        assert reader.others is not None
        return {**super().describe(), "sounds": reader.others.placeholder}
