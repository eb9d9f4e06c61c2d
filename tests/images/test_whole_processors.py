"""Processors as AutoProcessor makes them, with parts for images or videos from torchvision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streampack.images import Images
from streampack.images.families import ImagePlanner, joined, with_margins
from tests.support.vision import drawn, png
from tests.support.vision_families import FAMILIES
from tests.support.vision_runs import dataset

pytest.importorskip("torchvision", reason="Processors of torchvision, and those of videos")

from tests.support.whole_processors import FIVE, whole_processor


def least_side(family: str, fast: bool) -> int:
    """Return the least side of images that a family can process.

    The slow processors of transformers 4 mistake the dimensions of images of few pixels, also after
    a resize; GLM-4V refuses them.
    """
    return 1 if FIVE or (fast and family != "GLM-4V") else 24


BOTH = [(family, fast) for family in FAMILIES for fast in (True, False)]


def random_images(rng: np.random.Generator, least: int, most: int) -> list[Any]:
    """One to three: of any shape, or long and thin, or as small as they may be."""
    made = []
    for _ in range(rng.integers(1, 4)):
        width, height = rng.integers(least, most, 2)
        kind = rng.integers(0, 4)
        if kind == 0 and least == 1:
            width, height = sorted((least + width // 20, 9 * height), reverse=bool(width % 2))
        if kind == 1:
            width, height = least + width // 20, least + height // 20
        made.append(drawn(int(rng.integers(0, 99)), int(width), int(height)))
    return made


def as_planned(processor: Any, text: str, images: list[Any]) -> tuple[list[int], dict[str, Any]]:
    """Return the ids that a run plans from the sizes of a text's images, and their arrays."""
    planner = ImagePlanner(processor)
    ids, patches = planner.plan([(image.height, image.width) for image in images])
    arrays = [planner.arrays(image) for image in images]
    assert [planner.count(own) for own in arrays] == patches.tolist()
    following, found = iter(ids), []
    for token in processor.tokenizer(with_margins(text, processor))["input_ids"]:
        found += next(following).tolist() if token == planner.token_id else [token]
    made = {name: joined([own[name] for own in arrays]) for name in arrays[0]}
    batched = planner.family.form.batched
    return found, {name: own[None] if batched else own for name, own in made.items()}


@pytest.mark.parametrize(("family", "fast"), BOTH)
def test_ids_grids_and_pixels_match_the_processor_for_images_of_any_size(
    family: str, fast: bool
) -> None:
    processor, compared = whole_processor(family, fast=fast), 0
    rng = np.random.default_rng(0)
    for _ in range(60):
        images = random_images(rng, least_side(family, fast), 90)
        text = "ab" + "".join(FAMILIES[family].place + "x" * int(rng.integers(3)) for _ in images)
        try:
            wanted = processor(text=[text], images=images, return_tensors="pt")
        except ValueError:  # too long for their width, or too small
            with pytest.raises(ValueError, match=r"."):
                as_planned(processor, text, images)
            continue
        compared += 1
        ids, arrays = as_planned(processor, text, images)
        assert ids == wanted["input_ids"][0].tolist()
        for name, own in arrays.items():
            assert np.array_equal(own, np.asarray(wanted[name])), name
    assert compared >= 20


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("limits", [{"max_pixels": 32**2}, {"min_pixels": 40**2}])
def test_limits_of_pixels_that_were_set_later_hold(fast: bool, limits: dict[str, int]) -> None:
    processor = whole_processor("Qwen2-VL", fast=fast)
    for name, value in limits.items():
        setattr(processor.image_processor, name, value)
    text = FAMILIES["Qwen2-VL"].place
    for size in ((20, 20), (60, 60), (300, 200)):
        image = drawn(0, *size)
        wanted = processor(text=[text], images=[image], return_tensors="pt")
        ids, arrays = as_planned(processor, text, [image])
        assert ids == wanted["input_ids"][0].tolist()
        assert np.array_equal(arrays["pixel_values"], wanted["pixel_values"])


@pytest.mark.parametrize("family", FAMILIES)
def test_runs_take_processors_of_torchvision(family: str) -> None:
    processor = whole_processor(family, fast=True)
    place = FAMILIES[family].place
    given = [
        {"text": f"{i}:{place}{'z' * i}", "images": [png(drawn(i, 20 + 5 * i, 30))]}
        for i in range(6)
    ]
    found = set()
    for batch in dataset(Images(given, text="text"), processor, seq_len=256):
        for number in range(batch.num_documents):
            found.add(tuple(batch.input_ids[batch.document_ids == number].tolist()))
    wanted = [
        processor(text=[one["text"]], images=[drawn(i, 20 + 5 * i, 30)], return_tensors="pt")
        for i, one in enumerate(given)
    ]
    assert found == {tuple(own["input_ids"][0].tolist()) for own in wanted}
