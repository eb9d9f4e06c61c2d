"""Protocols for models with their own media processing: images, or sound and video."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from streampack.cached import cached_property
from streampack.images.attachments import Attachments, Reference, Size
from streampack.images.families import Family, ImagePlanner
from streampack.images.fetching import Heads
from streampack.images.images import content_of
from streampack.storage.storage import Storage


@runtime_checkable
class ImageModel(Protocol):
    """Protocol of ``processor=`` for models without a supported processor. Must be picklable.

    Attributes:
        tokenizer: tokenizer of transformers; its chat template renders conversations.
        image_token: text that marks an image, one token of the tokenizer.
    """

    tokenizer: Any
    image_token: str

    def plan(self, height: int, width: int) -> tuple[int, int]:
        """Return the numbers of tokens and patches of an image with this size in pixels.

        Raises:
            ValueError: an image of this size cannot be used.
        """

    def arrays(self, image: Any) -> Mapping[str, NDArray[Any]]:
        """Return the model's arrays for a Pillow image in RGB.

        They include "pixel_values", with one row for each patch that `plan` counted. The arrays of
        a batch's images are joined along the first dimension.
        """

    def describe(self) -> Mapping[str, Any]:
        """Return all settings that tokens and pixels depend on, as values that JSON can hold.

        A state saved with other settings is refused.
        """


@runtime_checkable
class MediaModel(Protocol):
    """An `ImageModel` that opens files itself, for sound, video or any other format.

    A size is a tuple of integers with a meaning of the model's choice, such as samples, frames,
    height and width, read from the fields that ``Images(sizes=...)`` names. Everything else is as
    for images.

    Attributes:
        smallest: size of the blank medium for batches without media.
    """

    tokenizer: Any
    image_token: str
    smallest: tuple[int, ...]

    def plan(self, *size: int) -> tuple[int, int]:
        """Return the numbers of tokens and patches; raise `ValueError` to refuse a size."""

    def open(self, data: bytes) -> Any:
        """Decode a file; any exception marks the file as broken."""

    def blank(self, *size: int) -> Any:
        """Return a silent or empty medium, like a result of `open`, to replace a broken file."""

    def arrays(self, opened: Any) -> Mapping[str, NDArray[Any]]:
        """Return the model's arrays for a result of `open`; see `ImageModel.arrays`."""

    def describe(self) -> Mapping[str, Any]:
        """Return the settings; see `ImageModel.describe`."""


class OwnPlanner(ImagePlanner):
    """Planner for an `ImageModel`."""

    def __init__(self, processor: Any) -> None:
        self.processor, self.name, self.family = processor, type(processor).__name__, Family()
        self.token, self.video_id = processor.image_token, -1
        self.token_id = self.image_id = self._id(self.token)

    def describe(self) -> dict[str, Any]:
        """Return all settings that tokens and pixels depend on, as values that JSON can hold."""
        return {"processor": self.name, "image_token": self.token, **self.processor.describe()}

    def plan(self, sizes: Sequence[Size]) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        """Return the token ids of A images, and their numbers of patches, (A,)."""
        planned = [self.processor.plan(*size) for size in sizes]
        ids = [np.full(tokens, self.image_id, dtype=np.int64) for tokens, _ in planned]
        return ids, np.array([patches for _, patches in planned], dtype=np.int64)

    def arrays(self, image: Any) -> dict[str, NDArray[Any]]:
        """Return the model's arrays for one Pillow image."""
        return {name: np.asarray(array) for name, array in self.processor.arrays(image).items()}

    @cached_property
    def smallest(self) -> tuple[dict[str, NDArray[Any]], int]:
        """Arrays of a small grey image, and its number of tokens."""
        return self._blank_of((56, 56))

    def _blank_of(self, size: Size) -> tuple[dict[str, NDArray[Any]], int]:
        return self.arrays(self.blank(size)), self.processor.plan(*size)[0]


class MediaPlanner(OwnPlanner):
    """Planner for a `MediaModel`."""

    def sizes(self, attached: Attachments, heads: Heads) -> tuple[Size, ...]:
        """Return the sizes from the record's fields; raise `ValueError` without them."""
        if attached.sizes is None:
            raise ValueError("has no size; name the fields that hold it by sizes=")
        return attached.sizes

    def opened(self, reference: Reference, size: Size, storage: Storage | None) -> Any:
        """Return the result of the model's `open` for the file."""
        return self.processor.open(content_of(reference, storage or Storage()))

    def blank(self, size: Size) -> Any:
        """Return the model's replacement for a broken file."""
        return self.processor.blank(*size)

    @cached_property
    def smallest(self) -> tuple[dict[str, NDArray[Any]], int]:
        """Arrays of a medium of the model's smallest size, and its number of tokens."""
        return self._blank_of(self.processor.smallest)


def planner_of(processor: Any) -> ImagePlanner:
    """Return the planner for a processor of transformers, an `ImageModel` or a `MediaModel`."""
    if isinstance(processor, MediaModel):
        return MediaPlanner(processor)
    return OwnPlanner(processor) if isinstance(processor, ImageModel) else ImagePlanner(processor)
