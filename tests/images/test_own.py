"""Images for a model of one's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from streampack import check_isolation
from streampack.errors import ContentError
from streampack.images import Images
from tests.support.vision import drawn, fast_tokenizer, png
from tests.support.vision_runs import dataset


class Means:
    """A token, and a patch, for every 8 x 8 pixels: their mean colour."""

    image_token = "<image>"

    def __init__(self, lies: int = 0) -> None:
        self.tokenizer = fast_tokenizer(["<|endoftext|>", "<image>"])
        self.lies = lies

    def plan(self, height: int, width: int) -> tuple[int, int]:
        if min(height, width) < 8:
            raise ValueError("less than a patch")
        return (height // 8) * (width // 8), (height // 8) * (width // 8) + self.lies

    def arrays(self, image: Any) -> dict[str, Any]:
        pixels = np.asarray(image, dtype=np.float32)
        rows, columns = pixels.shape[0] // 8, pixels.shape[1] // 8
        cut = pixels[: rows * 8, : columns * 8].reshape(rows, 8, columns, 8, 3)
        return {"pixel_values": cut.mean((1, 3)).reshape(-1, 3)}

    def describe(self) -> dict[str, Any]:
        return {"patch": 8}


GIVEN = [
    {"text": f"{i}:<image>{'z' * i}", "images": [png(drawn(i, 16 + 3 * i, 30))]} for i in range(9)
]


def test_features_stand_in_the_places_of_images() -> None:
    processor = Means()
    (batch,) = dataset(Images(GIVEN, text="text"), processor)
    image = processor.tokenizer.convert_tokens_to_ids("<image>")
    assert len(batch.media["pixel_values"]) == int((batch.input_ids == image).sum())
    first = Means().arrays(drawn(0, 16, 30))["pixel_values"]
    places = torch.cumsum(batch.input_ids.view(-1) == image, 0)
    (number,) = [
        n for n in range(9)
        if processor.tokenizer.decode(batch.input_ids[batch.document_ids == n]).startswith("0:")
    ]  # fmt: skip
    begin = int(places[batch.document_ids.view(-1) == number][0])
    assert np.array_equal(batch.media["pixel_values"][begin : begin + len(first)], first)

    def model(one: Any) -> torch.Tensor:
        ids, features = one.input_ids.view(-1), one.media["pixel_values"].mean(1) / 1000
        values = ids.float().masked_scatter(ids == image, features)
        same = one.document_ids.view(-1)[:, None] == one.document_ids.view(-1)[None]
        return (same.float().tril() @ values)[:, None]

    assert check_isolation(model, batch)


def test_more_patches_than_planned_and_images_without_any_are_named() -> None:
    with pytest.raises(ContentError):
        list(dataset(Images(GIVEN, text="text"), Means(lies=1)))
    small = [{"text": "<image>", "images": [png(drawn(0, 4, 40))]}]
    with pytest.raises(ContentError) as caught:
        list(dataset(Images(small, text="text"), Means()))
    assert caught.value.document == "item 0 of the list"
