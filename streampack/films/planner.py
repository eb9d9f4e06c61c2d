"""FilmPlanner: tokens of a film before it is decoded, arrays of its sampled frames after."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack.errors import ConfigError
from streampack.films.files import frames_of, size_of
from streampack.films.size import FilmSize
from streampack.images.attachments import Attachments, Reference, Size
from streampack.images.families import FAMILIES, family_of
from streampack.images.fetching import Heads
from streampack.images.media_file import require_av
from streampack.storage.storage import Storage


@dataclass(frozen=True, slots=True)
class FilmFamily:
    """Properties that processors of one class share.

    Attributes:
        timed: the text has a time before every two frames.
        seconds: models take the seconds between two frames of the grid.
    """

    timed: bool = False
    seconds: bool = False


#: Families of processors that take films, by the class name of the processor.
FILM_FAMILIES = {
    "Qwen2VLProcessor": FilmFamily(),
    "Qwen2_5_VLProcessor": FilmFamily(seconds=True),
    "Qwen3VLProcessor": FilmFamily(timed=True),
}
_KEPT_SIZES = 1 << 12
#: Pixels of a frame: twice as many as in 8K. Small files may declare billions.
_MOST_PIXELS = 1 << 26


class _Planned(NamedTuple):
    """A film's sampled frames, its grid (time, height, width) in patches, and its token ids."""

    indices: list[int]
    grid: tuple[int, int, int]
    ids: NDArray[np.int64]


class _Opened(NamedTuple):
    """Sampled frames (N, height, width, 3), the size of the film, and True for grey ones.

    Grey frames have the size to which the processor would bring them.
    """

    frames: NDArray[np.uint8]
    size: FilmSize
    grey: bool = False


class FilmPlanner:
    """Planner of films for a processor of transformers; see `ImagePlanner`.

    Raises:
        ConfigError: the family takes no films here, or lacks its video processor.
        MissingPackageError: PyAV is not installed.
    """

    def __init__(self, processor: Any) -> None:
        require_av()
        name = family_of(processor)
        self._videos: Any = getattr(processor, "video_processor", None)
        if name not in FILM_FAMILIES or self._videos is None:
            lacks = " without a video processor" if name in FILM_FAMILIES else ""
            raise ConfigError(
                f"processor must be one that takes films, got {type(processor).__name__}{lacks}.",
                f"Use one of {', '.join(FILM_FAMILIES)} as AutoProcessor makes them, which needs "
                "torchvision.",
                setting="processor",
            )
        self.processor, self.name, self.family = processor, name, FAMILIES[name]
        self.films = FILM_FAMILIES[name]
        self.token: str = processor.video_token
        self.token_id = self.image_id = self._id(self.token)
        # Before transformers 5 the tokens around the placeholder go with it, times are counted in
        # groups of merge_size frames, and seconds by the asked frames per second.
        self._new = hasattr(processor, "replace_video_token")
        self._around: tuple[int, int] | None = None
        if self.films.timed and not self._new:
            start, end = processor.vision_start_token, processor.vision_end_token
            self._around = self._id(start), self._id(end)
        self._planned: dict[FilmSize, _Planned] = {}

    def _id(self, text: str) -> int:
        return int(self.processor.tokenizer.convert_tokens_to_ids(text))

    def describe(self) -> dict[str, Any]:
        """Return all settings that tokens and pixels depend on, as values that JSON can hold."""
        return json.loads(self._videos.to_json_string())  # type: ignore[no-any-return]

    def replaced(self, tokens: NDArray[Any], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices of tokens beside placeholders which the processor replaces too."""
        places = places[tokens[places] == self.token_id]
        if self._around is None or not len(places):
            return places[:0]
        inner = places[(places > 0) & (places + 1 < len(tokens))]
        start, end = self._around
        both = inner[(tokens[inner - 1] == start) & (tokens[inner + 1] == end)]
        return np.concatenate([both - 1, both + 1])

    # ------------------------------------------------------------------ before the plan

    def sizes(self, attached: Attachments, heads: Heads) -> tuple[Size, ...]:
        """Return the sizes of films, by their records or from the heads of their files.

        Raises:
            ValueError: a head does not tell it, or a film cannot be read.
        """
        sizes = tuple(
            each.settings.size
            or size_of(
                each.reference,
                attached.storage or Storage(),
                count_packets=each.settings.count_packets,
            )
            for each in attached.references
        )
        for size in sizes:
            if size.height * size.width > _MOST_PIXELS:
                raise ValueError(f"has frames of {size.width} x {size.height} pixels")
        return sizes

    def plan(self, sizes: Sequence[Size]) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        """Return the token ids of A films, and their numbers of patches, (A,).

        Raises:
            ValueError: the processor refuses a size.
        """
        planned = [self._plan(FilmSize(*size)) for size in sizes]
        patches = np.array([np.prod(each.grid) for each in planned], dtype=np.int64)
        return [each.ids for each in planned], patches

    def _plan(self, size: FilmSize) -> _Planned:
        """Plan a film. The processor counts: it is given frames of a shape without values."""
        import torch

        if (planned := self._planned.get(size)) is not None:
            return planned
        try:
            indices = self._sampled(size)
            shape = (len(indices), 3, size.height, size.width)
            empty = torch.empty(shape, dtype=torch.uint8, device="meta")
            made = self._processed(empty, size, indices, do_rescale=False, do_normalize=False)
        except Exception as error:  # processors raise errors of any class at odd films
            raise ValueError(f"{type(error).__name__}: {error}"[:200]) from error
        (grid,) = made["video_grid_thw"].tolist()
        planned = _Planned(indices, tuple(grid), self._ids(size, indices, grid))
        if len(self._planned) < _KEPT_SIZES:
            self._planned[size] = planned
        return planned

    def _sampled(self, size: FilmSize) -> list[int]:
        """Return the indices of the frames that the processor samples."""
        indices: list[int] = [*range(size.frames)]
        if self._videos.do_sample_frames:
            indices = [*map(int, self._videos.sample_frames(metadata=self._metadata(size)))]
        if not indices or min(indices) < 0 or max(indices) >= size.frames:
            raise ValueError(f"samples {len(indices)} frames of {size.frames}")
        return indices

    def _metadata(self, size: FilmSize, indices: list[int] | None = None) -> Any:
        from transformers.video_utils import VideoMetadata

        return VideoMetadata(
            total_num_frames=size.frames,
            fps=size.fps,
            width=size.width,
            height=size.height,
            duration=size.frames / size.fps,
            frames_indices=indices,
        )

    def _ids(self, size: FilmSize, indices: list[int], grid: Sequence[int]) -> NDArray[np.int64]:
        """Return the token ids of a film."""
        merged = self._videos.merge_size**2
        if not self.films.timed:
            return np.full(int(np.prod(grid)) // merged, self.token_id, np.int64)
        pair = self._videos.temporal_patch_size if self._new else self._videos.merge_size
        times = self.processor._calculate_timestamps([*indices], size.fps, pair)
        start, end = self.processor.vision_start_token, self.processor.vision_end_token
        frame = start + self.token * (grid[1] * grid[2] // merged) + end
        text = "".join(f"<{seconds:.1f} seconds>{frame}" for seconds in times[: grid[0]])
        ids = self.processor.tokenizer(text, add_special_tokens=False)["input_ids"]
        return np.array(ids, dtype=np.int64)

    # ------------------------------------------------------------------ after the plan

    def opened(self, reference: Reference, size: Size, storage: Storage | None) -> _Opened:
        """Return the sampled frames of a film; raises like `frames_of`."""
        film = FilmSize(*size)
        return _Opened(frames_of(reference, film, self._plan(film).indices, storage), film)

    def blank(self, size: Size) -> _Opened:
        """Return grey frames as replacement for a broken film."""
        film = FilmSize(*size)
        planned, side = self._plan(film), self._videos.patch_size
        shape = (len(planned.indices), planned.grid[1] * side, planned.grid[2] * side, 3)
        return _Opened(np.full(shape, 127, dtype=np.uint8), film, grey=True)

    def arrays(self, opened: _Opened) -> dict[str, NDArray[Any]]:
        """Return the model's arrays for a film."""
        import torch

        frames = torch.from_numpy(np.ascontiguousarray(opened.frames)).permute(0, 3, 1, 2)
        indices = self._plan(opened.size).indices
        resized = {"do_resize": False} if opened.grey else {}
        made = self._processed(frames, opened.size, indices, **resized)
        arrays = {
            name: np.asarray(made[name]) for name in ("pixel_values_videos", "video_grid_thw")
        }
        if self.films.seconds:
            sampled = len(indices) / opened.size.frames * opened.size.fps
            if not self._new:
                sampled = self._videos.fps or 2.0
            seconds = self._videos.temporal_patch_size / sampled
            arrays["second_per_grid_ts"] = np.array([seconds], dtype=np.float32)
        return arrays

    def _processed(self, frames: Any, size: FilmSize, indices: list[int], **settings: Any) -> Any:
        return self._videos(
            videos=[frames],
            video_metadata=[self._metadata(size, indices)],
            do_sample_frames=False,
            input_data_format="channels_first",
            return_tensors="pt",
            **settings,
        )

    def count(self, arrays: Mapping[str, NDArray[Any]]) -> int:
        """Return the number of patches in a film's arrays."""
        return len(arrays["pixel_values_videos"])
