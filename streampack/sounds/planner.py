"""SoundPlanner: tokens of a sound before it is decoded, arrays after."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.cached import cached_property
from streampack.errors import ConfigError
from streampack.images.attachments import Attachments, Reference, Size
from streampack.images.families import Family
from streampack.images.fetching import Heads
from streampack.images.media_file import require_av
from streampack.sounds.files import samples_of, size_of
from streampack.sounds.heads import SoundSize
from streampack.storage.storage import Storage

#: Processors that take sounds.
SOUND_FAMILIES = ("Qwen2AudioProcessor",)
#: The model takes a lone token for a placeholder that it has to expand.
_LEAST_TOKENS = 2


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
        if not {*kinds} & {*SOUND_FAMILIES}:
            raise ConfigError(
                f"processor must be one that takes sounds, got {type(processor).__name__}.",
                f"Use one of {', '.join(SOUND_FAMILIES)}; for others pass a MediaModel to Images.",
                setting="processor",
            )
        self.processor, self.name = processor, type(processor).__name__
        self.token: str = processor.audio_token
        self.token_id = self.image_id = self._id(self.token)
        self._start, self._end = processor.audio_bos_token, processor.audio_eos_token
        self.family = Family(("input_features",), written=f"{self._start}{{}}{self._end}")
        self._features: Any = processor.feature_extractor

    def _id(self, text: str) -> int:
        return int(self.processor.tokenizer.convert_tokens_to_ids(text))

    def describe(self) -> dict[str, Any]:
        """Return all settings that tokens and features depend on, as values that JSON can hold."""
        settings = json.loads(self._features.to_json_string())
        settings.pop("mel_filters", None)  # of the other settings
        return {"processor": self.name, "audio_token": self.token, **settings}

    def replaced(
        self, tokens: NDArray[Any], places: NDArray[np.int64], written: Any = ()
    ) -> NDArray[np.int64]:
        """Return no tokens, since the processor replaces placeholders alone.

        Raises:
            ValueError: a placeholder is not between the two tokens that mark a sound. Versions of
                transformers treat it in different ways.
        """
        padded = np.concatenate([[-1], tokens, [-1]]).astype(np.int64)
        starts, ends = padded[places], padded[places + 2]
        if (starts != self._id(self._start)).any() or (ends != self._id(self._end)).any():
            raise ValueError(f"has {self.token} not between {self._start} and {self._end}")
        return places[:0]

    # ------------------------------------------------------------------ before the plan

    def sizes(self, attached: Attachments, heads: Heads) -> tuple[Size, ...]:
        """Return the sizes of sounds, by their records or from the heads of their files.

        Raises:
            ValueError: a head does not tell it, or a sound cannot be read.
        """
        storage = attached.storage or Storage()
        return tuple(
            each.settings.size
            or size_of(each.reference, storage, count_packets=each.settings.count_packets)
            for each in attached.references
        )

    def plan(self, sizes: Sequence[Size]) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        """Return the token ids of A sounds, and their frames of the spectrum, (A,).

        Raises:
            ValueError: a sound is longer than the processor's window, which would cut it, or too
                short.
        """
        frames = [self._frames(SoundSize(*size)) for size in sizes]
        ids = [np.full(_tokens(count), self.token_id, np.int64) for count in frames]
        return ids, np.array(frames, dtype=np.int64)

    def _frames(self, size: SoundSize) -> int:
        samples, most = size.at(self._features.sampling_rate), self._features.n_samples
        if samples > most:
            seconds = samples / self._features.sampling_rate
            window = most / self._features.sampling_rate
            raise ValueError(f"is {seconds:.6g} s long, and the processor cuts at {window:.6g} s")
        frames: int = -(-samples // self._features.hop_length)
        if _tokens(frames) < _LEAST_TOKENS:
            raise ValueError(f"has {size.samples} samples, too few for {_LEAST_TOKENS} tokens")
        return frames

    # ------------------------------------------------------------------ after the plan

    def opened(
        self, reference: Reference, size: Size, storage: Storage | None
    ) -> NDArray[np.float32]:
        """Return the samples of a sound; raises like `samples_of`."""
        return samples_of(reference, SoundSize(*size), self._features.sampling_rate, storage)

    def blank(self, size: Size) -> NDArray[np.float32]:
        """Return silence as replacement for a broken sound."""
        return np.zeros(SoundSize(*size).at(self._features.sampling_rate), dtype=np.float32)

    def arrays(self, opened: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        """Return the model's arrays for a sound."""
        made = self._features(
            [opened],
            sampling_rate=self._features.sampling_rate,
            return_attention_mask=True,
            padding="max_length",
            return_tensors="np",
        )
        return {
            "input_features": made["input_features"],
            "feature_attention_mask": made["attention_mask"],
        }

    def count(self, arrays: Mapping[str, NDArray[Any]]) -> int:
        """Return the number of frames in a sound's arrays."""
        return int(arrays["feature_attention_mask"].sum())

    @cached_property
    def smallest(self) -> tuple[dict[str, NDArray[Any]], int]:
        """Arrays of a silence of two tokens, and their number."""
        frames = next(count for count in range(1, 100) if _tokens(count) == _LEAST_TOKENS)
        silence = np.zeros(frames * self._features.hop_length, dtype=np.float32)
        return self.arrays(silence), _LEAST_TOKENS


def _tokens(frames: int) -> int:
    """Return the number of tokens of a spectrum: two steps of the model halve it."""
    return ((frames - 1) // 2 + 1 - 2) // 2 + 1
