"""FilmPlanner: tokens of a film before it is decoded, arrays of its sampled frames after."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack.cached import cached_property
from streampack.films.counting import Interleaved, Shapes, counting
from streampack.films.families import film_family_of
from streampack.films.files import declare, frames_of, size_of, sound_of
from streampack.films.size import FilmSize
from streampack.images.attachments import (
    ROWS,
    Attachments,
    MediaForm,
    Medium,
    Reference,
    Size,
)
from streampack.images.families import FAMILIES, Family, family_of
from streampack.images.fetching import Heads
from streampack.images.media_file import fetch_ahead, require_av
from streampack.keep_last import KeepLast
from streampack.per_process import PerProcess
from streampack.sounds.planner import SoundPlanner, require_marked
from streampack.storage.storage import Storage

#: Sizes of films, at most, of which a process keeps the token ids.
_KEPT_SIZES = 1 << 9
#: Pixels of a frame: twice as many as in 8K. Small files may declare billions.
_MOST_PIXELS = 1 << 26
#: Pixels of the grey frames in place of a broken film.
_MOST_GREY = 1 << 30
#: Tokens that are compared on each side of a film.
_BESIDE = 64
#: Frames of the film in a batch without films.
_FEW_FRAMES = (8, 32, 128, 512)
#: Results of a processor for its text.
_OF_TEXT = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids", "video_metadata")


class _Planned(NamedTuple):
    """A film's sampled frames, its token ids, its number of patches, and its grid if it has one."""

    indices: list[int]
    ids: NDArray[np.int64]
    patches: int
    grid: list[int] | None


class _Opened(NamedTuple):
    """The size of a film, its sampled frames (N, height, width, 3), and the samples of its sound.

    None stands for grey frames, and for no sound.
    """

    size: FilmSize
    frames: NDArray[np.uint8] | None
    samples: NDArray[np.float32] | None


class FilmPlanner:
    """Planner of films for a processor of transformers; see `ImagePlanner`.

    The processor itself counts: it is called with a film of the right shape without values.

    Raises:
        ConfigError: the family takes no films here, or lacks its video processor.
        MissingPackageError: PyAV is not installed.
    """

    def __init__(self, processor: Any) -> None:
        require_av()
        self.films, self._videos = film_family_of(processor), processor.video_processor
        self.processor, self.name = processor, type(processor).__name__
        self.token: str = processor.video_token
        self.token_id = self._id(self.token)
        self.image_id = self.video_id = self._id(getattr(processor, self.films.features))
        name = family_of(processor)
        of_images = None if name is None or self.films.apart else FAMILIES[name]
        #: True if the family's images are not read.
        self.alone = of_images is None
        form = MediaForm(axes=self.films.axes) if of_images is None else of_images.form
        self.family = Family(form=form, written=self.films.written)
        self._nested = of_images is not None and of_images.nested
        # Before transformers 5 the tokens around Qwen3-VL's placeholder go with it.
        self._around: tuple[str, str] | None = None
        if self.films.timed and not hasattr(processor, "replace_video_token"):
            self._around = processor.vision_start_token, processor.vision_end_token
        self._added = {*processor.tokenizer.added_tokens_decoder}
        kept = partial(KeepLast[FilmSize, _Planned], _KEPT_SIZES)
        self._planned: PerProcess[KeepLast[FilmSize, _Planned]] = PerProcess(kept)
        #: Planner of the sounds inside films; None if they are not read.
        self.sound: SoundPlanner | None = None
        self._frames = processor
        if getattr(processor, "load_audio_from_video", False):
            self.sound, self._frames = SoundPlanner(processor), copy.copy(processor)
            self._frames.load_audio_from_video = False
        self._counting = counting(self._frames, getattr(processor, self.films.features))

    def _id(self, text: str) -> int:
        return int(self.processor.tokenizer.convert_tokens_to_ids(text))

    def describe(self) -> dict[str, Any]:
        """Return all settings that tokens and pixels depend on, as values that JSON can hold."""
        simple = (str, int, float, bool, type(None))
        settings = {k: v for k, v in vars(self.processor).items() if isinstance(v, simple)}
        settings.pop("chat_template", None)  # of the fingerprint of texts
        for name in ("videos_kwargs", "text_kwargs"):  # of transformers 5, which calls with them
            if named := getattr(self.processor, name, None):
                settings[name] = f"{named}"
        described = {
            "processor": self.name, **settings, **json.loads(self._videos.to_json_string())
        }  # fmt: skip
        if self.sound is not None:
            names = ("seconds_per_chunk", "position_id_per_seconds")
            order = {name: getattr(self.processor, name, None) for name in names}
            described["sound"] = {**self.sound.describe(), **order}
        return described

    def replaced(
        self,
        tokens: NDArray[Any],
        places: NDArray[np.int64],
        written: Sequence[NDArray[np.int64]] = (),
    ) -> NDArray[np.int64]:
        """Return the indices of tokens beside placeholders which the processor replaces too.

        Raises:
            ValueError: a text beside a film would have other tokens with the film's own text, such
                as a time; or models would not find the sound of a film.
        """
        for place, ids in zip(places.tolist(), written, strict=False):
            if tokens[place] == self.token_id and len(ids):
                self._require_apart(tokens[max(place - _BESIDE, 0) : place], ids[:_BESIDE])
                self._require_apart(ids[-_BESIDE:], tokens[place + 1 : place + 1 + _BESIDE])
        places = places[tokens[places] == self.token_id]
        if self.sound is not None:
            self._require_found(tokens, places, written)
        if self._around is None or not len(places):
            return places[:0]
        inner = places[(places > 0) & (places + 1 < len(tokens))]
        start, end = map(self._id, self._around)
        both = inner[(tokens[inner - 1] == start) & (tokens[inner + 1] == end)]
        return np.concatenate([both - 1, both + 1])

    def _require_found(
        self, tokens: NDArray[Any], places: NDArray[np.int64], written: Sequence[NDArray[np.int64]]
    ) -> None:
        """Raise `ValueError` for a document in which models find the sounds of films wrongly."""
        processor = self.processor
        around = [self._id(processor.vision_bos_token), self._id(processor.vision_eos_token)]
        require_marked(tokens, places, around, self.token)
        begin = self._id(processor.audio_bos_token)
        if len({bool(ids[0] == begin) for ids in written if len(ids)}) > 1:
            raise ValueError("has films with sound and films without, which models do not tell")

    def _require_apart(self, before: NDArray[Any], after: NDArray[Any]) -> None:
        """Raise `ValueError` if the texts of two lists of ids have other ids when joined."""
        added = [int(each) in self._added for each in before]
        left = before[len(added) - added[::-1].index(True) :] if any(added) else before
        added = [int(each) in self._added for each in after]
        right = after[: added.index(True)] if any(added) else after
        if not len(left) or not len(right):
            return
        tokenizer = self.processor.tokenizer
        texts = [
            tokenizer.decode(each.tolist(), clean_up_tokenization_spaces=False)
            for each in (left, right)
        ]
        apart, joined = (
            [each for text in parts for each in tokenizer.encode(text, add_special_tokens=False)]
            for parts in (texts, ["".join(texts)])
        )
        if apart != joined:
            raise ValueError(
                f"has the texts {texts[0][-20:]!r} and {texts[1][:20]!r}, one of them of a film, "
                "which share a token; put a line break between"
            )

    # ------------------------------------------------------------------ before the plan

    def size(self, medium: Medium, storage: Storage) -> FilmSize:
        """Return the size of a film from the head of its file; raises like `size_of`."""
        return size_of(
            medium.reference,
            storage,
            count_packets=medium.settings.count_packets,
            sound=self.sound is not None,
        )

    def sizes(self, attached: Attachments, heads: Heads) -> tuple[Size, ...]:
        """Return the sizes of films; raises like `Heads.sizes`."""
        sizes = heads.sizes(attached, self)
        for _, height, width, *_ in sizes:
            if height * width > _MOST_PIXELS:
                raise ValueError(f"has frames of {width} x {height} pixels")
        return sizes

    def plan(self, sizes: Sequence[Size]) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        """Return the token ids of A films, and their numbers of patches, (A,).

        Raises:
            ValueError: the processor refuses a size.
        """
        planned = [self._plan(self._film(size)) for size in sizes]
        return [each.ids for each in planned], np.array([each.patches for each in planned])

    def _film(self, size: Size) -> FilmSize:
        """Return a size as one of a film, without sound in runs that do not read it."""
        return FilmSize(*(size[:5] if self.sound is None else size))

    def _plan(self, size: FilmSize) -> _Planned:
        try:
            return self._planned().keep(size, partial(self._counted, size))
        except Exception as error:  # processors raise errors of any class at odd films
            raise ValueError(f"{type(error).__name__}: {error}"[:200]) from error

    def _counted(self, size: FilmSize) -> _Planned:
        """Plan a film by the processor's result for one of its shape without values."""
        import torch

        shape, settings = (size.frames, 3, size.height, size.width), {}
        if self.films.copies:
            film = torch.zeros((), dtype=torch.uint8).expand(shape)
        else:
            film = torch.empty(shape, dtype=torch.uint8, device="meta")
            settings = {"do_rescale": False, "do_normalize": False}
        metadata = self._metadata(size)
        if hasattr(self.processor, "replace_video_token"):  # of transformers 5
            settings["return_mm_token_type_ids"] = False
        processor, inside = self._counting, None
        if self.sound is not None and size.samples:
            ((of_sound,), _) = self.sound.plan([size.sound])
            inside = Interleaved(processor, len(of_sound))
            processor = inside.processor
        with Shapes():
            made = self._called(film, metadata, processor, **settings)
        sampled = metadata.frames_indices  # set by the processor
        indices = [*map(int, range(size.frames) if sampled is None else sampled)]
        if not indices or min(indices) < 0 or max(indices) >= size.frames:
            raise ValueError(f"samples {len(indices)} frames of {size.frames}")
        if self.films.alike and len(indices) != self._videos.num_frames:
            raise ValueError(
                f"has {len(indices)} sampled frames, and the model takes films of the same number: "
                "num_frames of the video processor"
            )
        grids = made.get("video_grid_thw")
        grid = grids[0].tolist() if grids is not None and len(grids) == 1 else None
        rows = _rows_of(made)
        patches = len(rows[0]) if self._nested else len(rows)
        ids = made["input_ids"][0].numpy() if inside is None else inside.ids
        return _Planned(indices, ids, patches, grid)

    def _called(self, film: Any, metadata: Any, processor: Any, **settings: Any) -> Any:
        """Return a processor's result for a placeholder and a film (N, 3, height, width)."""
        start, end = self._around or ("", "")
        return processor(
            text=[f"{start}{self.token}{end}"],
            videos=[film],
            video_metadata=[metadata],
            add_special_tokens=False,
            input_data_format="channels_first",
            return_tensors="pt",
            **settings,
        )

    def _metadata(self, size: FilmSize, indices: list[int] | None = None) -> Any:
        return _metadata_class()(
            total_num_frames=size.frames,
            fps=size.fps,
            width=size.width,
            height=size.height,
            duration=size.frames / size.fps,
            frames_indices=indices,
        )

    # ------------------------------------------------------------------ after the plan

    def fetch_ahead(self, url: str, size: Size, storage: Storage) -> None:
        """Let threads fetch the bytes that `opened` reads of a film by URL."""
        film = self._film(size)
        indices, sound = self._plan(film).indices, bool(film.samples)
        fetch_ahead(url, storage, partial(declare, indices=indices, sound=sound))

    def opened(self, reference: Reference, size: Size, storage: Storage | None) -> _Opened:
        """Return the sampled frames of a film, and its sound; raises like `frames_of`."""
        film, samples = self._film(size), None
        if self.sound is not None:
            samples = sound_of(reference, film, self.sound.sampling_rate, storage)
        return _Opened(film, frames_of(reference, film, self._plan(film).indices, storage), samples)

    def blank(self, size: Size) -> _Opened:
        """Return grey frames and silence as replacement for a broken film."""
        film = self._film(size)
        silence = self.sound.blank(film.sound) if self.sound and film.samples else None
        return _Opened(film, None, silence)

    def arrays(self, opened: _Opened) -> dict[str, NDArray[Any]]:
        """Return the model's arrays for a film."""
        import torch

        planned, settings = self._plan(opened.size), {}
        if opened.frames is not None:
            film = torch.from_numpy(np.ascontiguousarray(opened.frames)).permute(0, 3, 1, 2)
        else:
            side = opened.size.height, opened.size.width
            if planned.grid is not None and self.films.resizes:  # as large as after the resize
                side = tuple(each * self._videos.patch_size for each in planned.grid[1:])
                settings = {"do_resize": False}
            shape = (len(planned.indices), 3, *side)
            if np.prod(shape) > _MOST_GREY:
                raise ValueError(f"needs grey frames of {side[1]} x {side[0]} pixels")
            film = torch.full((), 127, dtype=torch.uint8).expand(shape)
        metadata = self._metadata(opened.size, [*planned.indices])
        processor, inside, of_sound = self._frames, None, {}
        if self.sound is not None and opened.samples is not None:
            of_sound = self.sound.arrays(opened.samples)
            inside = Interleaved(processor, self.sound.sounds.tokens(self.sound.count(of_sound)))
            processor = inside.processor
        made = self._called(film, metadata, processor, do_sample_frames=False, **settings)
        ids = made["input_ids"][0].numpy() if inside is None else inside.ids
        if not np.array_equal(ids, planned.ids):
            raise ValueError(f"{len(ids)} tokens, other than the {len(planned.ids)} planned")
        arrays = {name: np.asarray(made[name]) for name in made if name not in _OF_TEXT} | of_sound
        return {name: each[0] for name, each in arrays.items()} if self._nested else arrays

    def count(self, arrays: Mapping[str, NDArray[Any]]) -> int:
        """Return the number of patches in a film's arrays, or of frames if it has no patches."""
        return len(_rows_of(arrays))

    @cached_property
    def smallest(self) -> tuple[dict[str, NDArray[Any]], int]:
        """Arrays of a small grey film, and its number of tokens with features."""
        for frames in _FEW_FRAMES:
            size = FilmSize(frames, 56, 56, 4, 1)
            with suppress(ValueError):  # some families take no films of fewer frames than a number
                ids = self._plan(size).ids
                break
        arrays, tokens = self.arrays(self.blank(size)), int((ids == self.image_id).sum())
        merged = getattr(self._videos, "merge_size", 0) or 0
        grid, rows = arrays.get("video_grid_thw"), _rows_of(arrays)
        if grid is not None and len(grid) == 1 and len(rows) == tokens * merged**2:
            arrays = (
                {  # models take a film of one token, but processors make none
                    name: array[: merged**2] if array is rows else array
                    for name, array in arrays.items()
                }
                | {"video_grid_thw": np.array([[1, merged, merged]], dtype=grid.dtype)}
            )
            tokens = 1
        return arrays, tokens


@cache
def _metadata_class() -> Any:
    """Return transformers' `VideoMetadata` as a class that processors do not copy.

    They set the indices of the sampled frames there, and some drop the copy.
    """
    from transformers.video_utils import VideoMetadata

    return type("Metadata", (VideoMetadata,), {"__deepcopy__": lambda self, copied: self})


def _rows_of(arrays: Mapping[str, Any]) -> Any:
    """Return the array with a row for every patch or frame."""
    return next(arrays[name] for name in ROWS.values() if name in arrays)
