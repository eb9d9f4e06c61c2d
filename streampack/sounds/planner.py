"""SoundPlanner: tokens of a sound before it is decoded, arrays after."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.cached import cached_property
from streampack.errors import ConfigError
from streampack.images.attachments import Attachments, Medium, Reference, Size
from streampack.images.families import Family
from streampack.images.fetching import Heads
from streampack.images.media_file import fetch_ahead, require_av
from streampack.sounds.families import REFUSED, SOUND_FAMILIES
from streampack.sounds.files import declare, samples_of, size_of
from streampack.sounds.heads import SoundSize
from streampack.storage.storage import Storage


def require_marked(
    tokens: NDArray[Any], places: NDArray[np.int64], around: Sequence[int], token: str
) -> None:
    """Raise `ValueError` unless placeholders stand between the two tokens `around`."""
    padded = np.concatenate([[-1], tokens, [-1]]).astype(np.int64)
    if (np.column_stack([padded[places], padded[places + 2]]) != around).any():
        raise ValueError(f"has {token} not between the two tokens of the processor")


class SoundPlanner:
    """Planner of sounds for a processor of transformers; see `ImagePlanner`.

    Patches are frames of the spectrum, a hundred a second.

    Raises:
        ConfigError: the family takes no sounds here.
        MissingPackageError: PyAV is not installed.
    """

    video_id = -1
    #: The tokens of `smallest` must stand beside one another.
    adjacent = True

    def __init__(self, processor: Any) -> None:
        require_av()
        kinds = [kind.__name__ for kind in type(processor).__mro__]
        name = next((kind for kind in kinds if kind in SOUND_FAMILIES), None)
        if name is None:
            reasons = [f" ({REFUSED[kind]})" for kind in kinds if kind in REFUSED]
            raise ConfigError(
                f"processor must be one that takes sounds, got {type(processor).__name__}"
                f"{''.join(reasons)}.",
                f"Use one of {', '.join(SOUND_FAMILIES)}; for others pass a MediaModel to Images.",
                setting="processor",
            )
        self.processor, self.name, self.sounds = processor, name, SOUND_FAMILIES[name]
        self.token: str = processor.audio_token
        self.token_id = self.image_id = self._id(self.token)
        around, written = self.sounds.around, "{}"
        texts = [getattr(processor, each) for each in around] if around else []
        self._around = [self._id(text) for text in texts]
        if texts and not self.sounds.is_written:
            written = "{}".join(texts)
        self.family = Family(("input_features",), self.sounds.form, written=written)
        self._features: Any = processor.feature_extractor
        self.sampling_rate: int = self._features.sampling_rate
        settings = getattr(processor, "audio_kwargs", None)  # of transformers 5
        self._truncates = not settings or settings.get("truncation", True)

    def _id(self, text: str) -> int:
        return int(self.processor.tokenizer.convert_tokens_to_ids(text))

    def describe(self) -> dict[str, Any]:
        """Return all settings that tokens and features depend on, as values that JSON can hold."""
        settings = json.loads(self._features.to_json_string())
        settings.pop("mel_filters", None)  # of the other settings
        most = getattr(self.processor, "max_audio_len", None)
        seconds = {} if most is None else {"max_audio_len": most}
        return {"processor": self.name, "audio_token": self.token, **seconds, **settings}

    def replaced(
        self, tokens: NDArray[Any], places: NDArray[np.int64], written: Any = ()
    ) -> NDArray[np.int64]:
        """Return no tokens, since the processor replaces placeholders alone.

        Raises:
            ValueError: a placeholder is not between the two tokens that mark a sound.
        """
        if self.sounds.is_marked:
            require_marked(tokens, places, self._around, self.token)
        return places[:0]

    # ------------------------------------------------------------------ before the plan

    def size(self, medium: Medium, storage: Storage) -> SoundSize:
        """Return the size of a sound from the head of its file; raises like `size_of`."""
        counted = medium.settings.count_packets
        return size_of(medium.reference, storage, count_packets=counted)

    def sizes(self, attached: Attachments, heads: Heads) -> tuple[Size, ...]:
        """Return the sizes of sounds; raises like `Heads.sizes`."""
        return heads.sizes(attached, self)

    def plan(self, sizes: Sequence[Size]) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        """Return the token ids of A sounds, and their frames of the spectrum, (A,).

        Raises:
            ValueError: a sound is longer than the processor's window, which would cut it, or too
                short.
        """
        frames = [self._frames(SoundSize(*size)) for size in sizes]
        ids = [np.full(self.sounds.tokens(count), self.token_id, np.int64) for count in frames]
        if self.sounds.is_written:
            start, end = ([each] for each in self._around)
            ids = [np.concatenate([start, each, end]).astype(np.int64) for each in ids]
        return ids, np.array(frames, dtype=np.int64)

    def _frames(self, size: SoundSize) -> int:
        extractor, family = self._features, self.sounds
        samples, window = size.at(extractor.sampling_rate), extractor.n_samples
        most = window if family.padded or self._truncates else None
        if family.windows:
            most = int(self.processor.max_audio_len // extractor.chunk_length) * window
        if most is not None and samples > most:
            seconds, limit = samples / extractor.sampling_rate, most / extractor.sampling_rate
            raise ValueError(f"is {seconds:.6g} s long, and the processor cuts at {limit:.6g} s")
        samples = max(samples, getattr(extractor, "min_length", 0))  # of Qwen3-ASR's
        whole, remainder = divmod(samples, window) if family.windows else (0, samples)
        last = remainder // extractor.hop_length
        if family.padded:
            last = -(-remainder // extractor.hop_length)
        if (remainder or not whole) and family.tokens(last) < family.least:
            part = " in its last window" if whole else ""
            raise ValueError(f"has {remainder} samples{part}, too few for {family.least} tokens")
        frames = int(whole * (window // extractor.hop_length) + last)
        if frames < family.least_frames:
            raise ValueError(f"has {frames} frames, and the model needs {family.least_frames}")
        return frames

    # ------------------------------------------------------------------ after the plan

    def fetch_ahead(self, url: str, size: Size, storage: Storage) -> None:
        """Let threads fetch the bytes that `opened` reads of a sound by URL."""
        fetch_ahead(url, storage, declare)

    def opened(
        self, reference: Reference, size: Size, storage: Storage | None
    ) -> NDArray[np.float32]:
        """Return the samples of a sound; raises like `samples_of`."""
        return samples_of(reference, SoundSize(*size), self.sampling_rate, storage)

    def blank(self, size: Size) -> NDArray[np.float32]:
        """Return silence as replacement for a broken sound."""
        return np.zeros(SoundSize(*size).at(self._features.sampling_rate), dtype=np.float32)

    def arrays(self, opened: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        """Return the model's arrays for a sound, with a row for each of its windows."""
        extractor, family = self._features, self.sounds
        window, parts = extractor.n_samples, [opened]
        if family.windows:
            parts = [opened[at : at + window] for at in range(0, len(opened), window)]
        if not family.padded:
            padding: dict[str, Any] = {"padding": True, "truncation": False}
        elif family.whole:
            padding = {"padding": "max_length"}
        else:  # silence after a sound counts in its last frames alone
            most = -(-len(opened) // extractor.hop_length) * extractor.hop_length
            padding = {"padding": "max_length", "max_length": min(most + extractor.n_fft, window)}
        made = extractor(
            parts,
            sampling_rate=extractor.sampling_rate,
            return_attention_mask=True,
            return_tensors="np",
            **padding,
        )
        features, mask = made["input_features"], made["attention_mask"]
        if not family.whole:
            frames = int(mask.sum())
            features, mask = features[..., :frames], mask[..., :frames]
        return {"input_features": features, family.mask: mask}

    def count(self, arrays: Mapping[str, NDArray[Any]]) -> int:
        """Return the number of frames in a sound's arrays."""
        return int(arrays[self.sounds.mask].sum())

    @cached_property
    def smallest(self) -> tuple[dict[str, NDArray[Any]], int]:
        """Arrays of a short silence, and its number of tokens."""
        family, extractor = self.sounds, self._features
        counts = range(family.least_frames, 1000)
        frames = next(count for count in counts if family.tokens(count) >= family.least)
        size = SoundSize(frames * extractor.hop_length, extractor.sampling_rate)
        (ids,), _ = self.plan([size])
        return self.arrays(self.blank(size)), int((ids == self.token_id).sum())
