"""ImageModel: images for a model of your own, in place of a processor of transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from streampack.cached import cached_property
from streampack.media.attachments import Size
from streampack.media.families import Family, ImagePlanner
from streampack.media.images import blank


@runtime_checkable
class ImageModel(Protocol):
    """What `PackedDataset` takes as ``processor=`` for a model of your own. Picklable.

    Attributes:
        tokenizer: of transformers, whose chat template renders conversations.
        image_token: the text that stands for an image, one token of the tokenizer.
    """

    tokenizer: Any
    image_token: str

    def plan(self, height: int, width: int) -> tuple[int, int]:
        """Tokens and patches of an image of so many pixels; raises `ValueError` if it has none."""

    def arrays(self, image: Any) -> Mapping[str, NDArray[Any]]:
        """What the model takes of an image of Pillow, in RGB.

        Among them is "pixel_values", as many rows as `plan` said there are patches; arrays of the
        images of a batch are joined along the first dimension.
        """

    def describe(self) -> Mapping[str, Any]:
        """JSON-able: all that tokens and pixels follow from, by which a state knows it."""


class OwnPlanner(ImagePlanner):
    """An `ImageModel` as a planner."""

    def __init__(self, processor: ImageModel) -> None:
        self.processor, self.name, self.family = processor, type(processor).__name__, Family()
        self.token, self.video_id = processor.image_token, -1
        self.token_id = self.image_id = self._id(self.token)

    def describe(self) -> dict[str, Any]:
        """JSON-able: what tokens and pixels follow from."""
        return {"processor": self.name, "image_token": self.token, **self.processor.describe()}

    def plan(self, sizes: Sequence[Size]) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        """The ids of A images of these sizes, and their patches (A,)."""
        found = [self.processor.plan(*size) for size in sizes]
        ids = [np.full(tokens, self.image_id, dtype=np.int64) for tokens, _ in found]
        return ids, np.array([patches for _, patches in found], dtype=np.int64)

    def arrays(self, image: Any) -> dict[str, NDArray[Any]]:
        """What the model takes of one image of Pillow."""
        return {name: np.asarray(own) for name, own in self.processor.arrays(image).items()}

    @cached_property
    def smallest(self) -> tuple[dict[str, NDArray[Any]], int]:
        """What the model takes of a small grey image, and of how many tokens that is."""
        size = (56, 56)
        return self.arrays(blank(size)), self.processor.plan(*size)[0]


def planner_of(processor: Any) -> ImagePlanner:
    """The planner of a processor of transformers, or of an `ImageModel`."""
    return OwnPlanner(processor) if isinstance(processor, ImageModel) else ImagePlanner(processor)
