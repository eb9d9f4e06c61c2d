"""What each family of models makes of images: tokens and patches by size, arrays, positions.

A family is known by the class of its processor of transformers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.errors import ConfigError
from streampack.media.attachments import Size


@dataclass(frozen=True, slots=True)
class Family:
    """What processors of one class have in common.

    Attributes:
        axes: positions have three axes beside the text's (M-RoPE), by `image_grid_thw`.
        tall: the arrays of several images are joined along their first dimension as they are, and
            `pixel_values` has a row per patch; else a row per image or tile.
    """

    axes: bool = False
    tall: bool = False


#: By the class of the processor.
FAMILIES = {
    "Qwen2VLProcessor": Family(axes=True, tall=True),
    "Qwen2_5_VLProcessor": Family(axes=True, tall=True),
}


class ImagePlanner:
    """A processor of transformers: what it makes of images, before and after they are decoded.

    Args:
        processor: with an image processor and a tokenizer.

    Attributes:
        family: of the models it belongs to.
        token: the text that stands for an image; token_id: its id.

    Raises:
        ConfigError: it is of no family that is known here.
    """

    def __init__(self, processor: Any) -> None:
        names = [kind.__name__ for kind in type(processor).__mro__]
        known = next((name for name in names if name in FAMILIES), None)
        if known is None or not hasattr(processor, "_get_num_multimodal_tokens"):
            raise ConfigError(
                f"processor is {names[0]}.",
                f"Use one of {', '.join(FAMILIES)}.",
                setting="processor",
            )
        self.processor = processor
        self.family = FAMILIES[known]
        self.name = known
        self.token: str = processor.image_token
        self.token_id = int(processor.image_token_id)

    def describe(self) -> dict[str, Any]:
        """JSON-able: what tokens and pixels follow from."""
        settings = json.loads(self.processor.image_processor.to_json_string())
        return {"processor": self.name, "image_token": self.token, **settings}

    def plan(self, sizes: Sequence[Size]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Tokens (A,) and patches (A,) of images of these sizes.

        Raises:
            ValueError: the processor refuses one of them.
        """
        found = self.processor._get_num_multimodal_tokens(image_sizes=[list(s) for s in sizes])
        tokens, patches = found.num_image_tokens, found.num_image_patches
        return np.array(tokens, dtype=np.int64), np.array(patches, dtype=np.int64)

    def arrays(self, image: Any) -> dict[str, NDArray[Any]]:
        """What the model takes of one image of Pillow."""
        # Of an image of 3 or fewer pixels processors could not tell where the colours are.
        made = self.processor.image_processor(
            images=[image], return_tensors="np", input_data_format="channels_last"
        )
        return {name: np.asarray(values) for name, values in made.items()}


def axes_of(
    spans: Sequence[tuple[int, int]], grids: Sequence[Sequence[int]], length: int
) -> NDArray[np.int64]:
    """(3, length) positions of a document by time, height and width (M-RoPE of the Qwen-VL models).

    Text counts on all three; a patch of an image has the place of the image and its row and column
    beside; what follows goes on after the largest of them.

    Args:
        spans: first token of each image's place and the one after its last, in order.
        grids: (t, h, w) of each, in patches.
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
