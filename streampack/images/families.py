"""Image tokens, weights and arrays for each family of vision-language models.

The class of the processor of transformers determines the family.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module, metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.cached import cached_property
from streampack.errors import ConfigError
from streampack.images.attachments import Attachments, MediaForm, Reference, Size
from streampack.images.fetching import Heads
from streampack.images.images import blank, decoded, size_of
from streampack.storage.storage import Storage


@dataclass(frozen=True, slots=True)
class Family:
    """Properties that processors of one class share.

    Attributes:
        names: arrays of the image processor that models take; arrays of several images are joined
            along the first dimension.
        form: form in which models take images.
        around: attributes of the processor with the tokens before and after an image's tokens.
        marker: attribute of the processor with the text that marks an image.
        features: attribute of the processor with the token that gets image features.
        margin: text that the processor inserts before and after the marker.
        written: format of the marker in templates, for records without one.
        settings: arguments of the image processor with which the processor calls it.
        nested: the image processor takes and returns lists of images; see `ImagePlanner.arrays`.
        tiled: the second dimension of `pixel_values` is the tiles of an image.
    """

    names: tuple[str, ...] = ("pixel_values",)
    form: MediaForm = field(default_factory=MediaForm)
    around: tuple[str, str] | None = None
    marker: str = "image_token"
    features: str = "image_token"
    margin: str = ""
    written: str = "{}"
    settings: Mapping[str, Any] = field(default_factory=dict)
    nested: bool = False
    tiled: bool = False


_KEPT_SIZES = 1 << 14
_GRIDS = Family(
    ("pixel_values", "image_grid_thw"),
    MediaForm(axes=True),
    written="<|vision_start|>{}<|vision_end|>",
)
_TILES = Family(
    ("pixel_values", "pixel_attention_mask"),
    MediaForm(batched=True),
    settings={"return_row_col_info": True},
    nested=True,
)
#: Families by the class name of the processor.
FAMILIES = {
    "Qwen2VLProcessor": _GRIDS,
    "Qwen2_5_VLProcessor": _GRIDS,
    "Qwen3VLProcessor": _GRIDS,
    "Glm4vProcessor": replace(_GRIDS, written="<|begin_of_image|>{}<|end_of_image|>"),
    "InternVLProcessor": Family(
        around=("start_image_token", "end_image_token"), settings={"crop_to_patches": True}
    ),
    "Gemma3Processor": Family(
        form=MediaForm(types=True),
        around=("boi_token", "tokenizer.eoi_token"),
        marker="boi_token",
        features="tokenizer.image_token",
        margin="\n\n",
        settings={"do_pan_and_scan": False, "do_convert_rgb": True},
    ),
    "LlavaOnevisionProcessor": Family(
        ("pixel_values", "image_sizes", "batch_num_images"), tiled=True
    ),
    "Idefics3Processor": _TILES,
    "SmolVLMProcessor": _TILES,
}


def family_of(processor: Any) -> str | None:
    """Return the processor's name in `FAMILIES`, or None."""
    names = (kind.__name__ for kind in type(processor).__mro__)
    return next((name for name in names if name in FAMILIES), None)


def with_margins(text: str, processor: Any) -> str:
    """Surround image markers in a text or template with the processor's margins."""
    name = family_of(processor)
    if name is None or not (margin := FAMILIES[name].margin):
        return text
    marker = getattr(processor, FAMILIES[name].marker)
    return text.replace(marker, f"{margin}{marker}{margin}")


class ImagePlanner:
    """Planner for a processor of transformers: tokens before an image is decoded, arrays after.

    Args:
        processor: a processor with an image processor and a tokenizer.

    Attributes:
        family: the model family.
        name: class name of the processor.
        token: text that marks an image.
        token_id: id of `token`.
        image_id: id of the tokens that get image features.
        video_id: id of the tokens that get video features, or -1.

    Raises:
        ConfigError: the family is not supported.
    """

    def __init__(self, processor: Any) -> None:
        name = family_of(processor)
        sized = name is not None and (
            FAMILIES[name].nested or hasattr(processor, "_get_num_multimodal_tokens")
        )
        if name is None or not sized:
            raise ConfigError(
                "processor must be a supported processor of transformers or an ImageModel, got "
                f"{type(processor).__name__}.",
                f"Use one of {', '.join(FAMILIES)}, of transformers 4.56 or later; or an object "
                "with the methods of streampack.images.ImageModel.",
                setting="processor",
            )
        self.processor, self.name, self.family = processor, name, FAMILIES[name]
        self.token: str = getattr(processor, self.family.marker)
        self.token_id = self._id(self.token)
        self.image_id = self._id(self._text(self.family.features))
        video = getattr(processor, "video_token", None)
        self.video_id = -1 if video is None else self._id(video)
        before, after = [], []
        if self.family.around is not None:
            before, after = ([self._id(self._text(each))] for each in self.family.around)
        self._before, self._after = before, after
        # Before transformers 5 processors use the two limits of pixels only if both are set.
        self._limits_alone = int(metadata.version("transformers").partition(".")[0]) >= 5
        pixels = processor.image_processor
        kinds = type(pixels).__mro__
        self._fast = any(kind.__name__ == "BaseImageProcessorFast" for kind in kinds)
        self._patches: Any = getattr(pixels, "get_number_of_image_patches", None)
        if self._patches is None and name == "Glm4vProcessor":  # the fast one of 4.57 lacks it
            slow = import_module("transformers").Glm4vImageProcessor
            self._patches = partial(slow.get_number_of_image_patches, pixels)
        self._counts: dict[Size, int] = {}
        self._prompts: dict[tuple[int, int], NDArray[np.int64]] = {}

    def _text(self, attribute: str) -> Any:
        owner, _, name = attribute.rpartition(".")
        return getattr(getattr(self.processor, owner) if owner else self.processor, name)

    def _id(self, text: str) -> int:
        token_id = self.processor.tokenizer.convert_tokens_to_ids(text)
        return -1 if token_id is None else int(token_id)

    def replaced(
        self, tokens: NDArray[Any], places: NDArray[np.int64], written: Any = ()
    ) -> NDArray[np.int64]:
        """Return the indices of tokens beside placeholders which the processor replaces too."""
        return places[:0]

    def describe(self) -> dict[str, Any]:
        """Return all settings that tokens and pixels depend on, as values that JSON can hold."""
        settings = json.loads(self.processor.image_processor.to_json_string())
        more = ("image_seq_length", "image_seq_len", "num_image_tokens", "vision_aspect_ratio")
        named = {name: getattr(self.processor, name, None) for name in more}
        return {"processor": self.name, "image_token": self.token, **named, **settings}

    def sizes(self, attached: Attachments, heads: Heads) -> tuple[Size, ...]:
        """Return the sizes of the images, from fields or from the heads of their files.

        Raises:
            ValueError: a size is not a height and a width, or an image cannot be read.
        """
        if attached.sizes is None:
            storage = attached.storage
            return tuple(
                size_of(each, storage, heads.take(each, storage)) for each in attached.references
            )
        if any(len(size) != 2 for size in attached.sizes):
            raise ValueError("has a size that is not two numbers, height and width")
        return attached.sizes

    def opened(self, reference: Reference, size: Size, storage: Storage | None) -> Any:
        """Return the decoded image; raises like `decoded`."""
        return decoded(reference, size, storage)

    def blank(self, size: Size) -> Any:
        """Return a grey image as replacement for a broken one."""
        return blank(size)

    def plan(self, sizes: Sequence[Size]) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        """Return the token ids of A images, and their numbers of patches or tiles, (A,).

        Raises:
            ValueError: the processor refuses a size.
        """
        if self.family.nested:
            return self._plan_tiles(sizes)
        if self.family.form.axes:
            counts = [self._counts.get(size) or self._count(size) for size in sizes]
            merged = self.processor.image_processor.merge_size**2
            ids = [np.full(count // merged, self.image_id, np.int64) for count in counts]
            return ids, np.array(counts, np.int64)
        planned = self.processor._get_num_multimodal_tokens(image_sizes=[list(s) for s in sizes])
        patches = planned.num_image_patches
        if self.family.tiled:
            patches = [self._tiles(size) for size in sizes]
        # InternVL's count includes the tokens around an image; Gemma 3's does not.
        counted = len(self._before) + len(self._after) if self.name == "InternVLProcessor" else 0
        ids = [
            np.array([*self._before, *[self.image_id] * (count - counted), *self._after], np.int64)
            for count in planned.num_image_tokens
        ]
        return ids, np.array(patches, dtype=np.int64)

    def _count(self, size: Size) -> int:
        """Return the number of patches for models with axes, and cache it by size."""
        pixels = self.processor.image_processor
        settings = {"size": pixels.size}  # GLM-4V ignores its own setting and needs it passed
        limits = {name: getattr(pixels, name, None) for name in ("min_pixels", "max_pixels")}
        known_limits = {name: limit for name, limit in limits.items() if limit is not None}
        if known_limits.keys() == limits.keys() or self._limits_alone:
            settings |= known_limits
        count = int(self._patches(*size, settings))
        if len(self._counts) < _KEPT_SIZES:
            self._counts[size] = count
        return count

    def _tiles(self, size: Size) -> int:
        """Return the number of tiles at the best resolution, plus one for the whole image."""
        from transformers.image_processing_utils import select_best_resolution

        pixels = self.processor.image_processor
        side = min(pixels.size.get("shortest_edge") or pixels.size["height"], 1 << 30)
        height, width = select_best_resolution(size, pixels.image_grid_pinpoints)
        return int((height // side) * (width // side) + 1)

    def _plan_tiles(
        self, sizes: Sequence[Size]
    ) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        """Plan images that are written as rows and columns of tiles; see `plan`."""
        processor, ids, patches = self.processor, [], []
        for size in sizes:
            count, *places = processor.image_processor.get_number_of_image_patches(
                *size, dict(self.family.settings)
            )
            rows, columns = places
            if count == 1:
                rows = columns = 0
            if (rows, columns) not in self._prompts:
                text = _prompt_of_tiles(processor, rows, columns)
                token_ids = processor.tokenizer(text, add_special_tokens=False)["input_ids"]
                self._prompts[rows, columns] = np.array(token_ids, dtype=np.int64)
            ids.append(self._prompts[rows, columns])
            patches.append(count)
        return ids, np.array(patches, dtype=np.int64)

    def arrays(self, image: Any) -> dict[str, NDArray[Any]]:
        """Return the model's arrays for one Pillow image."""
        # The data format is passed because processors cannot infer the colour dimension of an image
        # with 3 or fewer pixels a side. Fast ones ask after they have moved colours to the front.
        processed = self.processor.image_processor(
            images=[[image]] if self.family.nested else [image],
            return_tensors="pt",  # the only kind that all image processors return
            input_data_format="channels_first" if self._fast else "channels_last",
            **self.family.settings,
        )
        arrays = {
            name: np.asarray(processed[name]) for name in self.family.names if name in processed
        }
        return {name: array[0] for name, array in arrays.items()} if self.family.nested else arrays

    @cached_property
    def smallest(self) -> tuple[dict[str, NDArray[Any]], int]:
        """Arrays of a small grey image, and its number of tokens."""
        size = (56, 56)
        (ids,), _ = self.plan([size])
        arrays, tokens = self.arrays(blank(size)), int((ids == self.image_id).sum())
        if self.family.form.axes:  # models take an image of one token, but processors make none
            side = self.processor.image_processor.merge_size
            grid = np.array([[1, side, side]], dtype=arrays["image_grid_thw"].dtype)
            arrays, tokens = {
                "pixel_values": arrays["pixel_values"][: side * side], "image_grid_thw": grid
            }, 1  # fmt: skip
        return arrays, tokens

    def count(self, arrays: Mapping[str, NDArray[Any]]) -> int:
        """Return the number of patches or tiles in an image's arrays."""
        pixels = arrays["pixel_values"]
        return int(pixels.shape[1] if self.family.tiled else len(pixels))


def _prompt_of_tiles(processor: Any, rows: int, columns: int) -> str:
    """Return the text that a processor writes for an image of `rows` x `columns` tiles."""
    fake, image = processor.fake_image_token, processor.image_token * processor.image_seq_len
    tiles = [
        "".join(f"{fake}<row_{row + 1}_col_{column + 1}>{image}" for column in range(columns))
        for row in range(rows)
    ]
    name = "global_image_tag" if hasattr(processor, "global_image_tag") else "global_image_token"
    whole = f"{fake}{getattr(processor, name)}{image}{fake}"
    return "".join(f"{line}\n" for line in tiles) + (f"\n{whole}" if rows else whole)


def joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Join the arrays of several images along the first dimension, zero-padding the others."""
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) > 1:
        most = np.max([*shapes], axis=0)
        arrays = [
            np.pad(array, [(0, 0), *((0, int(n)) for n in most - array.shape[1:])])
            for array in arrays
        ]
    return np.concatenate(arrays)


def axes_of(
    spans: Sequence[tuple[int, int]], grids: Sequence[Sequence[int]], length: int
) -> NDArray[np.int64]:
    """Return a document's (3, length) positions in time, height and width (M-RoPE of Qwen-VL).

    Text advances all three axes. An image patch adds its row and column to the image's position,
    and the text after an image continues from the largest position so far.

    Args:
        spans: first and end token of each image, in order.
        grids: (t, h, w) of each image, in patches.
        length: tokens of the document.
    """
    out = np.empty((3, length), dtype=np.int64)
    at = following = 0
    for (start, stop), (t, h, w) in zip(spans, grids, strict=True):
        out[:, at:start] = following + np.arange(start - at)
        following += start - at
        merge = round((t * h * w / max(stop - start, 1)) ** 0.5)
        shape = (t, h // merge, w // merge)
        out[:, start:stop] = following + np.indices(shape).reshape(3, -1)
        following += max(shape)
        at = stop
    out[:, at:] = following + np.arange(length - at)
    return out
